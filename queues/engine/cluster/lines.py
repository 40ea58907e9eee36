"""Keeps this node's part of `queues_consumer`, the order of consumers of queues with a single active consumer.

One job writes arrived and ended consumers, and tells local queues which consumer is active. A handover waits until the
former consumer's messages are back in the store. """

from __future__ import annotations

from queues.database.sql_files import array
from queues.engine.consume.line import Connected
from queues.engine.consume.local_queue import LocalQueue, QueueSchedule
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
        for queue in [queue for queue in changes.queues if queue.line is None]:
            changes.drop(queue)
        pause = min(map(self._hand_over, changes.queues), default=None)
        if changes.gone:
            await self._leave(connection)
        if coming := [(queue, one) for queue in changes.queues if queue.line for one in queue.line.newcomers]:
            await self._join(connection, coming)
        if any(queue.awaits_turn for queue in changes.queues):
            await self._look(connection)
        return pause

    def look(self) -> None:
        """Another consumer of some queue is active now."""
        if self._changes.queues:
            self._changes.look()

    def forget(self) -> None:
        """The node has ended, and its rows with it."""
        self._changes.forget()

    def _hand_over(self, queue: LocalQueue) -> float:
        """Let the next consumer follow when the active one has ended and none of its messages is under way. Returns the
        seconds until the next check."""
        if queue.line is None or queue.line.former is None:
            return LOOK
        if number := queue.hand_over():
            self._changes.gone.append(number)
            return LOOK
        return FINISHING if queue.unacked else SOON

    async def _leave(self, connection: Connection) -> None:
        leaving = self._changes.gone[:MAX_CHANGES]
        await connection.run("leave_lines", {"numbers": array(leaving), "node": self._node.id})
        self._changes.removed(len(leaving))
        if self._changes.gone:
            self._changes.look()

    async def _join(self, connection: Connection, newcomers: list[tuple[LocalQueue, object]]) -> None:
        coming = newcomers[:MAX_CHANGES]
        clients = [one.client if isinstance(one, Connected) else None for _, one in coming]
        node = self._node.id
        parameters = {
            "queues": [queue.id for queue, _ in coming], "node": node,
            "connections": [None if client is None else connection_id(node, client.number) for client in clients],
            "names": ["" if client is None else client.title for client in clients],
        }  # fmt: skip
        rows = await connection.rows("join_lines", parameters)
        for place, number in rows:
            queue, consumer = coming[place - 1]
            if queue.line is None or not queue.line.arrive(consumer, number):
                self._changes.remove([number])
        if len(newcomers) > MAX_CHANGES:
            self._changes.look()

    async def _look(self, connection: Connection) -> None:
        active: dict[int, int] = dict(await connection.rows("active_consumers", {"node": self._node.id}))
        for queue in self._changes.queues:
            if queue.awaits_turn:
                queue.obey_line(active.get(queue.id))
