"""A consumer without acknowledgements on a queue of its own. It reads the store directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from queues.celery.transport.envelope import Message, Unreadable
from queues.celery.transport.store_connection import StoreConnection
from queues.ends import ended

#: Limit of messages taken at once.
MAX_TAKEN = 100
GREATEST_ID = (1 << 63) - 1


class DirectConsumer:
    """Takes a temporary queue's messages whenever it is notified."""

    def __init__(self, channel: Any, tag: str, name: str, queue: int, callback: Callable[[Message], Any]) -> None:
        self.channel = channel
        self.tag = tag
        self.name = name
        self.queue = queue
        self.callback = callback
        self._news = True
        self._taken: deque[tuple[Any, ...]] = deque()

    def tell(self) -> None:
        """Notify it that the queue may have messages."""
        self._news = True

    def step(self, database: StoreConnection) -> bool:
        """Deliver one message if there is one."""
        if not self._taken:
            if not self._news:
                return False
            self._news = False  # cleared before reading: a notification that comes meanwhile may be of later messages
            self._taken.extend(self._take(database))
            self._news = self._news or len(self._taken) == MAX_TAKEN
            if not self._taken:
                return False
        id, payload, attempts, headers, content = self._taken.popleft()
        tag = f"taken-{id}"
        try:
            message = self.channel.read(self.name, id, payload, headers, content, attempts, tag, self.tag)
        except Unreadable:  # logged, and removed from the queue
            ended("unreadable")
            return True
        self.callback(message)
        return True

    def _take(self, database: StoreConnection) -> list[tuple[Any, ...]]:
        """The oldest messages."""
        while (rows := database.query("take", queue=self.queue, limit=MAX_TAKEN)) and rows[0][0] is None:
            database.query("unpack_oldest", queue=self.queue, high=GREATEST_ID, messages=MAX_TAKEN)
        return rows
