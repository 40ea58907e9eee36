"""This node's handlers of the notifications of other nodes and of operators.

A notification only says where to look. Changed queues and the nodes that serve them are read from the tables, all
changes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from queues.engine.clients import Clients
from queues.engine.cluster.lines import Lines
from queues.engine.cluster.notifications import formats
from queues.engine.cluster.notifications.channel import Handler
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.registry import PrefetchedQueues
from queues.engine.consume.subscriptions import Subscriptions
from queues.engine.errors import StoreUnavailable
from queues.engine.grants import Grants
from queues.engine.mailbox.service import MailboxService
from queues.engine.node import LocalNode
from queues.engine.policies import Policies
from queues.engine.settle.writer import SettlementWriter

#: Policies read in one statement.
READ_AT_ONCE = 1000
#: Seconds by which clocks and timers may differ.
MARGIN = 0.001


class PolicyReader:
    """Reads policies of known queues again, by `reread(ids)`."""

    def __init__(self, policies: Policies, reread: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self._policies = policies
        self._reread = reread
        #: Queues to read, in the order of their notifications.
        self._changed: dict[int, None] = {}
        self._reading: asyncio.Task[None] | None = None

    def read(self, queues: Iterable[int]) -> None:
        """Read these soon."""
        self._changed.update((queue, None) for queue in queues if self._policies.concerns(queue))
        if self._changed and self._reading is None:
            self._reading = asyncio.create_task(self._read_changed())
            self._reading.add_done_callback(self._done)

    async def _read_changed(self) -> None:
        try:
            while self._changed:
                some = list(self._changed)[:READ_AT_ONCE]
                for queue in some:
                    del self._changed[queue]
                await self._reread(some)
        finally:
            self._reading = None  # here and not in the callback: a change between the two starts another reading

    def _done(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(StoreUnavailable, asyncio.CancelledError):  # reconnecting reads all of them
            task.result()


@dataclass(eq=False, repr=False)
class Handlers:
    """One handler for each type of notification, in `by_type`."""

    _node: LocalNode
    _policies: Policies
    _reader: PolicyReader
    _prefetched_queues: PrefetchedQueues
    _subscriptions: Subscriptions
    _settlements: SettlementWriter
    _grants: Grants
    _clients: Clients
    _mailboxes: MailboxService
    _lines: Lines
    _on_periodic_change: Sequence[Callable[[], None]]

    @property
    def by_type(self) -> dict[type, Handler]:
        return {
            formats.Ready: self._ready,
            formats.Dead: self._dead,
            formats.Changed: self._table_changed,
            formats.InterestChange: self._interest,
            formats.Gone: self._gone,
            formats.ActiveChanged: lambda _: self._lines.look(),
            formats.Watched: lambda _: self._clients.watch(),
            formats.Transient: self._transient,
            formats.RemoteAck: self._acks,
            formats.Purge: self._purge,
            formats.Disconnected: self._disconnected,
            formats.MailboxLost: self._mailbox_lost,
        }

    def _ready(self, news: formats.Ready) -> None:
        self._look(news.queues)
        if news.followed:  # the server's moment is an earlier one than this, so this look comes late enough
            asyncio.get_running_loop().call_later(formats.FOLLOWING + MARGIN, self._look, news.queues)

    def _look(self, queues: dict[int, int]) -> None:
        for queue, first_id in queues.items():
            if (local := self._prefetched_queues.queues.get(queue)) is not None:
                local.prefetch.more_in_store(first_id)
            else:
                self._mailboxes.more_in_store(queue, first_id)

    def _dead(self, news: formats.Dead) -> None:
        for queue in news.queues:
            if (local := self._prefetched_queues.dead_letters.get(queue)) is not None:
                local.prefetch.more_in_store(FIRST)

    def _table_changed(self, changed: formats.Changed) -> None:
        if changed.table == "queue":
            self._reader.read([changed.id])
        elif changed.table == "key":
            self._grants.look()  # any role can send this; the table tells what changed, if anything
        elif changed.table == "subscription":
            self._subscriptions.forget(changed.id)
        elif changed.table in ("periodic", "bulk"):  # whoever looks for one also looks for the other
            for call in self._on_periodic_change:
                call()

    def _interest(self, interest: formats.InterestChange) -> None:
        if interest.node != self._node.id:
            self._reader.read(interest.queues)

    def _gone(self, gone: formats.Gone) -> None:
        self._reader.read([queue for queue, nodes in self._policies.served_by.items() if gone.node in nodes])

    def _transient(self, message: formats.Transient) -> None:
        if message.node == self._node.id:
            self._subscriptions.take_forwarded(message.queue, message.body)

    def _acks(self, ack: formats.RemoteAck) -> None:
        """Another node received acknowledgements of this node's deliveries."""
        if (local := self._prefetched_queues.queues.get(ack.queue)) is not None:
            for tag in ack.tags:
                local.deliveries.ack(tag, ack.consumer)

    def _mailbox_lost(self, lost: formats.MailboxLost) -> None:
        """A mailbox changed its connection. This node knows its own changes without notifications."""
        if lost.node != self._node.id:
            self._mailboxes.lose(lost.queue, lost.connection, evicted=lost.node is None)

    def _disconnected(self, disconnected: formats.Disconnected) -> None:
        """An operator ended client connections; their numbers are those of one life of one node."""
        if disconnected.node == self._node.id:
            for number in disconnected.connections:
                self._clients.disconnect(number)

    def _purge(self, purge: formats.Purge) -> None:
        """An operator purged the queue: messages that were in memory then and are not delivered go too."""
        if (local := self._prefetched_queues.queues.get(purge.queue)) is not None:
            local.prefetch.purge(purge.high, purge.by)
