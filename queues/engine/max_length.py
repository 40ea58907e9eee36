"""Queues with a maximum length that drop their oldest messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of
from queues.engine.health import Health
from queues.engine.message import Counts
from queues.engine.rowwise import Rows, Rowwise


class MaxLength:
    """Drops the oldest messages of queues that have more than their maximum length."""

    def __init__(self, counts: Counts, health: Health) -> None:
        self._counts = counts
        self._health = health
        self._oldest = Rowwise("oldest_ids", "drop of the oldest", health)

    async def keep(self, connection: Connection, queue: int) -> None:
        """Drop surplus messages, outside a transaction; one that cannot be dropped becomes a dead letter. After a
        failure the next message drops the surplus."""
        try:
            if excess := await _excess(connection, queue):
                await _unpack(connection, queue, excess)
                drop = partial(self._drop, connection, queue, excess)
                await self._oldest.run(connection, drop, queue=queue, count=excess)
        except Exception as error:
            self._health.isolate("drop of the oldest", error, queue=queue)

    async def keep_within(self, connection: Connection, queue: int) -> bool:
        """Drop surplus messages, within the transaction that stores messages. False when some message cannot be
        dropped: that must not keep the new ones from being stored, and is left to `keep` after the commit."""
        if excess := await _excess(connection, queue):
            try:
                async with connection.transaction():
                    await _unpack(connection, queue, excess)
                    await self._drop(connection, queue, excess, self._oldest.parameters)
            except Exception as error:
                if fault_of(error, connection) is not Fault.BAD:
                    raise
                return False
        return True

    async def _drop(self, connection: Connection, queue: int, count: int, which: dict[str, Any]) -> Rows:
        parameters = {"queue": queue, "count": count} | which
        rows = await connection.rows("drop_oldest", parameters)
        self._counts.dropped += rows[0][0]
        return rows


async def _unpack(connection: Connection, queue: int, count: int) -> None:
    """Give the oldest messages rows of their own: they may have been stored as segments before the queue had this
    policy."""
    await connection.run("unpack_ready", {"queue": queue, "count": count})


async def _excess(connection: Connection, queue: int) -> int:
    """The number of messages beyond a queue's maximum length."""
    [(room,)] = await connection.fetch("select queues_room(%s)", (queue,))
    return 0 if room is None else max(0, -room)
