"""Which tokens each rank sees at each step: a pure function of (seed, step, position in the global batch).

The order does not depend on the number of ranks, on micro batches or on what ran before, so the
whole state of the data is the step. No sample list is kept: the shuffle is a keyed permutation that is
computed for the few indices a step needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundplane.spec.errors import InputError

_ROUNDS = 6
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Batch:
    """One micro batch of one rank: `inputs` and `targets`, both int64 of shape (micro_batch, seq)."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


class TokenData:
    """Packed sequences of `seq` + 1 tokens out of one memory-mapped file.

    Sample i is tokens[i * seq : i * seq + seq + 1]: neighbours share one token, so every token but the first
    is a target exactly once an epoch.

    Args:
        path: the token file.
        dtype: "uint16" or "uint32".
        seq: tokens a sequence.
        seed: key of the shuffle.

    Raises:
        InputError: the file holds less than one sequence.
    """

    def __init__(self, path: Path, dtype: str, seq: int, seed: int) -> None:
        self._tokens = np.memmap(path, dtype=dtype, mode="r")
        self._seq = seq
        self._seed = seed
        self.num_samples = (len(self._tokens) - 1) // seq
        if self.num_samples < 1:
            raise InputError(
                f"the data has {len(self._tokens)} tokens and must have more than seq", field="seq", value=seq
            )

    def indices(self, step: int, global_batch: int) -> NDArray[np.int64]:
        """The samples of one step in the order of the global batch, shape (global_batch,).

        Args:
            step: steps done before this one, from 0.
            global_batch: sequences a step.
        """
        return sample_indices(self._seed, step, global_batch, self.num_samples)

    def batch(self, samples: NDArray[np.int64]) -> Batch:
        """The tokens of the given samples, shape (len(samples), seq) twice."""
        starts = samples[:, None] * self._seq + np.arange(self._seq + 1)[None, :]
        rows = self._tokens[starts].astype(np.int64)
        return Batch(inputs=np.ascontiguousarray(rows[:, :-1]), targets=np.ascontiguousarray(rows[:, 1:]))


def sample_indices(seed: int, step: int, global_batch: int, num_samples: int) -> NDArray[np.int64]:
    """The samples of one step, shape (global_batch,); each epoch is another permutation of all samples."""
    positions = step * global_batch + np.arange(global_batch, dtype=np.int64)
    epochs, within = np.divmod(positions, num_samples)
    order = np.empty(global_batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        order[chosen] = permute(within[chosen], num_samples, key=(seed, int(epoch)))
    return order


def rank_slice(
    samples: NDArray[np.int64], micro: int, rank: int, world_size: int, micro_batch: int
) -> NDArray[np.int64]:
    """The part of a global batch that one rank trains in one micro step.

    Micro step k covers positions [k * world_size * micro_batch, (k + 1) * ...), split evenly by rank.
    """
    start = (micro * world_size + rank) * micro_batch
    return samples[start : start + micro_batch]


def permute(values: NDArray[np.int64], size: int, key: tuple[int, int]) -> NDArray[np.int64]:
    """A keyed permutation of range(size), evaluated at `values`.

    A balanced Feistel network over the smallest even number of bits that holds `size`, walked until the value
    falls below `size` (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, cycle
    walking).
    """
    half_bits = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    keys = _round_keys(key)
    current = values.astype(np.uint64)
    walking = np.ones(len(current), dtype=bool)
    while walking.any():
        left, right = current[walking] >> shift, current[walking] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        current[walking] = (left << shift) | right
        walking = current >= np.uint64(size)
    return current.astype(np.int64)


def _round_keys(key: tuple[int, int]) -> list[np.uint64]:
    state = (key[0] * 0x9E3779B97F4A7C15 + key[1] * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK64
    keys = []
    for _ in range(_ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _MASK64
        keys.append(np.uint64(_mix(np.array([state], dtype=np.uint64))[0]))
    return keys


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit moves every output
    bit."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
