"""Times at which something is looked at: deliveries that are due back, and queues that consumers may have left.

`Deadlines` is one heap for all queues of a node: what is not due costs nothing, however many queues there are. Nothing
is taken out before its time. Deliveries share an entry if they were made at once, and may be finished when it is due;
who moves a deadline notes the new one, and sets it when the old one is due.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Things to look at, each at its time."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, thing: T) -> None:
        """Look at it at this time."""
        heapq.heappush(self._heap, (time, next(self._number), thing))

    def due(self, now: float) -> list[tuple[float, T]]:
        """Take what is due, with its time."""
        found: list[tuple[float, T]] = []
        while self._heap and self._heap[0][0] <= now:
            time, _, thing = heapq.heappop(self._heap)
            found.append((time, thing))
        return found

    def clear(self) -> None:
        self._heap.clear()
