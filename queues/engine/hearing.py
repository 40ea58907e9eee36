"""What other nodes and operators say, and what this node does about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from queues.engine.control import Handler
from queues.engine.errors import StoreUnavailable
from queues.engine.floor import FIRST

if TYPE_CHECKING:
    from queues.engine.engine import Engine


class Hearing:
    """One handler for each notification's first word."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._background: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[str, Handler]:
        """What to do for each word, given its value and the whole notification."""
        subscriptions = self._engine.subscriptions
        return {
            "ready": self._ready,
            "dead": lambda queues, _: self._dead(queues),
            "queue": lambda queue, _: self._queue(queue),
            "key": lambda key, _: self._engine.forget_key(key),
            "interest": lambda queues, message: self._interest(queues, message["node"], True),
            "disinterest": lambda queues, message: self._interest(queues, message["node"], False),
            "gone": lambda node, _: self._interest(list(self._engine.topology.interest), node, False),
            "subscription": lambda subscription, _: subscriptions.forget(subscription),
            "transient": lambda queue, message: subscriptions.hear_transient(queue, message),
            "ack": lambda queue, message: subscriptions.hear_ack(queue, message),
            "periodic": lambda _, __: self._periodic(),
            "purge": lambda queue, message: self._purge(queue, message.get("by", "")),
            "evicted": lambda queue, message: self._evicted(queue, message["connection"]),
            "mailbox": lambda queue, message: self._mailbox(queue, message["connection"], message["node"]),
        }

    def _ready(self, ready: dict[str, int], _: dict[str, Any]) -> None:
        for queue, first_id in ready.items():
            if (buffer := self._engine.buffers.get(int(queue))) is not None:
                buffer.more_in_store(first_id)
            elif self._engine.mailroom is not None:
                self._engine.mailroom.more_in_store(int(queue), first_id)

    def _dead(self, queues: list[int]) -> None:
        for queue in queues:
            if (buffer := self._engine.dead_buffers.get(queue)) is not None:
                buffer.more_in_store(FIRST)

    def _queue(self, queue: int) -> None:
        """A queue was changed: if it is known here, read its policy anew."""
        if self._engine.topology.concerns(queue):
            self._spawn(self._reread(queue))

    async def _reread(self, queue: int) -> None:
        with contextlib.suppress(StoreUnavailable):  # coming back reads all of them
            await self._engine.reread(queue)

    def _interest(self, queues: list[int] | None, node: int, on: bool) -> None:
        engine = self._engine
        for queue in queues or ():
            nodes_of = engine.topology.interest.setdefault(queue, set())
            (nodes_of.add if on else nodes_of.discard)(node)
            if not nodes_of:
                del engine.topology.interest[queue]
            if (buffer := engine.buffers.get(queue)) is not None:
                buffer.shared = engine.is_shared(queue)

    def _mailbox(self, queue: int, connection: int, node: int) -> None:
        """A mailbox was taken. What this node does itself it knows already, or will in a moment."""
        if self._engine.mailroom is not None and node != self._engine.node:
            self._engine.mailroom.hear_taken(queue, connection)

    def _evicted(self, queue: int, connection: int) -> None:
        """An operator ended a peer's connection."""
        if self._engine.mailroom is not None:
            self._engine.mailroom.hear_evicted(queue, connection)

    def _periodic(self) -> None:
        for call in self._engine.on_periodic_change:
            call()

    def _purge(self, queue: int, by: str) -> None:
        """An operator purged the queue: what is in memory and not delivered goes too."""
        if (buffer := self._engine.buffers.get(queue)) is not None:
            self._engine.settler.purge([id for id, _ in buffer.take_all()], by)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
