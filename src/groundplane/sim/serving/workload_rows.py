"""Requests of a workload as columns, before they become what the simulator takes.

Knows nothing of where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass
class RequestRows:
    """`n` requests in the order of their arrival.

    Attributes:
        arrival_ns: (n,) from 0, ascending.
        prompt, output: (n,) tokens, at least 1.
        session: (n,) id of the conversation, -1 without; empty where no request has one.
        priority: (n,) larger goes first; empty where all are alike.
        model: (n,) place in `model_names`; empty where there is one model.
        block_tokens: prompt tokens that one block hash stands for, 0 without hashes.
        block_start: (n + 1,) where each request's hashes begin in `block_hash`; empty without hashes.
        block_hash: hashes of the prompts' blocks; equal ones stand for equal prefixes up to their ends.
        notes: what was done to the data that a person should know.
    """

    arrival_ns: IntArray
    prompt: IntArray
    output: IntArray
    session: IntArray = field(default_factory=_none)
    priority: IntArray = field(default_factory=_none)
    model: IntArray = field(default_factory=_none)
    model_names: tuple[str, ...] = ()
    block_tokens: int = 0
    block_start: IntArray = field(default_factory=_none)
    block_hash: IntArray = field(default_factory=_none)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9 if len(self) else 0.0

    @property
    def rate_per_s(self) -> float:
        """Arrivals a second: n - 1 gaps over the duration; 0 where there is no duration."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps between arrivals, 0 with fewer than two gaps."""
        gaps = np.diff(self.arrival_ns).astype(np.float64)
        return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else 0.0

    def take(self, index: IntArray) -> RequestRows:
        """The requests at `index`, in that order, with their arrivals counted from the first of them."""
        arrival = self.arrival_ns[index]
        start, hashes = self.block_start, self.block_hash
        if len(start):
            counts = (self.block_start[1:] - self.block_start[:-1])[index]
            start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            within = np.arange(start[-1], dtype=np.int64) - np.repeat(start[:-1], counts)
            hashes = self.block_hash[np.repeat(self.block_start[:-1][index], counts) + within]
        return RequestRows(
            arrival - (arrival.min() if len(arrival) else 0),
            self.prompt[index],
            self.output[index],
            self.session[index] if len(self.session) else self.session,
            self.priority[index] if len(self.priority) else self.priority,
            self.model[index] if len(self.model) else self.model,
            self.model_names,
            self.block_tokens,
            start,
            hashes,
            list(self.notes),
        )

    def in_order(self) -> RequestRows:
        """The requests by arrival, ties as they stood."""
        return self.take(np.argsort(self.arrival_ns, kind="stable"))
