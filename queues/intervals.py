"""Values of ranges of numbers, found by any number of a range. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class IntervalMap(Generic[V]):
    """Disjoint ranges of consecutive numbers, in order, and a value of each. A range costs one entry, however long."""

    __slots__ = ("_entries", "_starts")

    def __init__(self) -> None:
        self._entries: list[tuple[range, V]] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[range, V]]:
        return iter(self._entries)

    def add(self, numbers: range, value: V) -> None:
        """Add a range that overlaps with none of the others."""
        n = bisect_right(self._starts, numbers.start)
        self._entries.insert(n, (numbers, value))
        self._starts.insert(n, numbers.start)

    def find(self, number: int) -> tuple[range, V] | None:
        """The range that has this number, and its value."""
        n = bisect_right(self._starts, number) - 1
        if n < 0:
            return None
        entry = self._entries[n]
        return entry if number < entry[0].stop else None

    def cut(self, numbers: range) -> None:
        """Leave of the range that has these numbers what is before and behind them."""
        n = bisect_right(self._starts, numbers.start) - 1
        own, value = self._entries[n]
        rest = [part for part in (range(own.start, numbers.start), range(numbers.stop, own.stop)) if part]
        self._entries[n : n + 1] = [(part, value) for part in rest]
        self._starts[n : n + 1] = [part.start for part in rest]

    def clear(self) -> None:
        """Remove all ranges."""
        self._entries.clear()
        self._starts.clear()
