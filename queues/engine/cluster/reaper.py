"""Returns a node's leases to their queues when it ends: by itself, by its successor on the host, or by another node's
reaper.

A node is dead once its advisory lock is free. The same lock decides who reaps. The reaper waits for the dead node's
running transactions. """

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any

import psutil

from queues.database.sql_files import ALL
from queues.engine.cluster.notifications.channel import Announcer
from queues.engine.cluster.notifications.formats import Gone
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of
from queues.engine.health import Health
from queues.engine.message import Counts
from queues.engine.rowwise import Rows, Rowwise

#: First key of a node's advisory lock. The second is the node's id.
LOCK_CLASS = 74657
#: Lock class as in the function queues_may_lease. Each statement that leases to the node holds it shared.
LEASES_CLASS = 74658


class Reaper:
    """Returns the leases of dead nodes, one node after the other."""

    def __init__(self, counts: Counts, health: Health) -> None:
        self._counts = counts
        self._health = health
        self._dead: asyncio.Queue[int] = asyncio.Queue()
        #: Nodes in the queue.
        self._found: set[int] = set()

    def found(self, nodes: Iterable[int]) -> None:
        """Queue dead nodes for reaping."""
        for node in nodes:
            if node not in self._found:
                self._found.add(node)
                self._dead.put_nowait(node)

    async def run(self, connection: Connection) -> None:
        """Reap for ever. Raises when the connection is lost."""
        self._found.clear()
        while True:
            node = await self._dead.get()
            self._found.discard(node)
            self._counts.dead_nodes += await reap(connection, node, self._health)


async def dead_nodes(connection: Connection) -> list[int]:
    """Nodes whose lock is free."""
    return [row[0] for row in await connection.rows("dead_nodes", {"lock_class": LOCK_CLASS})]


async def settle_predecessors(
    connection: Connection, host: str, pids: list[int], health: Health, patience: float = 2.0
) -> None:
    """Before this process starts, return the leases of its earlier runs and dead neighbours, so that new messages do
    not overtake them. `pids` are backends of lost connections, whose end the server may not have noticed. Leases that
    cannot be returned are left to the reaper. """
    if pids:
        await connection.run("end_sessions", {"pids": pids})
    deadline = monotonic() + patience
    while True:
        for node in await dead_nodes(connection):
            try:
                await reap(connection, node, health)
            except Exception as error:
                if fault_of(error, connection) is not Fault.BAD:
                    raise
                health.isolate("dead node", error, node=node)
                deadline = 0.0
        pids_here = await connection.fetch("select pid from queues_node where host = %s", (host,))
        dying = [pid for (pid,) in pids_here if pid == os.getpid() or not psutil.pid_exists(pid)]
        if len(dying) == 0 or monotonic() > deadline:
            return
        await asyncio.sleep(0.02)


async def reap(connection: Connection, node: int, health: Health) -> bool:
    """Return the leases of a dead node, forget it, and tell every node. A message that cannot be given back
    becomes a dead letter; if not even that works, it stays leased.

    Returns False if the node is alive, another node reaps it, or some of its messages are locked. """

    async def take(which: dict[str, Any], step: Callable[[dict[str, Any]], Awaitable[bool]]) -> Rows:
        async with connection.transaction():
            [(dead,)] = await connection.fetch("select pg_try_advisory_xact_lock(%s, %s)", (LOCK_CLASS, node))
            return [(dead and await step(which),)]

    async def unpack(which: dict[str, Any]) -> bool:
        await _await_transactions(connection, node)
        news = Announcer(health)
        await _unpack(connection, node, which, news)
        await news.flush(connection)
        return True

    async def forget(which: dict[str, Any]) -> bool:
        return await _forget(connection, node, health, which, segments.parameters, leaves=False)

    segments = Rowwise("node_segments", "segment of a dead node", health, letters=False)
    rows = await segments.run(connection, partial(take, step=unpack), node=node)
    if not rows[0][0]:
        return False
    leases = Rowwise("leased_ids", "return of a dead node's lease", health)
    rows = await leases.run(connection, partial(take, step=forget), node=node)
    if leases.narrowed:  # only the node itself is left
        rows = await take(leases.parameters, forget)
    return bool(rows[0][0])


async def leave(connection: Connection, node: int, health: Health, drained: bool) -> None:
    """Unregister this node and return its remaining leases. Its lock ends with its connection. A `drained` node skips
    the search if the counts show no lease at all."""
    async with connection.transaction():
        [(leased,)] = await connection.rows("any_leased")
        await _forget(connection, node, health, ALL if leased or not drained else None, ALL, leaves=True)


async def _await_transactions(connection: Connection, node: int) -> None:
    """Wait for a node's running transactions, which may still lease."""
    await connection.execute("select pg_advisory_xact_lock(%s, %s)", (LEASES_CLASS, node))


async def _unpack(connection: Connection, node: int, which: dict[str, Any], news: Announcer) -> int:
    """Return the segments `which` of a node. A partly settled one is unpacked into rows. Returns the number of locked
    segments left."""
    for queue, low in await connection.rows("release_segments", {"node": node} | which, prepare=False):
        news.ready(queue, low)
    [(locked,)] = await connection.rows("unpack_node", {"node": node} | which, prepare=False)
    return int(locked)


async def _forget(
    connection: Connection, node: int, health: Health, which: dict[str, Any] | None, packed: dict[str, Any], *,
    leaves: bool,
) -> bool:  # fmt: skip
    """Return a node's leases (`which`, None: it has none; and those in `packed` segments), and delete the node unless
    that was a part. Waits for its running transactions. False: locked messages were left, and so was the node; try
    again."""
    await _await_transactions(connection, node)
    news, left = Announcer(health), 0
    if which is not None:
        await connection.execute("set local enable_seqscan = on")
        left = packed_left = await _unpack(connection, node, packed, news)
        for queue, low, dead, locked in await connection.rows("reap_leases", {"node": node} | which, prepare=False):
            left = packed_left + locked
            if queue is not None:
                news.dead(queue) if dead else news.ready(queue, low)
    whole = which is None or which["ids"] is None
    if whole and not left:
        news.say(Gone(node))
        await connection.run("close_mailboxes", {"node": node}, prepare=False)
        await connection.run("leave_lines", {"node": node, "numbers": None}, prepare=False)
        await connection.execute("delete from queues_interest where node_id = %s", (node,))
        await connection.run("forget_node", {"node": node, "leaves": leaves}, prepare=False)
    await news.flush(connection)
    return whole and not left
