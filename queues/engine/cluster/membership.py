"""A node's membership: a row, an advisory lock that ends with the node's session, and a heartbeat four times a second.

The same statement finds dead nodes for the reaper. Each second the connections of frozen processes are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from queues.engine.clock import now, until_tick
from queues.engine.cluster.reaper import LOCK_CLASS, Reaper, dead_nodes
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.database import Connection
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions

#: Seconds between two heartbeats, and between two checks for frozen processes.
LIVENESS = 0.25
LOOK = 1.0
#: Seconds that a transaction may be idle; the same for one that is already older because it waited for a lock; and the
#: purposes of the connections concerned.
FROZEN = 10.0
HELD = 2.0
WRITING = ["fivewire writer", "fivewire settlements", "fivewire fetcher", "fivewire delays", "fivewire mailboxes"]
#: Seconds of silence after which other nodes end the connection that holds a node's lock. The process is frozen, and
#: its leases go to working nodes.
SILENCE = 10.0


async def register(connection: Connection, options: EngineOptions, engine: UUID) -> tuple[int, int]:
    """Register this process and lock its row on `connection`; the node ends with that connection. Returns the node's
    id, and a message id below all that it will store."""
    async with connection.transaction():
        [(id,)] = await connection.fetch("select nextval('queues_node_id_seq')::int")
        await connection.execute("select pg_advisory_lock(%s, %s)", (LOCK_CLASS, id))
        parameters = {"id": id, "name": options.name, "host": options.host, "pid": options.pid, "engine": str(engine)}
        [(node, first)] = await connection.rows("register_node", parameters)
    return node, first


async def end_silent(connection: Connection) -> int:
    """End the connections that hold the locks of silent nodes; returns how many."""
    return len(await connection.rows("end_silent", {"lock_class": LOCK_CLASS, "silence": SILENCE}))


class Liveness:
    """Sends heartbeats over the connection that holds the node's lock. Nothing slow uses that connection."""

    def __init__(
        self, node: LocalNode, counts: Counts, prefetched_queues: Mapping[int, PrefetchedQueue], reaper: Reaper
    ) -> None:
        self._node = node
        self._counts = counts
        self._prefetched_queues = prefetched_queues
        self._reaper = reaper

    async def run(self, connection: Connection) -> None:
        """Send heartbeats for ever. Raises when the connection is lost."""
        looked = -LOOK
        while True:
            asked = now()
            dead = await dead_nodes(connection)
            if self._node.trust_from(asked):  # messages kept back meanwhile go out now
                for queue in self._prefetched_queues.values():
                    queue.dispatch()
            self._reaper.found(dead)
            if asked - looked >= LOOK:
                looked = asked
                self._counts.silent_nodes += await end_silent(connection)
                await connection.run("end_frozen", {"names": WRITING, "patience": FROZEN, "held": HELD})
            await asyncio.sleep(until_tick(LIVENESS))
