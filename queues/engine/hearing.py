"""What this node does about each notification of other nodes and of operators.

A notification says where to look: a changed queue, and a node that serves it or no longer does, are read anew from
the tables, all that changed meanwhile at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from queues.engine.control import Handler
from queues.engine.errors import StoreUnavailable
from queues.engine.floor import FIRST
from queues.engine.notifications import (
    Ack,
    Changed,
    Dead,
    Evicted,
    Gone,
    Interest,
    MailboxTaken,
    Purge,
    Ready,
    Transient,
)

if TYPE_CHECKING:
    from queues.engine.engine import Engine

#: Queues whose policies are read in one statement.
READ_AT_ONCE = 1000


class Hearing:
    """One handler for each type of notification."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Queues that are to be read anew, in the order in which that was heard.
        self._changed: dict[int, None] = {}
        self._reading: asyncio.Task[None] | None = None

    def handlers(self) -> dict[type, Handler]:
        """What to do for each type of notification."""
        subscriptions = self._engine.subscriptions
        return {
            Ready: self._ready,
            Dead: self._dead,
            Changed: self._table_changed,
            Interest: self._interest,
            Gone: self._gone,
            Transient: subscriptions.hear_transient,
            Ack: subscriptions.hear_ack,
            Purge: self._purge,
            Evicted: self._evicted,
            MailboxTaken: self._mailbox,
        }

    def _ready(self, news: Ready) -> None:
        for queue, first_id in news.queues.items():
            if (buffer := self._engine.buffers.get(queue)) is not None:
                buffer.more_in_store(first_id)
            elif self._engine.mailroom is not None:
                self._engine.mailroom.more_in_store(queue, first_id)

    def _dead(self, news: Dead) -> None:
        for queue in news.queues:
            if (buffer := self._engine.dead_buffers.get(queue)) is not None:
                buffer.more_in_store(FIRST)

    def _table_changed(self, changed: Changed) -> None:
        if changed.table == "queue":
            self._read_anew([changed.id])
        elif changed.table == "key":
            self._engine.look_at_keys()  # any role can say so: the table tells which one changed, if any
        elif changed.table == "subscription":
            self._engine.subscriptions.forget(changed.id)
        elif changed.table == "periodic":
            for call in self._engine.on_periodic_change:
                call()

    def _interest(self, interest: Interest) -> None:
        if interest.node != self._engine.node:
            self._read_anew(interest.queues)

    def _gone(self, gone: Gone) -> None:
        interest = self._engine.topology.interest
        self._read_anew([queue for queue, nodes_of in interest.items() if gone.node in nodes_of])

    def _read_anew(self, queues: Iterable[int]) -> None:
        """Read the policies of these queues, and who serves them, if they are known here."""
        concerns = self._engine.topology.concerns
        self._changed.update((queue, None) for queue in queues if concerns(queue))
        if self._changed and self._reading is None:
            self._reading = asyncio.create_task(self._read_changed())
            self._reading.add_done_callback(self._read)

    async def _read_changed(self) -> None:
        try:
            while self._changed:
                some = list(self._changed)[:READ_AT_ONCE]
                for queue in some:
                    del self._changed[queue]
                await self._engine.reread(some)
        finally:
            self._reading = None  # here, not in the callback: a change that is heard between the two begins a reading

    def _read(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(StoreUnavailable, asyncio.CancelledError):  # coming back reads all of them
            task.result()

    def _mailbox(self, taken: MailboxTaken) -> None:
        """A mailbox was taken. What this node does itself it knows already, or will in a moment."""
        if self._engine.mailroom is not None and taken.node != self._engine.node:
            self._engine.mailroom.hear_taken(taken.queue, taken.connection)

    def _evicted(self, evicted: Evicted) -> None:
        """An operator ended a peer's connection."""
        if self._engine.mailroom is not None:
            self._engine.mailroom.hear_evicted(evicted.queue, evicted.connection)

    def _purge(self, purge: Purge) -> None:
        """An operator purged the queue: what is in memory, was there then, and is not delivered goes too."""
        if (buffer := self._engine.buffers.get(purge.queue)) is not None:
            self._engine.settler.purge(buffer.purge(purge.high), purge.by)
