"""The consumers of a queue with a single active one: those of this node, in the line of all nodes.

The line is a table, `queues_consumer`; the first consumer in it is the active one, and stays that until it ends. Then
its queue gives it nothing more, and what it has goes back in place. Its row is removed once that is in the store, and
what it has settled too; the same transaction makes the next one active, on whatever node. A node's rows go in the
transaction that returns a dead node's leases. So two consumers are never active at once, and order is kept.

A `Line` is owned by its prefetched queue; `cluster/lines.py` is the job that keeps the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from queues.engine.clients import ClientConnection
from queues.engine.clock import wait_for
from queues.engine.consume.deliveries import Deliveries
from queues.engine.consume.dispatch import Dispatcher
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.prefetch import Prefetch, ServedQueue
from queues.engine.settle.writer import SettlementWriter


@runtime_checkable
class Connected(Protocol):
    """A consumer that operators see as a client's connection. Other objects may be consumers, too."""

    @property
    def client(self) -> ClientConnection:
        """The connection."""


class LineChanges:
    """This node's lines, and the numbers of consumers to remove from the table."""

    def __init__(self) -> None:
        self.lines: dict[Line, None] = {}
        self.gone: list[int] = []
        self._told = asyncio.Event()

    def note(self, line: Line) -> None:
        """Consumers of this queue have come or ended."""
        self.lines[line] = None
        self._told.set()

    def drop(self, line: Line) -> None:
        """Drop a line, because its queue no longer has one."""
        del self.lines[line]

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove these consumers from the table."""
        self.gone += [number for number in numbers if number]
        self._told.set()

    def removed(self, count: int) -> None:
        """Note that the first of them are removed."""
        del self.gone[:count]

    def forget(self) -> None:
        """The node has ended, and its rows with it."""
        self.gone.clear()

    def look(self) -> None:
        """Other consumers may be active now."""
        self._told.set()

    async def wait(self, most: float | None) -> None:
        """Wait up to `most` seconds for a change."""
        await wait_for(self._told, most)
        self._told.clear()


class Line:
    """This node's consumers of one queue."""

    __slots__ = (
        "_changes", "_deliveries", "_dispatcher", "_held", "_numbers", "_prefetch", "_queue", "_settled_in",
        "_settlements", "active", "ended", "former", "queue_id",
    )  # fmt: skip

    def __init__(
        self, queue: ServedQueue, held: HeldMessages, prefetch: Prefetch, deliveries: Deliveries,
        dispatcher: Dispatcher, settlements: SettlementWriter, changes: LineChanges,
    ) -> None:  # fmt: skip
        """Begin with a single active consumer. Other consumers keep the messages that they have."""
        self.queue_id = queue.policy.id
        self._queue = queue
        self._held = held
        self._prefetch = prefetch
        self._deliveries = deliveries
        self._dispatcher = dispatcher
        self._settlements = settlements
        self._changes = changes
        #: The consumers in order of arrival, with their numbers in the table. 0: not in the table yet.
        self._numbers: dict[object, int] = {}
        self.active: object | None = None
        #: The active consumer that has ended, and its number, until none of its messages is under way.
        self.former: tuple[object, int] | None = None
        #: The settlement round that makes its acknowledgements durable; None while it has messages.
        self._settled_in: int | None = None
        #: Whether every consumer is served again.
        self.ended = False
        for consumer in dispatcher.serve_only(None, self.enter):
            self.enter(consumer)
        prefetch.return_all()

    # Called by consumers.

    def enter(self, consumer: object) -> None:
        """Add a consumer to the line; a no-op if it is in it."""
        if consumer not in self._numbers:
            self._numbers[consumer] = 0
            self._changes.note(self)

    def leave(self, consumer: object, finish: bool, count: bool, keep_tags: bool) -> None:
        """Remove a consumer, as `PrefetchedQueue.leave` says."""
        number = self._numbers.pop(consumer, 0)
        if consumer is self.active:
            self.former, self.active, self._settled_in = (consumer, number), None, None
            self._dispatcher.serve_only(None, self.enter)
            self._prefetch.return_all()
        elif number:
            self._changes.remove([number])
        if self.former is not None and self.former[0] is consumer:
            if not finish:
                self._deliveries.return_all(count, keep_tags)
            self._changes.note(self)

    def may_serve(self, consumer: object) -> bool:
        """Whether a consumer is active, or on its way into the table, where it may become the first."""
        number = self._numbers.get(consumer)
        return number == 0 or (number is not None and consumer is self.active)

    # Called by the job that keeps the table.

    @property
    def newcomers(self) -> list[object]:
        """The consumers that are not in the table yet."""
        return [consumer for consumer, number in self._numbers.items() if not number]

    def arrive(self, consumer: object, number: int) -> bool:
        """A consumer is in the table now; False if it has ended meanwhile, or is there twice."""
        if self.ended or self._numbers.get(consumer) != 0:
            return False
        self._numbers[consumer] = number
        return True

    @property
    def awaits_turn(self) -> bool:
        """Whether a consumer of this node may become the active one."""
        return bool(self._numbers) and self.active is None and self.former is None

    def elect(self, number: int | None) -> None:
        """The table says that this consumer is the active one; None: it is not here."""
        active = next((one for one, known in self._numbers.items() if known == number), None) if number else None
        if active is None or self.active is not None or self.ended:
            self._prefetch.refilled()
            return
        self.active = active
        self._dispatcher.serve_only(active, self.enter)
        self._prefetch.more_in_store(FIRST)

    @property
    def delivering(self) -> bool:
        """Whether consumers have unsettled messages."""
        return bool(self._held.unacked)

    def hand_over(self) -> int:
        """The number of the last active consumer, once all its messages are settled or back in the store; 0 before."""
        assert self.former is not None
        prefetch, settlements, audited = self._prefetch, self._settlements, self._queue.audited
        if self._held.ready:  # they were on their way
            prefetch.return_all()
        if self._held.unacked or prefetch.backlog.claiming or prefetch.in_transit:
            return 0
        if self._settled_in is None:
            self._settled_in = settlements.round if audited is None else audited.settling
            settlements.hurry()
        if settlements.settles(self._settled_in):
            return 0
        (_, number), self.former, self._settled_in = self.former, None, None
        return number

    # Called by the prefetched queue.

    def end(self) -> None:
        """Every consumer is served again."""
        self.ended = True
        former = self.former[1] if self.former else 0
        self._changes.remove([*self._numbers.values(), former])
        self._dispatcher.serve_all()

    def close(self) -> None:
        """The queue was removed, and its rows with it."""
        self.ended = True

    def lose(self) -> None:
        """The node has ended, and its rows with it. Its consumers enter the table again."""
        self._numbers = dict.fromkeys(self._numbers, 0)
        self.active = self.former = self._settled_in = None
        self._dispatcher.serve_only(None, self.enter)
        self._changes.note(self)
