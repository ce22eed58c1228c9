"""What came of a simulation: times of each request, gaps between tokens, what each replica did.

All times are nanoseconds of simulated time, all arrays int64 unless said otherwise. Knows nothing of
percentiles that people ask for, prices or reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

NEVER: Final = -1
"""A time that did not come, a replica that there was not."""


class State(IntEnum):
    """How a request ended."""

    ENDED = 1
    REJECTED_LONG = 2  # prompt and output do not fit into the cache of any replica
    REJECTED_FULL = 3  # the line of the replica it was routed to, or the gateway's, was full
    FAILED = 4  # a replica was lost and the rule or `max_moves` ended it


class EventKind(IntEnum):
    """What the log tells; `subject` is a request unless said otherwise."""

    ROUTED = 1  # value: prompt tokens expected in the cache
    REJECTED = 2
    ADMITTED = 3  # joined the batch; value: tokens found in the cache and its tiers
    PREEMPTED = 4  # value: tokens it had
    FIRST_TOKEN = 5
    TRANSFERRED = 6  # its cache has arrived; value: blocks
    FINISHED = 7
    FAILED = 8
    EVICTED = 9  # subject: hash blocks evicted together
    ITERATION = 10  # from start_ns to time_ns; subject: decoding sequences, value: prompt tokens
    STARTING = 11  # a replica begins its cold start
    READY = 12  # a replica is up
    LOST = 13  # a replica failed
    STOPPED = 14  # a replica was scaled away, its last request served


@dataclass(frozen=True)
class EventLog:
    """k events, in order of time, then replica, then as they happened there; `replica` -1 is the gateway."""

    time_ns: IntArray
    kind: IntArray
    replica: IntArray
    subject: IntArray
    value: IntArray
    start_ns: IntArray

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class ReplicaTotals:
    """Of each replica, pools after each other in the deployment's order; arrays of length r.

    `kv_block_ns` (float64: it passes int64 in days) is blocks in use by requests, integrated over time;
    blocks that only the prefix cache holds are free for use and not counted. `up_ns` is time from the
    beginning of a cold start (which is paid for) until stopped or lost, `ready_ns` that in which it could
    serve.
    """

    pool: IntArray
    busy_ns: IntArray
    ready_ns: IntArray
    up_ns: IntArray
    iterations: IntArray
    decode_tokens: IntArray
    prompt_tokens: IntArray
    kv_block_ns: NDArray[np.float64]
    kv_peak_blocks: IntArray
    preemptions: IntArray
    evicted_blocks: IntArray
    transfer_ns: IntArray
    starts: IntArray


@dataclass(frozen=True)
class Samples:
    """State of all replicas every so often: `time_ns` of length k, the rest k x r.

    `used_blocks` are held by requests, `cached_blocks` by the prefix cache alone. Sampling ends after
    `MAX_SAMPLES`.
    """

    time_ns: IntArray
    used_blocks: IntArray
    cached_blocks: IntArray
    running: IntArray
    waiting: IntArray


MAX_SAMPLES: Final = 4096


@dataclass(frozen=True)
class Outcome:
    """n requests of a `Requests`, in its order.

    * `state`: a `State`. Times below are `NEVER` where they did not come.
    * `admitted_ns`: joined a batch for the first time: arrival to here is the queue.
    * `first_token_ns`, `finish_ns`: first and last token reach the client. Both include the time outside the
      engine (`PoolSpec.outside_ns`), which lies before the first token.
    * `max_gap_ns`: longest gap between two tokens; 0 with one token.
    * `replica`: where it ended; `prefill_replica`: where its first token came from.
    * `hit_tokens`: prompt tokens found in the prefix cache of the chip when it first joined, and
      `tier_hit_tokens` those in its lower tiers.
    * `output_tokens`: tokens sent: those asked for when it ended, fewer when it failed.
    * `preemptions`, `moves`: times it lost its cache, its replica.
    * `transfer_ns`: time from the first token until its cache had reached the decoding replica.

    `gap_counts[m, b]` counts gaps between successive tokens of one request, over all requests of model m, in
    bin b (`gap_bin`, 0.8 % wide): inter-token latencies; the mean of a request is
    (finish - first) / (tokens - 1).
    """

    state: IntArray
    admitted_ns: IntArray
    first_token_ns: IntArray
    finish_ns: IntArray
    max_gap_ns: IntArray
    replica: IntArray
    prefill_replica: IntArray
    hit_tokens: IntArray
    tier_hit_tokens: IntArray
    output_tokens: IntArray
    preemptions: IntArray
    moves: IntArray
    transfer_ns: IntArray
    gap_counts: IntArray
    replicas: ReplicaTotals
    samples: Samples
    end_ns: int
    log: EventLog | None = None

    def gap_percentile_ns(self, percent: float, model: int | None = None) -> float:
        """A percentile of gaps between tokens (of one model), the middle of its bin; NaN without gaps."""
        counts = self.gap_counts.sum(axis=0) if model is None else self.gap_counts[model]
        total = int(counts.sum())
        if not total:
            return float("nan")
        found = int(np.searchsorted(np.cumsum(counts), max(percent / 100.0 * total, 1.0)))
        low, high = gap_bin_edges_ns()[found : found + 2]
        return float(low + high - 1) / 2.0


GAP_SUB_BITS: Final = 7
NUM_GAP_BINS: Final = (1 << GAP_SUB_BITS) * 40


def gap_bin(gap_ns: int) -> int:
    """The bin of a gap: exact below 128 ns, then 128 bins an octave; the last takes all beyond 19 hours."""
    shift = max(gap_ns.bit_length() - 1 - GAP_SUB_BITS, 0)
    return min((shift << GAP_SUB_BITS) + (gap_ns >> shift), NUM_GAP_BINS - 1)


def gap_bin_edges_ns() -> IntArray:
    """Lower edges of all bins, and the end of the last; length `NUM_GAP_BINS` + 1."""
    index = np.arange(NUM_GAP_BINS + 1, dtype=np.int64)
    shift = np.maximum((index >> GAP_SUB_BITS) - 1, 0)
    edges: IntArray = (index - (shift << GAP_SUB_BITS)) << shift
    return edges
