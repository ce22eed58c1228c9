"""What arrives: requests as arrays, in order of arrival. Knows nothing of files, generators or engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from groundplane.spec.errors import InputError

IntArray = NDArray[np.int64]

MAX_TOKENS: Final = 1 << 24
"""Most tokens of a prompt or an output."""

MAX_PRIORITY: Final = 1000
"""Priorities lie between minus this and this; higher ones go first, as everywhere in Groundplane."""


@dataclass(frozen=True)
class Requests:
    """n requests, sorted by arrival; every array is int64 of length n unless said otherwise.

    `block_hashes[block_offsets[i]:block_offsets[i + 1]]` are the prefix hashes of request i: hash j names its
    first (j + 1) x `hash_block_tokens` tokens, so two requests with equal hash j have equal tokens up to
    there. They may go on into the output (the next turn of a conversation finds them). Only whole blocks
    count: a last hash that reaches beyond prompt + output is not used. `block_offsets` has length n + 1.

    `model` indexes the models of the deployment; `session` is -1 without one.
    """

    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    model: IntArray
    priority: IntArray
    session: IntArray
    block_hashes: IntArray
    block_offsets: IntArray
    hash_block_tokens: int = 16

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @staticmethod
    def of(
        arrival_ns: IntArray,
        prompt_tokens: IntArray,
        output_tokens: IntArray,
        *,
        model: IntArray | None = None,
        priority: IntArray | None = None,
        session: IntArray | None = None,
        block_hashes: IntArray | None = None,
        block_offsets: IntArray | None = None,
        hash_block_tokens: int = 16,
    ) -> Requests:
        """Requests with what is not given filled in: model 0, priority 0, no session, no hashes.

        Raises:
            InputError: as `checked`.
        """
        count = len(arrival_ns)

        def filled(given: IntArray | None, value: int, length: int = count) -> IntArray:
            return np.full(length, value, np.int64) if given is None else _whole(given)

        return Requests(
            _whole(arrival_ns),
            _whole(prompt_tokens),
            _whole(output_tokens),
            filled(model, 0),
            filled(priority, 0),
            filled(session, -1),
            filled(block_hashes, 0, 0),
            filled(block_offsets, 0, count + 1),
            hash_block_tokens,
        ).checked()

    def checked(self) -> Requests:
        """The requests, if they are sound.

        Raises:
            InputError: arrays of other lengths, arrivals that go back or are negative, no tokens in or out,
                priorities out of range, offsets that do not fit the hashes. Names the first bad request.
        """
        count = len(self)
        for name in ("prompt_tokens", "output_tokens", "model", "priority", "session"):
            if len(getattr(self, name)) != count:
                raise InputError(f"must have {count} entries, as arrivals", field=name)
        if self.hash_block_tokens < 1:
            raise InputError("must be at least 1", field="hash_block_tokens", value=self.hash_block_tokens)
        _each(self.arrival_ns, self.arrival_ns >= 0, "arrival_ns", "must not be negative")
        order = np.concatenate([[True], np.diff(self.arrival_ns) >= 0])[:count]
        _each(self.arrival_ns, order, "arrival_ns", "must not be before the one of the request before it")
        for name in ("prompt_tokens", "output_tokens"):
            values = getattr(self, name)
            _each(values, (values >= 1) & (values <= MAX_TOKENS), name, f"must be 1 to {MAX_TOKENS}")
        _each(self.model, self.model >= 0, "model", "must not be negative")
        fits = np.abs(self.priority) <= MAX_PRIORITY
        _each(self.priority, fits, "priority", f"must be -{MAX_PRIORITY} to {MAX_PRIORITY}")
        offsets = self.block_offsets
        if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(self.block_hashes):
            raise InputError("must begin with 0 and end with the number of hashes", field="block_offsets")
        _each(offsets[1:], np.diff(offsets) >= 0, "block_offsets", "must not go back")
        return self

    def take(self, chosen: NDArray[np.bool_]) -> Requests:
        """Those of the requests that a mask chooses, in their order."""
        lengths = np.diff(self.block_offsets)
        offsets = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
        return Requests(
            self.arrival_ns[chosen],
            self.prompt_tokens[chosen],
            self.output_tokens[chosen],
            self.model[chosen],
            self.priority[chosen],
            self.session[chosen],
            self.block_hashes[np.repeat(chosen, lengths)],
            offsets,
            self.hash_block_tokens,
        )


def _whole(values: IntArray) -> IntArray:
    return np.ascontiguousarray(values, dtype=np.int64)


def _each(values: IntArray, good: NDArray[np.bool_], field: str, rule: str) -> None:
    if not good.all():
        first = int(np.argmin(good))
        raise InputError(rule, field=f"{field}[{first}]", value=int(values[first]))
