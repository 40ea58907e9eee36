"""Bytes that each client has published and that are not durable yet: a client with too many is not read from.

A client is an API key, or an address where there are no keys. Sessions report the bytes of a read that has published in
the engine's open batch; the engine reports each commit. Other clients are read from meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from weakref import WeakValueDictionary

from queues.engine.api import Broker
from wire.net.connection import Connection

#: The reason for a pause.
PENDING = "pending"


class Unconfirmed:
    """One client's unconfirmed publishes, over all its connections.

    At most two batches are not durable: the open one and the one that is being written.
    """

    def __init__(self, engine: Broker, limit: int, over: Counter[str]) -> None:
        self._engine = engine
        self._limit = limit
        self._over = over
        self._batch = self._earlier = 0
        self._now = self._before = 0
        self._paused: set[Connection] = set()

    @property
    def waiting(self) -> int:
        """Bytes that are not durable yet."""
        holds = self._engine.holds
        return (self._now if holds(self._batch) else 0) + (self._before if holds(self._earlier) else 0)

    def add(self, connection: Connection, size: int) -> None:
        """A read of `size` bytes has published in the open batch; the connection is paused if that is too much."""
        batch = self._engine.open_batch
        if self._batch != batch:
            self._earlier, self._before = self._batch, self._now
            self._batch, self._now = batch, 0
        self._now += size
        if self._now + self._before > self._limit and self.waiting > self._limit:
            if not self._paused:
                self._engine.hold(self)
            self._over[PENDING] += 1
            self._paused.add(connection)
            connection.pause_reading(PENDING)

    def release(self) -> None:
        """A batch was committed: read again once half of the limit is free."""
        if self.waiting <= self._limit // 2:
            self._engine.unhold(self)
            paused, self._paused = self._paused, set()
            for connection in paused:
                connection.resume_reading(PENDING)


class UnconfirmedByClient:
    """The unconfirmed publishes of a process by client: an API key's id, or an address."""

    def __init__(self, engine: Broker, limit: int, over: Counter[str]) -> None:
        """`limit` is in bytes for each client; `over` counts how often each quota was met."""
        self._engine = engine
        self._limit = limit
        self._over = over
        self._by_client: WeakValueDictionary[Hashable, Unconfirmed] = WeakValueDictionary()

    def of(self, client: Hashable) -> Unconfirmed:
        """Return a client's count, for a session to keep as long as it lives."""
        return self._by_client.setdefault(client, Unconfirmed(self._engine, self._limit, self._over))
