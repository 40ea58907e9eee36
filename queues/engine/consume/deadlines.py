"""Times at which something is checked: due deliveries, and queues that consumers may have left.

`Deadlines` is one heap for all queues of a node: what is not due costs nothing, however many queues there are. Nothing
is taken out before its time: deliveries share an entry if they were made at once, and may be finished when it is due;
who moves a deadline notes the new one, and sets it when the old one is due.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from queues.engine.clock import now, until_tick
from queues.engine.consume.consumer import PushConsumer
from queues.engine.health import Health

T = TypeVar("T")

#: Seconds between looks; longer while nothing is delivered, because each look wakes the process.
DEADLINES, IDLE = 0.02, 0.125
#: Seconds for clients to acknowledge after they were held up.
GRACE = 0.1


class Deadlines(Generic[T]):
    """A heap of items with times."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._number = count()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, thing: T) -> None:
        """Add an item with its time."""
        heapq.heappush(self._heap, (time, next(self._number), thing))

    def due(self, now: float) -> list[tuple[float, T]]:
        """Take the due items with their times."""
        found: list[tuple[float, T]] = []
        while self._heap and self._heap[0][0] <= now:
            time, _, thing = heapq.heappop(self._heap)
            found.append((time, thing))
        return found

    def clear(self) -> None:
        self._heap.clear()


class Delivering(Protocol):
    """The deliveries of the queue of a burst."""

    @property
    def name(self) -> str:
        """The name of the queue."""

    def expire(self, burst: Burst, time: float) -> None:
        """Return those deliveries that were not acknowledged in time."""


@dataclass(slots=True, eq=False)
class Burst:
    """Deliveries made together, with one deadline: to a consumer, or (None) to those that asked."""

    deliveries: Delivering
    consumer: PushConsumer | None
    tags: list[Sequence[int]]
    #: Time of deliveries to those that asked. When the deadline comes, a tag may belong to a later delivery.
    made: float = 0.0


class DeadlineTimer:
    """Returns deliveries that were due at the last look, on this process's own clock: acknowledgements that had arrived
    by then were read in between, however long this process was held up. While `held_up()`, clients may not be able to
    acknowledge: the clock stands still, and for GRACE seconds more."""

    def __init__(self, deliveries: Deadlines[Burst], health: Health, held_up: Callable[[], bool]) -> None:
        self._deliveries = deliveries
        self._health = health
        self._held_up = held_up
        self._held_up_at = self._looked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look, and go on looking."""
        time = now()
        if self._held_up():
            self._held_up_at = time
        elif time - self._held_up_at > GRACE:
            self._return_overdue(self._looked_at)
            self._looked_at = time
        pause = DEADLINES if self._deliveries else until_tick(IDLE)
        self._timer = asyncio.get_running_loop().call_later(pause, self.start)

    def stop(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _return_overdue(self, time: float) -> None:
        for _, burst in self._deliveries.due(time):
            try:
                burst.deliveries.expire(burst, time)
            except Exception as error:
                self._health.isolate("deadline", error, queue=burst.deliveries.name)
