"""The consumers of a queue with a single active one: those of this node, in the line of all nodes.

The line is a table, `queues_consumer`; the first consumer in it is the active one, and stays that until it ends. Then
its queue gives it nothing more, and what it has goes back in place. Its row is removed once that is in the store, and
what it has settled too; the same transaction makes the next one active, on whatever node. A node's rows go in the
transaction that returns a dead node's leases. So two consumers are never active at once, and order is kept.

A `Line` is owned by its local queue; `cluster/lines.py` is the job that keeps the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar, runtime_checkable

from queues.engine.clients import ClientConnection
from queues.engine.clock import wait_for

T = TypeVar("T")


@runtime_checkable
class Connected(Protocol):
    """A consumer that operators see as a client's connection. Any other object may be a consumer, too."""

    @property
    def client(self) -> ClientConnection:
        """The connection."""


class LineChanges(Generic[T]):
    """Queues that may have a line here, and numbers of consumers that are to be removed from the table."""

    def __init__(self) -> None:
        self.queues: dict[T, None] = {}
        self.gone: list[int] = []
        self._told = asyncio.Event()

    def note(self, queue: T) -> None:
        """Consumers of this queue have come or ended."""
        self.queues[queue] = None
        self._told.set()

    def drop(self, queue: T) -> None:
        """This queue has no line any more."""
        del self.queues[queue]

    def remove(self, numbers: Iterable[int]) -> None:
        """These consumers are to be removed."""
        self.gone += [number for number in numbers if number]
        self._told.set()

    def removed(self, count: int) -> None:
        """The first of them are."""
        del self.gone[:count]

    def forget(self) -> None:
        """The node has ended, and its rows with it."""
        self.gone.clear()

    def look(self) -> None:
        """Other consumers may be active now."""
        self._told.set()

    async def wait(self, most: float | None) -> None:
        """Wait for a change, so many seconds at most."""
        await wait_for(self._told, most)
        self._told.clear()


class Line:
    """This node's consumers of one queue."""

    __slots__ = ("_numbers", "active", "former", "settled_in")

    def __init__(self) -> None:
        #: By consumer its number in the table; 0 while it is not there. In the order in which they came.
        self._numbers: dict[object, int] = {}
        self.active: object | None = None
        #: The active consumer that has ended, and its number, until nothing of what it had is under way.
        self.former: tuple[object, int] | None = None
        #: The settlement round after which its acknowledgements are durable; None while it has messages.
        self.settled_in: int | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def enter(self, consumer: object) -> bool:
        """A consumer stands in line from now on; False if it does already."""
        if consumer in self._numbers:
            return False
        self._numbers[consumer] = 0
        return True

    def end(self, consumer: object) -> int:
        """A consumer takes nothing more. Returns the number to be removed at once: 0 for the active one, which has a
        successor when `hand_over` is called, and for one that is not in the table."""
        number = self._numbers.pop(consumer, 0)
        if consumer is self.active:
            self.former, self.active, self.settled_in = (consumer, number), None, None
            return 0
        return number

    def settles_in(self, round: int) -> None:
        """All that the former consumer had is settled or on its way back: it is in the store after this round."""
        self.settled_in = round

    def hand_over(self) -> int:
        """Nothing of what the former consumer had is under way: its number, to be removed."""
        assert self.former is not None
        (_, number), self.former, self.settled_in = self.former, None, None
        return number

    def is_former(self, consumer: object) -> bool:
        """Whether this is the active consumer that has ended."""
        return self.former is not None and self.former[0] is consumer

    def may_serve(self, consumer: object) -> bool:
        """Whether a consumer is the active one, or on its way into the table, where it may be the first."""
        number = self._numbers.get(consumer)
        return number == 0 or (number is not None and consumer is self.active)

    @property
    def newcomers(self) -> list[object]:
        """The consumers that are not in the table."""
        return [consumer for consumer, number in self._numbers.items() if not number]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all that are in the table."""
        return [number for number in (*self._numbers.values(), self.former[1] if self.former else 0) if number]

    def arrive(self, consumer: object, number: int) -> bool:
        """A consumer is in the table now; False if it has ended meanwhile, or is there twice."""
        if self._numbers.get(consumer) != 0:
            return False
        self._numbers[consumer] = number
        return True

    def elect(self, number: int) -> object | None:
        """The table says that this consumer is the active one. Returns it if that is new."""
        if self.active is None:
            for consumer, known in self._numbers.items():
                if known == number:
                    self.active = consumer
                    return consumer
        return None

    def lose(self) -> None:
        """The node has ended, and its rows with it: its consumers come anew."""
        self._numbers = dict.fromkeys(self._numbers, 0)
        self.active = self.former = self.settled_in = None
