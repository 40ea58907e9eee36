"""Publishing many messages in one transaction: what ``with producer.batch():`` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from queues.celery.transport.envelope import MessageRow


class MessageStore(Protocol):
    """A channel, as a batch uses it."""

    def rows(self, message: dict[str, Any], exchange: str, routing_key: str) -> list[MessageRow]: ...
    def store(self, rows: Sequence[MessageRow]) -> bool: ...


class PublishBatch:
    """Messages of a channel that are stored together, at the end or whenever there are `max_size`."""

    def __init__(self, channel: MessageStore, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        self._rows: list[MessageRow] = []

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> None:
        """Keep a message for the transaction."""
        self._rows += self.channel.rows(message, exchange, routing_key)
        if len(self._rows) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Store what was kept. Raises what `Channel.basic_publish` does; nothing of it is stored then."""
        rows, self._rows = self._rows, []
        if rows:
            self.channel.store(rows)

    def discard(self) -> None:
        self._rows.clear()

    close = discard
