"""When deliveries come back by themselves."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Agenda(Generic[T]):
    """Objects to look at, each at one time: objects that are not due cost nothing, however many there are."""

    __slots__ = ("_heap", "_number", "_times")

    def __init__(self) -> None:
        self._times: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._times)

    def at(self, thing: T, time: float) -> None:
        """Look at it at this time, unless that is to happen earlier already."""
        known = self._times.get(thing)
        if known is None or time < known:
            self._times[thing] = time
            heapq.heappush(self._heap, (time, next(self._number), thing))

    def due(self, now: float) -> list[T]:
        """Take the objects that are due."""
        found: list[T] = []
        while self._heap and self._heap[0][0] <= now:
            time, _, thing = heapq.heappop(self._heap)
            if self._times.get(thing) == time:  # else it was looked at earlier
                del self._times[thing]
                found.append(thing)
        return found


class BurstDeadlines:
    """Deadlines that follow from the number of attempts and the time of delivery: one entry for each burst."""

    __slots__ = ("_bursts", "_key", "_open")

    def __init__(self) -> None:
        #: For each number of earlier attempts: (deadline, tags), in order of deadline.
        self._bursts: dict[int, deque[tuple[float, list[Sequence[int]]]]] = {}
        self._open: list[Sequence[int]] = []
        self._key: tuple[float, int] | None = None

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        return min((bursts[0][0] for bursts in self._bursts.values() if bursts), default=None)

    def is_open(self, now: float, attempts: int) -> bool:
        """Whether deliveries of this moment have a deadline already; then call `join`."""
        return self._key == (now, attempts)

    def begin(self, now: float, attempts: int, deadline: float) -> None:
        """A burst with this deadline."""
        self._key = (now, attempts)
        self._open = []
        self._bursts.setdefault(attempts, deque()).append((deadline, self._open))

    def join(self, tags: Sequence[int]) -> None:
        """Add deliveries to the open burst."""
        self._open.append(tags)

    def expired(self, now: float) -> Iterator[int]:
        """Take the deadlines that are due."""
        for bursts in self._bursts.values():
            while bursts and bursts[0][0] <= now:
                yield from chain.from_iterable(bursts.popleft()[1])

    def clear(self) -> None:
        self._bursts.clear()
        self._key = None


class Holder(Protocol):
    """The owner of deliveries that have a deadline."""

    def expired(self, tags: list[int]) -> None:
        """Deliveries were not finished in time and have been taken back."""


class MovableDeadlines:
    """Deadlines that a holder may move. A moved delivery is looked at at its first time and put off then."""

    __slots__ = ("_due", "_number", "moved")

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Sequence[int], Holder]] = []
        self.moved: dict[int, float] = {}
        self._number = count()

    @property
    def next(self) -> float | None:
        """The earliest time at which a delivery is to be looked at."""
        return self._due[0][0] if self._due else None

    def add(self, deadline: float, tags: Sequence[int], holder: Holder) -> None:
        """Set the deadline of these deliveries."""
        heapq.heappush(self._due, (deadline, next(self._number), tags, holder))

    def move(self, tag: int, deadline: float) -> None:
        """Move a deadline, never to an earlier time."""
        self.moved[tag] = deadline

    def drop(self, tag: int) -> None:
        """Drop the deadline of a finished delivery."""
        self.moved.pop(tag, None)

    def expired(self, now: float) -> Iterator[tuple[list[int], Holder]]:
        """Take the due deliveries with their holders; finished ones may be among them."""
        while self._due and self._due[0][0] <= now:
            _, _, tags, holder = heapq.heappop(self._due)
            due = []
            for tag in tags:
                moved = self.moved.get(tag)
                if moved is None or moved <= now:
                    self.moved.pop(tag, None)
                    due.append(tag)
                else:
                    self.add(moved, (tag,), holder)
            if due:
                yield due, holder

    def clear(self) -> None:
        self._due.clear()
        self.moved.clear()
