"""A node's leases return to their queues when the node ends: by itself, by its successor on this host, or by any
other node, which runs the reaper.

A node is dead once its advisory lock is free. Nodes agree on who reaps by that lock, and what a dead node has under way
at the server is waited for.
"""

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

#: The first key of every node's advisory lock; the second is the node's id.
LOCK_CLASS = 74657
#: As in the function queues_may_lease: held shared by each statement that leases to the node.
LEASES_CLASS = 74658


class Reaper:
    """Returns the leases of dead nodes, one node after the other."""

    def __init__(self, counts: Counts, health: Health) -> None:
        self._counts = counts
        self._health = health
        self._dead: asyncio.Queue[int] = asyncio.Queue()
        #: Those in the queue.
        self._found: set[int] = set()

    def found(self, nodes: Iterable[int]) -> None:
        """Queue dead nodes, to be reaped."""
        for node in nodes:
            if node not in self._found:
                self._found.add(node)
                self._dead.put_nowait(node)

    async def run(self, connection: Connection) -> None:
        """Reap for ever; ends by an exception when the connection is lost."""
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
    """Before this process begins: return the leases of its earlier lives and dead neighbours, so that nothing
    new overtakes it. `pids` are backends of this process's lost connections; the server may not know that they are.
    Leases that cannot be returned keep no process from its work: the reaper tries again.
    """
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

    Returns False when the node lives after all, another one is at it, or some of its messages are locked.
    """

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
    """Forget this node, and return the leases that it has not handed back; its lock goes with its connection. A
    node that is `drained` skips the search when the counts say that nothing is leased at all."""
    async with connection.transaction():
        [(leased,)] = await connection.rows("any_leased")
        await _forget(connection, node, health, ALL if leased or not drained else None, ALL, leaves=True)


async def _await_transactions(connection: Connection, node: int) -> None:
    """Wait for the transactions of a node that are under way: they may lease still."""
    await connection.execute("select pg_advisory_xact_lock(%s, %s)", (LEASES_CLASS, node))


async def _unpack(connection: Connection, node: int, which: dict[str, Any], news: Announcer) -> int:
    """Return a node's segments, `which` of them: whole ones, and of those that are settled in part the open messages as
    rows of their own. Returns how many segments are locked and left."""
    for queue, low in await connection.rows("release_segments", {"node": node} | which, prepare=False):
        news.ready(queue, low)
    [(locked,)] = await connection.rows("unpack_node", {"node": node} | which, prepare=False)
    return int(locked)


async def _forget(
    connection: Connection, node: int, health: Health, which: dict[str, Any] | None, packed: dict[str, Any], *,
    leaves: bool,
) -> bool:  # fmt: skip
    """Return a node's leases, `which` of them (None: there are none), those in its `packed` segments too, and delete it
    unless that was a part. Its transactions under way are waited for. Locked messages are left, and the node with them,
    so that nothing waits for them: False, and it is to be tried again."""
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
