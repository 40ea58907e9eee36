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
            "purge": lambda queue, _: self._purge(queue),
        }

    def _ready(self, ready: dict[str, int], _: dict[str, Any]) -> None:
        for queue, first_id in ready.items():
            if (buffer := self._engine.buffers.get(int(queue))) is not None:
                buffer.more_in_store(first_id)

    def _dead(self, queues: list[int]) -> None:
        for queue in queues:
            if (buffer := self._engine.dead_buffers.get(queue)) is not None:
                buffer.more_in_store(FIRST)

    def _queue(self, queue: int) -> None:
        """A queue was changed: if it is known here, read its policy anew."""
        if queue in self._engine.topology.policies:
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

    def _periodic(self) -> None:
        for call in self._engine.on_periodic_change:
            call()

    def _purge(self, queue: int) -> None:
        """An operator purged the queue: what is in memory and not delivered goes too."""
        if (buffer := self._engine.buffers.get(queue)) is not None:
            self._engine.settler.purge([id for id, _ in buffer.take_all()])

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
