"""The engine of one process, used by the sessions of every protocol: its interface, and its life.

`build.py` makes its parts. Its life is the supervisor's: `start` connects, refuses an unsafe server, registers the node
and begins to work; when a connection is lost, all leases count as lost too (other nodes may have them by then), and the
engine comes back as a new node; `stop` writes pending work, hands back held messages, and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from uuid import uuid4
from weakref import WeakSet

import psycopg

from queues.database import hosts
from queues.engine.build import Parts
from queues.engine.clock import now
from queues.engine.cluster import membership, periodic, reaper
from queues.engine.cluster.notifications.formats import CHANNEL
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.database import check_server
from queues.engine.health import KINDS
from queues.engine.options import EngineOptions
from queues.engine.supervisor import EngineJob, Supervisor, Writing

#: Below so many unsettled acknowledgements, those that a reply waits for are written at once.
FEW_UNSETTLED = 64

#: The engines of this process that have been started.
running: WeakSet[Engine] = WeakSet()


class Engine:
    """One process's engine: `api.Broker` says what sessions use of it."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._parts = parts = Parts(options)
        self._id = uuid4()
        self.counts, self.health, self.connections = parts.counts, parts.health, parts.connections
        self.grants, self.clients, self.policies = parts.grants, parts.clients, parts.policies
        self.routing, self.route_tallies, self.announcer = parts.routing, parts.route_tallies, parts.announcer
        self.maintenance, self.tidying, self.timeline = parts.maintenance, parts.tidying, parts.timeline
        self.writer, self.settlements, self.mailboxes = parts.writer, parts.settlements, parts.mailboxes
        self.prefetched_queues, self.fetcher = parts.prefetched_queues, parts.fetcher
        self.subscriptions = parts.subscriptions
        # Used by sessions, as its parts have it.
        self.publisher, self.settles = parts.writer.publisher, parts.settlements.settles
        self.hold, self.unhold = parts.barriers.hold, parts.barriers.unhold
        self.check_saturation, self.on_saturation = parts.saturation.check, parts.saturation.on_change
        self.authenticate, self.grant_named = parts.grants.authenticate, parts.grants.named
        self.on_key_change, self.on_periodic_change = parts.grants.on_change, parts.on_periodic_change
        self.queue, self.dead_letters = parts.prefetched_queues.named, parts.prefetched_queues.dead_letters_of
        self.with_consumers = parts.prefetched_queues.with_consumers
        self.prefetched = parts.prefetched_queues.prefetched
        self.request, self.look_up = parts.connections.request, parts.connections.look_up
        self.descriptors = parts.connections.descriptors
        self.progress, self.reread = parts.progress, parts.reread
        # Used by the supervisor.
        self.jobs: Sequence[EngineJob] = parts.jobs()
        self.writing: Sequence[Writing] = parts.writer, parts.mailboxes
        #: A life has begun: every queue may have messages in the store.
        self.look_again = parts.prefetched_queues.look_again
        self.supervisor = Supervisor(self, options, parts.counts, parts.health, parts.node, parts.connections)

    # Used by sessions.

    @property
    def node(self) -> int:
        """The id of this process's node; another after each reconnect."""
        return self._parts.node.id

    @property
    def available(self) -> bool:
        """Whether the database is there."""
        return self.connections.available

    @property
    def open_batch(self) -> int:
        """The batch that is being gathered: the next publish belongs to it."""
        return self.writer.open_batch

    def holds(self, batch: int) -> bool:
        """Whether a reply that follows a publish of this batch must wait."""
        return batch > self.writer.committed

    @property
    def behind(self) -> bool:
        """Whether so many acknowledgements wait to be written that barriers should wait too."""
        return self._parts.behind

    @property
    def unsettled(self) -> int:
        """Settlements that are not durable yet."""
        return self.settlements.unsettled

    @property
    def settling(self) -> int:
        """The round in which the last acknowledgement is written; `settles` tells whether it is still under way."""
        return self.settlements.round

    def hurry_settling(self) -> None:
        """A reply waits for the round: it is written at once when little else is to be."""
        if self.settlements.unsettled < FEW_UNSETTLED:
            self.settlements.hurry()

    def settling_of(self, buffer: PrefetchedQueue) -> int:
        """The round of this queue's last acknowledgement: an audited queue is written by itself, and replies to it wait
        for its chain."""
        return self.settlements.round if buffer.audited is None else buffer.audited.settling

    def set_prefetch(self, messages: int) -> None:
        """Take at most so many messages into memory for each queue, from the next claim on."""
        self.fetcher.limits.set_prefetch(messages)

    async def refresh(self, name: str) -> None:
        """Obey a queue's policy as it is now, not only once its change is heard of. Raises StoreUnavailable."""
        if ids := self.prefetched_queues.ids_of(name):
            await self.reread(ids)

    # Shown to operators.

    def notes(self) -> list[str]:
        """Warnings for operators, one sentence each; the engine works in spite of them."""
        rewritten = self.timeline.rewritten
        return [f"Messages that were confirmed may be lost: {rewritten}."] if rewritten else []

    def troubles(self) -> dict[str, int]:
        """The number of present faults, by the kinds of `health.KINDS`."""
        now = dict.fromkeys(KINDS, 0) | self.health.kinds
        now |= {"reconnecting": int(not self.available), "replaced": len(hosts.warnings())}
        return now | {"history": int(bool(self.timeline.rewritten))}

    def unready_reasons(self) -> list[str]:
        """The reasons to give this process no work now, one sentence each, without names of hosts and users."""
        away = f"The engine has lost the database and is reconnecting: {self.supervisor.away}."
        return ([] if self.available else [away]) + self.health.reasons()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all publishes and letters that are not yet durable."""
        return self.writer.waiting_bytes + self.mailboxes.waiting_bytes

    # Life.

    async def start(self, *, patient: bool = False) -> None:
        """Connect and begin; with `patient`, wait for a server that takes no connections, or no writes, for now. Raises
        UnsafeServer, UnsupportedServer, NotMigrated, or psycopg.OperationalError."""
        await self.supervisor.start(patient=patient)
        running.add(self)
        self._parts.deadlines.start()

    async def begin_life(self) -> None:
        """Become a node, on new connections. Raises the error that makes the database unfit for use."""
        former = await self.connections.open()
        beginning = self.connections["reaper"]  # its commits wait for no standby
        await check_server(beginning)
        await reaper.settle_predecessors(beginning, self.options.host, former, self.health)
        self.connections.forget_former()
        await self.timeline.check(beginning)
        self._parts.node.trust_from(now())
        self._parts.node.begin(*await membership.register(self.connections["liveness"], self.options, self._id))
        await self.connections["listener"].execute(f"listen {CHANNEL}".encode())
        self.routing.forget()
        self.grants.look()
        await self._parts.reread(tuple(self.policies.by_id), self.connections["lookups"])

    def end_life(self) -> None:
        """The connections are lost, and every lease with them."""
        self.settlements.forget_leases()
        self._parts.lines.forget()
        self.prefetched_queues.lose_leases()
        self.mailboxes.lose_connections()

    async def stop(self, timeout: float = 10.0) -> None:
        """Write pending work, hand back held messages, and leave; at most `timeout` seconds."""
        running.discard(self)
        drained = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout * 0.6):
                await self._drain()
                drained = True
        self._parts.deadlines.stop()
        await self.supervisor.stop(timeout * 0.2)
        if self.available and self.options.anchor_audit is not None:
            failed = "the audit chains were not signed at the stop"
            await periodic.in_thread(self.options.anchor_audit, failed, timeout * 0.1)
        if self.available:
            with contextlib.suppress(TimeoutError, psycopg.Error, OSError):
                async with asyncio.timeout(timeout * 0.1):
                    await self.route_tallies.write(self.connections["requests"])
                    await reaper.leave(self.connections["requests"], self.node, self.health, drained)
        await self.connections.close()

    async def _drain(self) -> None:
        self.fetcher.stop()
        await _until(lambda: self.writer.idle and not self.prefetched_queues.claiming and self.mailboxes.idle)
        for queue in self.prefetched_queues:
            outstanding = [(entry[0], tag) for tag, entry in queue.unacked.items()]
            self.settlements.hand_back(queue.prefetch.take_all())
            self.settlements.hand_back(outstanding, queue.audited)
        self.settlements.hurry()
        await _until(lambda: self.settlements.idle)


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for something that only a stop waits for, and that therefore needs no event of its own."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
