"""A list that stays sorted while items come and go, by cutting it into chunks of bounded length.

Adding or removing one of n items costs about the square root of n steps at worst, and in practice a few
microseconds at a million. Knows nothing of what it holds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from groundplane.spec.errors import InvariantError

CHUNK_LENGTH = 512
"""A chunk of twice this length is cut in two."""


class Ordered(Protocol):
    """Whatever can be compared with its like."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether it comes before `other`."""


ItemT = TypeVar("ItemT", bound=Ordered)


class SortedList(Generic[ItemT]):
    """Items in ascending order; equal items may be there more than once."""

    __slots__ = ("_chunks", "_lasts", "_length")

    def __init__(self, items: Iterable[ItemT] = ()) -> None:
        ordered = sorted(items) if items else []
        self._length = len(ordered)
        self._chunks = [ordered[at : at + CHUNK_LENGTH] for at in range(0, len(ordered), CHUNK_LENGTH)]
        self._lasts = [chunk[-1] for chunk in self._chunks]

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: ItemT) -> bool:
        at = bisect_left(self._lasts, item)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        return place < len(chunk) and chunk[place] == item

    def __iter__(self) -> Iterator[ItemT]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> ItemT:
        """The smallest item.

        Raises:
            IndexError: there is none.
        """
        return self._chunks[0][0]

    def at(self, index: int) -> ItemT | None:
        """The item at an index from 0, None beyond the last; cheap near the beginning."""
        for chunk in self._chunks:
            if index < len(chunk):
                return chunk[index]
            index -= len(chunk)
        return None

    def add(self, item: ItemT) -> None:
        """Puts an item in its place."""
        self._length += 1
        if not self._chunks:
            self._chunks.append([item])
            self._lasts.append(item)
            return
        at = min(bisect_left(self._lasts, item), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, item)
        if len(chunk) >= 2 * CHUNK_LENGTH:
            self._chunks[at : at + 1] = [chunk[:CHUNK_LENGTH], chunk[CHUNK_LENGTH:]]
            self._lasts[at : at + 1] = [chunk[CHUNK_LENGTH - 1], chunk[-1]]
        else:
            self._lasts[at] = chunk[-1]

    def remove(self, item: ItemT) -> None:
        """Takes an item out.

        Raises:
            InvariantError: it is not there.
        """
        at = bisect_left(self._lasts, item)
        chunk = self._chunks[at] if at < len(self._chunks) else []
        place = bisect_left(chunk, item)
        if place == len(chunk) or chunk[place] != item:
            raise InvariantError(f"{item} is not in the list")
        self._length -= 1
        del chunk[place]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
