"""What both simulators need of requests and deployment before they begin, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.sim.serving.deployment import Deployment, PoolSpec
from groundplane.sim.serving.outcome import IntArray
from groundplane.sim.serving.requests import Requests
from groundplane.spec.errors import InputError

NEAREST_SAMPLE_NS: Final = 1_000_000
USUAL_SAMPLES: Final = 256

SGLANG_CLIP_TOKENS: Final = 4096
"""Most of an output that SGLang's admission counts with (its CLIP_MAX_NEW_TOKENS)."""

SGLANG_RATIO_START: Final = 700
SGLANG_RATIO_LEAST: Final = 98
"""Permille of the rest of running outputs that SGLang sets aside: it starts at 0.7, falls by one permille a
decoding iteration to 0.14 x 0.7, and starts again when a request was retracted (its new_token_ratio)."""


@dataclass(frozen=True)
class Prepared:
    """Requests and deployment with what follows from both.

    `num_hashes[i]` are the usable hashes of request i; `pool_of[r]` the pool of replica r; `unit_blocks[p]`
    blocks a hash block in pool p; `most_tokens[p]` tokens of the longest sequence that pool p can hold.
    """

    requests: Requests
    deployment: Deployment
    num_hashes: IntArray
    pool_of: IntArray
    unit_blocks: IntArray
    most_tokens: IntArray
    num_models: int
    sample_ns: int
    session: IntArray
    num_sessions: int

    @property
    def num_replicas(self) -> int:
        """Replicas that can ever be."""
        return len(self.pool_of)

    @property
    def start_ns(self) -> int:
        """When it begins: at the first arrival."""
        return int(self.requests.arrival_ns[0]) if len(self.requests) else 0

    def failures(self) -> list[tuple[int, int, int]]:
        """(time, replica, time down) of each failure from the start on, in order."""
        first = np.searchsorted(self.pool_of, np.arange(len(self.deployment.pools)))
        found = [
            (failure.at_ns, int(first[failure.pool]) + failure.replica, failure.down_ns)
            for failure in self.deployment.failures
        ]
        return sorted(failure for failure in found if failure[0] >= self.start_ns)

    def longest(self) -> IntArray:
        """Tokens of the longest sequence of each model that can be served, -1 where none."""
        longest = np.full(self.num_models, -1, dtype=np.int64)
        for model in range(self.num_models):
            by_leg = [
                [
                    int(self.most_tokens[index])
                    for index, pool in enumerate(self.deployment.pools)
                    if pool.model == model and (pool.role == "decode") == decode
                ]
                for decode in (False, True)
            ]
            longest[model] = min((max(leg) for leg in by_leg if leg), default=-1)
        return longest


def prepare(requests: Requests, deployment: Deployment, sample_ns: int | None = None) -> Prepared:
    """Checks both and what they are to each other.

    Raises:
        InputError: as their own checks; a model that nothing serves; hash blocks that are no multiple of a
            pool's blocks.
    """
    deployment.checked()
    models = sorted({pool.model for pool in deployment.pools})
    known = np.isin(requests.model, models)
    if not known.all():
        first = int(np.argmin(known))
        raise InputError(
            f"must be a model of the deployment: {models}",
            field=f"model[{first}]",
            value=int(requests.model[first]),
        )
    pools = deployment.pools
    units = np.array(
        [_unit_blocks(pool, requests, index) for index, pool in enumerate(pools)], dtype=np.int64
    )
    whole = requests.prompt_tokens + requests.output_tokens - 1
    hashes = np.minimum(np.diff(requests.block_offsets), whole // requests.hash_block_tokens)
    sessions, dense = np.unique(requests.session, return_inverse=True)
    none = len(sessions) > 0 and sessions[0] < 0
    span_ns = int(requests.arrival_ns[-1] - requests.arrival_ns[0]) if len(requests) else 0
    return Prepared(
        requests=requests,
        deployment=deployment,
        num_hashes=hashes,
        pool_of=np.repeat(np.arange(len(pools)), [pool.max_replicas for pool in pools]),
        unit_blocks=units,
        most_tokens=np.array(
            [min(pool.cache.num_blocks * pool.cache.block_tokens, pool.table.max_context) for pool in pools],
            dtype=np.int64,
        ),
        num_models=max(models) + 1,
        sample_ns=sample_ns or max(span_ns // USUAL_SAMPLES, NEAREST_SAMPLE_NS),
        session=dense.astype(np.int64) - int(none),
        num_sessions=len(sessions),
    )


def _unit_blocks(pool: PoolSpec, requests: Requests, index: int) -> int:
    if not pool.cache.prefix or len(requests.block_hashes) == 0:
        return 1
    blocks, rest = divmod(requests.hash_block_tokens, pool.cache.block_tokens)
    if rest:
        raise InputError(
            f"must divide the {requests.hash_block_tokens} tokens of a hash block",
            field=f"pools[{index}].cache.block_tokens",
            value=pool.cache.block_tokens,
        )
    return blocks
