"""Publishing many messages in one transaction: what ``with producer.batch():`` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from queues.celery.transport.envelope import Routed


class MessageStore(Protocol):
    """A channel, as a batch uses it."""

    def routed(
        self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool, immediate: bool
    ) -> Routed: ...
    def store(self, messages: Sequence[Routed]) -> None: ...


class PublishBatch:
    """Messages of a channel that are stored together, at the end or whenever there are `max_size`."""

    def __init__(self, channel: MessageStore, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        self._messages: list[Routed] = []
        self._rows = 0

    def publish(
        self, message: dict[str, Any], exchange: str = "", routing_key: str = "", mandatory: bool = False,
        immediate: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        """Keep a message for the transaction."""
        self._messages.append(self.channel.routed(message, exchange, routing_key, mandatory, immediate))
        self._rows += len(self._messages[-1].rows)
        if self._rows >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Store what was kept. Raises what `Channel.basic_publish` does; nothing of it is stored then."""
        messages, self._messages, self._rows = self._messages, [], 0
        if messages:
            self.channel.store(messages)

    def discard(self) -> None:
        self._messages.clear()
        self._rows = 0

    close = discard
