"""A node's life: registered under an advisory lock that dies with its session, and reaped by any other node."""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import Any

from queues.engine.control import Announcer
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of
from queues.engine.health import Health
from queues.engine.notifications import Gone
from queues.engine.options import EngineOptions
from queues.engine.rowwise import ALL, Rows, Rowwise
from queues.engine.statements import statement

#: The first key of every node's advisory lock; the second is the node's id.
LOCK_CLASS = 74657
#: As in the function queues_may_lease: held shared by each statement that leases to the node.
LEASES_CLASS = 74658
#: Seconds without a word from a node's connection that holds its lock, after which others end that connection: the
#: process is frozen, and its leases go to those that work.
SILENCE = 10.0
#: Seconds after a word for which a node may deliver what it has leased; afterwards others may have it.
TRUSTED = 8.0


async def register(connection: Connection, options: EngineOptions) -> tuple[int, int]:
    """Make a row for this process and hold its lock on `connection`, whose end is the node's end. Returns the node's
    id, and a message's that is lower than all that it will store."""
    async with connection.transaction():
        row = await (await connection.execute("select nextval('queues_node_id_seq')::int")).fetchone()
        assert row is not None
        await connection.execute("select pg_advisory_lock(%s, %s)", (LOCK_CLASS, row[0]))
        cursor = await connection.execute(
            statement("register_node"),
            {"id": row[0], "name": options.name, "host": options.host, "pid": options.pid},
        )
        [(node, first)] = await cursor.fetchall()
    return node, first


async def dead_nodes(connection: Connection) -> list[int]:
    """Nodes whose lock nobody holds."""
    cursor = await connection.execute(statement("dead_nodes"), {"lock_class": LOCK_CLASS})
    return [row[0] for row in await cursor.fetchall()]


async def end_silent(connection: Connection) -> int:
    """End the connections that hold the locks of nodes that have been silent for too long; returns how many."""
    cursor = await connection.execute(statement("end_silent"), {"lock_class": LOCK_CLASS, "silence": SILENCE})
    return len(await cursor.fetchall())


async def settle_predecessors(
    connection: Connection, host: str, pids: list[int], health: Health, patience: float = 2.0
) -> None:
    """Before this process begins: return what its earlier lives and dead neighbours had leased, so that nothing
    new overtakes it. `pids` are backends of this process's lost connections; the server may not know that they are.
    What cannot be returned keeps no process from its work: the reaper tries again.
    """
    if pids:
        await connection.execute(statement("end_sessions"), {"pids": pids})
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
        cursor = await connection.execute("select pid from queues_node where host = %s", (host,))
        dying = [pid for (pid,) in await cursor.fetchall() if pid == os.getpid() or not _is_alive(pid)]
        if len(dying) == 0 or monotonic() > deadline:
            return
        await asyncio.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def reap(connection: Connection, node: int, health: Health) -> bool:
    """Give back what a dead node had leased, forget it, and tell every node. A message that cannot be given back
    becomes a dead letter; if not even that works, it stays leased.

    Returns False when the node lives after all, another one is at it, or some of its messages are locked.
    """

    async def attempt(which: dict[str, Any]) -> Rows:
        async with connection.transaction():
            cursor = await connection.execute("select pg_try_advisory_xact_lock(%s, %s)", (LOCK_CLASS, node))
            row = await cursor.fetchone()
            if row is None or not row[0]:
                return [(False,)]
            return [(await _forget(connection, node, which),)]

    leases = Rowwise("leased_ids", "return of a dead node's lease", health)
    rows = await leases.run(connection, attempt, node=node)
    if leases.narrowed:  # what is left is the node itself
        rows = await attempt(leases.parameters)
    return bool(rows[0][0])


async def leave(connection: Connection, node: int, drained: bool) -> None:
    """Forget this node, and return what it has not handed back; its lock goes with its connection. When it is `drained`
    and the counts say that nothing is leased at all, that is not looked for."""
    async with connection.transaction():
        [(leased,)] = await (await connection.execute(statement("any_leased"))).fetchall()
        await _forget(connection, node, ALL if leased or not drained else None)


async def _forget(connection: Connection, node: int, which: dict[str, Any] | None) -> bool:
    """Return a node's leases, `which` of them (None: there are none), and delete it unless that was a part. Whatever it
    has under way is waited for: it may lease still. Messages that are locked are left, and the node with them, so that
    nothing waits for them: False, and it is to be tried again."""
    await connection.execute("select pg_advisory_xact_lock(%s, %s)", (LEASES_CLASS, node))
    news, left = Announcer(), 0
    if which is not None:
        await connection.execute("set local enable_seqscan = on")
        cursor = await connection.execute(statement("reap_leases"), {"node": node} | which, prepare=False)
        for queue, low, dead, locked in await cursor.fetchall():
            left = locked
            if queue is not None:
                news.dead(queue) if dead else news.ready(queue, low)
    whole = which is None or which["ids"] is None
    if whole and not left:
        news.say(Gone(node))
        await connection.execute(statement("close_mailboxes"), {"node": node}, prepare=False)
        await connection.execute("delete from queues_interest where node_id = %s", (node,))
        await connection.execute("delete from queues_node where id = %s", (node,))
    await news.flush(connection)
    return whole and not left
