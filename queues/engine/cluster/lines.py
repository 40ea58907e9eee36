"""Keeps this node's part of `queues_consumer`, the order of consumers of queues with a single active consumer.

One job writes arrived and ended consumers, and tells prefetched queues which consumer is active. A handover waits until
the former consumer's messages are back in the store.
"""

from __future__ import annotations

from queues.database.sql_files import array
from queues.engine.consume.line import Connected, Line
from queues.engine.consume.prefetched_queue import QueueSchedule
from queues.engine.database import Connection
from queues.engine.node import LocalNode
from queues.formats.connection_ids import connection_id

#: Seconds between polls for a new active consumer, in case a notification was lost.
LOOK = 1.0
#: Seconds between checks that a former consumer's messages are back in the store, and that it has finished them.
SOON, FINISHING = 0.002, 0.05
#: Consumers in one statement.
MAX_CHANGES = 1000


class Lines:
    """The job's state."""

    def __init__(self, node: LocalNode, schedule: QueueSchedule) -> None:
        self._node = node
        self._changes = schedule.lines

    async def run(self, connection: Connection) -> None:
        """Keep the table for ever. Raises when the connection is lost, and may be run again."""
        pause: float | None = 0.0
        while True:
            await self._changes.wait(pause)
            pause = await self.write(connection)

    async def write(self, connection: Connection) -> float | None:
        """Write changes and read the active consumers. Returns the seconds until the next time; None: at the next
        change."""
        changes = self._changes
        for line in [line for line in changes.lines if line.ended]:
            changes.drop(line)
        pause = min(map(self._hand_over, changes.lines), default=None)
        if changes.gone:
            await self._leave(connection)
        if coming := [(line, one) for line in changes.lines for one in line.newcomers]:
            await self._join(connection, coming)
        if any(line.awaits_turn for line in changes.lines):
            await self._look(connection)
        return pause

    def look(self) -> None:
        """Another consumer of some queue is active now."""
        if self._changes.lines:
            self._changes.look()

    def forget(self) -> None:
        """The node has ended, and its rows with it."""
        self._changes.forget()

    def _hand_over(self, line: Line) -> float:
        """Let the next consumer follow when the active one has ended and none of its messages is under way. Returns the
        seconds until the next check."""
        if line.former is None:
            return LOOK
        if number := line.hand_over():
            self._changes.gone.append(number)
            return LOOK
        return FINISHING if line.delivering else SOON

    async def _leave(self, connection: Connection) -> None:
        leaving = self._changes.gone[:MAX_CHANGES]
        await connection.run("leave_lines", {"numbers": array(leaving), "node": self._node.id})
        self._changes.removed(len(leaving))
        if self._changes.gone:
            self._changes.look()

    async def _join(self, connection: Connection, newcomers: list[tuple[Line, object]]) -> None:
        coming = newcomers[:MAX_CHANGES]
        clients = [one.client if isinstance(one, Connected) else None for _, one in coming]
        node = self._node.id
        parameters = {
            "queues": [line.queue_id for line, _ in coming], "node": node,
            "connections": [None if client is None else connection_id(node, client.number) for client in clients],
            "names": ["" if client is None else client.title for client in clients],
        }  # fmt: skip
        rows = await connection.rows("join_lines", parameters)
        for place, number in rows:
            line, consumer = coming[place - 1]
            if not line.arrive(consumer, number):
                self._changes.remove([number])
        if len(newcomers) > MAX_CHANGES:
            self._changes.look()

    async def _look(self, connection: Connection) -> None:
        active: dict[int, int] = dict(await connection.rows("active_consumers", {"node": self._node.id}))
        for line in self._changes.lines:
            if line.awaits_turn:
                line.elect(active.get(line.queue_id))
