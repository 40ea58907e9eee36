"""A node's life, told to the others: it is registered under an advisory lock that dies with its session, and shows four
times a second that it works.

The same look finds the nodes that have died, for the reaper. Each second what frozen ones hold others up with is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from queues.engine.clock import now, until_tick
from queues.engine.cluster.reaper import LOCK_CLASS, Reaper, dead_nodes
from queues.engine.consume.local_queue import LocalQueue
from queues.engine.database import Connection
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions

#: Seconds between two shows of life, and between two looks for frozen processes.
LIVENESS = 0.25
LOOK = 1.0
#: Seconds that a process may leave a transaction open without a word; those that it may when the transaction is that
#: old already, since it had to wait for a lock; and the connections that make them.
FROZEN = 10.0
HELD = 2.0
WRITING = ["fivewire writer", "fivewire settlements", "fivewire fetcher", "fivewire delays", "fivewire mailboxes"]
#: Seconds without a word from a node's connection that holds its lock, after which others end that connection: the
#: process is frozen, and its leases go to those that work.
SILENCE = 10.0


async def register(connection: Connection, options: EngineOptions, engine: UUID) -> tuple[int, int]:
    """Make a row for this process and hold its lock on `connection`, whose end is the node's end. Returns the node's
    id, and a message's that is lower than all that it will store."""
    async with connection.transaction():
        [(id,)] = await connection.fetch("select nextval('queues_node_id_seq')::int")
        await connection.execute("select pg_advisory_lock(%s, %s)", (LOCK_CLASS, id))
        parameters = {"id": id, "name": options.name, "host": options.host, "pid": options.pid, "engine": str(engine)}
        [(node, first)] = await connection.rows("register_node", parameters)
    return node, first


async def end_silent(connection: Connection) -> int:
    """End the connections that hold the locks of nodes that have been silent for too long; returns how many."""
    return len(await connection.rows("end_silent", {"lock_class": LOCK_CLASS, "silence": SILENCE}))


class Liveness:
    """Shows that this node works, over the connection that holds its lock. Nothing slow goes over it."""

    def __init__(self, node: LocalNode, counts: Counts, local_queues: Mapping[int, LocalQueue], reaper: Reaper) -> None:
        self._node = node
        self._counts = counts
        self._local_queues = local_queues
        self._reaper = reaper

    async def run(self, connection: Connection) -> None:
        """Show it for ever; ends by an exception when the connection is lost."""
        looked = -LOOK
        while True:
            asked = now()
            dead = await dead_nodes(connection)
            if self._node.trust_from(asked):  # messages kept back meanwhile go out now
                for queue in self._local_queues.values():
                    queue.dispatch()
            self._reaper.found(dead)
            if asked - looked >= LOOK:
                looked = asked
                self._counts.silent_nodes += await end_silent(connection)
                await connection.run("end_frozen", {"names": WRITING, "patience": FROZEN, "held": HELD})
            await asyncio.sleep(until_tick(LIVENESS))
