"""The engine of one process, used by the sessions of every protocol.

A façade: it makes the parts, gives each its collaborators, and passes reports of one part to the others. Its life is
the supervisor's: `start` connects, refuses an unsafe server, registers the node and begins to work; when a connection
is lost, all leases count as lost too (other nodes may have them by then), and the engine comes back as a new node;
`stop` writes pending work, hands back held messages, and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from uuid import uuid4
from weakref import WeakSet

import psycopg

from queues.database import hosts
from queues.engine.backpressure import Barriers, Saturation
from queues.engine.clients import Clients
from queues.engine.clock import ServerClock, now
from queues.engine.cluster import membership, periodic, reaper
from queues.engine.cluster.lines import Lines
from queues.engine.cluster.notifications.channel import Announcer, NotificationReader
from queues.engine.cluster.notifications.formats import CHANNEL
from queues.engine.cluster.notifications.handlers import Handlers, PolicyReader
from queues.engine.cluster.tidying import Tidying
from queues.engine.cluster.timeline import Timeline
from queues.engine.connections import Connections
from queues.engine.consume.deadlines import DeadlineTimer
from queues.engine.consume.fetcher import Fetcher
from queues.engine.consume.local_queue import LocalQueue
from queues.engine.consume.memory import FlowLimits
from queues.engine.consume.registry import LocalQueues
from queues.engine.consume.subscriptions import Subscriptions
from queues.engine.database import Connection, check_server
from queues.engine.grants import Grants
from queues.engine.health import KINDS, Health
from queues.engine.mailbox.service import MailboxService
from queues.engine.max_length import MaxLength
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions
from queues.engine.policies import Policies
from queues.engine.publish.group_commit import PublishWriter
from queues.engine.publish.route_tallies import RouteTallies
from queues.engine.publish.routing import Routing
from queues.engine.settle.writer import SettlementWriter
from queues.engine.supervisor import EngineJob, Supervisor, Writing

#: Below so many unsettled acknowledgements, those that a reply waits for are written at once.
FEW_UNSETTLED = 64

#: The engines of this process that have been started.
running: WeakSet[Engine] = WeakSet()


class Engine:
    """One process's engine. Sessions use the attributes and methods of the first section only, and those of its parts
    that `__init__` offers them."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.counts = counts = Counts()
        self.health = health = Health()
        self._node = node = LocalNode(options.turn)
        self._id = uuid4()
        clock = ServerClock()
        self.connections = connections = Connections(options)
        self.grants = Grants(options, health, connections)
        #: The connections of clients, as operators see them.
        self.clients = Clients(node, health)
        self.policies = policies = Policies(node)
        self.routing = Routing(policies)
        self.route_tallies = RouteTallies()
        self.announcer = Announcer(health)
        max_length = MaxLength(counts, health)
        self.barriers = Barriers(health)
        self.saturation = Saturation(health, self._overfull)
        turn = asyncio.Lock()
        self.maintenance = periodic.Maintenance(options, node, counts, health, turn, max_length, self._ready)
        self.settlements = SettlementWriter(
            node, clock, counts, health, max_length, self._ready, self.maintenance.due_in, self.announcer.dead,
            self._settled,
        )  # fmt: skip
        self.fetcher = Fetcher(
            FlowLimits(options), node, counts, health, self.settlements.segments, lambda: not self.writer.idle
        )
        self.local_queues = LocalQueues(policies, connections, self.settlements, self.fetcher)
        self.subscriptions = Subscriptions(
            options, counts, node, policies, connections, self.local_queues, self.settlements, self.announcer,
            lambda: self.last_id,
        )  # fmt: skip
        self.writer = PublishWriter(
            node, policies, self.routing, self.local_queues.queues, self.fetcher, counts, health, max_length,
            self._ready, self.maintenance.due_in, self.subscriptions.deliver_transient, self.progress,
            self.settlements.segments, options.segment_messages, self.route_tallies,
        )  # fmt: skip
        #: The letters of named peers, in a process that serves some.
        self.mailboxes = MailboxService(
            options, node, policies, counts, health, self.announcer.ready, self.settlements, self.progress
        )
        self.writing: Sequence[Writing] = self.writer, self.mailboxes
        #: Called with True when sockets should not be read, and with False when they may be again.
        self.on_saturation = self.saturation.on_change
        #: Called with the id of an API key that was changed or revoked.
        self.on_key_change = self.grants.on_change
        #: Called when a periodic job may be due earlier than was known, or a bulk operation has begun.
        self.on_periodic_change: list[Callable[[], None]] = []
        confirmed = self.writer.confirmed, self.mailboxes.confirmed
        self.timeline = Timeline(
            options.name, counts, node, clock, lambda: self.last_id, self._forget_history, confirmed
        )
        self.tidying = Tidying(node, health, self.local_queues, self.fetcher, turn)
        self.lines = Lines(node, self.local_queues.schedule)
        handlers = Handlers(
            node, policies, PolicyReader(policies, self.reread), self.local_queues, self.subscriptions,
            self.settlements, self.grants, self.clients, self.mailboxes, self.lines, self.on_periodic_change,
        )  # fmt: skip
        self._notifications = NotificationReader(handlers.by_type, counts)
        self._deadlines = DeadlineTimer(
            self.local_queues.schedule.deliveries, health, lambda: self.saturation.reached or self.behind
        )
        # Used by sessions, as its parts have it.
        self.publisher = self.writer.publisher
        self.settles = self.settlements.settles
        self.hold = self.barriers.hold
        self.unhold = self.barriers.unhold
        self.check_saturation = self.saturation.check
        self.authenticate = self.grants.authenticate
        self.grant_named = self.grants.named
        self.queue = self.local_queues.named
        self.dead_letters = self.local_queues.dead_letters_of
        self.with_consumers = self.local_queues.with_consumers
        self.prefetched = self.local_queues.prefetched
        self.request = connections.request
        self.look_up = connections.look_up
        self.descriptors = connections.descriptors
        #: A life has begun: every queue may have messages in the store.
        self.look_again = self.local_queues.look_again
        self.jobs: Sequence[EngineJob] = self._all_jobs()
        self.supervisor = Supervisor(self, options, counts, health, node, connections)

    def _all_jobs(self) -> list[EngineJob]:
        """The coroutines that run as long as the connections last."""
        node, keep, reaping = self._node, self.maintenance, reaper.Reaper(self.counts, self.health)
        liveness = membership.Liveness(node, self.counts, self.local_queues.queues, reaping)
        jobs = [
            EngineJob("writer", "writer", self.writer.run),
            EngineJob("settlements", "settlements", self.settlements.run),
            EngineJob("fetcher", "fetcher", self.fetcher.run),
            EngineJob("announcer", "requests", self.announcer.run),
            EngineJob("asking", "requests", lambda connection: self.announcer.ask(connection, node.id)),
            EngineJob("instructions", "requests", lambda connection: self._notifications.obey(connection, node.id)),
            EngineJob("history", "lookups", self.timeline.run),
            EngineJob("grants", "lookups", self.grants.run),
            EngineJob("key-uses", "requests", self.grants.note_uses),
            EngineJob("clients", "requests", self.clients.run),
            EngineJob("routes", "requests", self.route_tallies.run),
            EngineJob("lines", "requests", self.lines.run),
            EngineJob("delays", "delays", keep.promote_due),
            EngineJob("liveness", "liveness", liveness.run),
            EngineJob("reaper", "reaper", reaping.run),
            EngineJob("sweep", "upkeep", keep.sweep),
            EngineJob("rotation", "upkeep", keep.rotate),
            EngineJob("tidying", "upkeep", self.tidying.run),
            EngineJob("partitions", "upkeep", keep.keep_partitions),
            EngineJob("listener", "listener", self._notifications.run),
        ]
        if self.options.mailboxes:
            jobs.append(EngineJob("mailboxes", "mailboxes", self.mailboxes.run))
            jobs.append(EngineJob("mailbox-poll", "requests", self.mailboxes.watch))
        if self.options.look_after_audit is not None:
            jobs.append(EngineJob("audit", "requests", keep.keep_audit))
        if self.options.take_sample is not None:
            jobs.append(EngineJob("samples", "requests", keep.keep_samples))
        return jobs

    # Used by sessions.

    @property
    def node(self) -> int:
        """The id of this process's node; another after each reconnect."""
        return self._node.id

    @property
    def available(self) -> bool:
        """Whether the database is there."""
        return self.connections.available

    @property
    def last_id(self) -> int:
        """The last message id that this process has stored or claimed, without its priority."""
        return max(self.writer.last_id, self.fetcher.last_id)

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
        return self.settlements.unwritten > self.options.most_unsettled

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

    def settling_of(self, buffer: LocalQueue) -> int:
        """The round of this queue's last acknowledgement: an audited queue is written by itself, and replies to it wait
        for its chain."""
        return self.settlements.round if buffer.audited is None else buffer.audited.settling

    def set_prefetch(self, messages: int) -> None:
        """Take at most so many messages into memory for each queue, from the next claim on."""
        self.fetcher.limits.set_prefetch(messages)

    async def refresh(self, name: str) -> None:
        """Obey a queue's policy as it is now, not only once its change is heard of. Raises StoreUnavailable."""
        if ids := self.local_queues.ids_of(name):
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

    # Reported by parts.

    def _ready(self, queue: int, first_id: int) -> None:
        """Messages of a queue became ready in the store: tell this node's consumers and others'."""
        if (local := self.local_queues.queues.get(queue)) is not None:
            local.more_in_store(first_id)
        else:
            self.mailboxes.more_in_store(queue, first_id)
        if self.policies.is_shared(queue):
            self.announcer.ready(queue, first_id)
        else:
            self.announcer.ready_for_any(queue, first_id)

    def progress(self) -> None:
        """Something was committed, or given up: send the replies that waited for it, and read again."""
        self.barriers.release()
        self.saturation.ease()

    def _settled(self) -> None:
        """Acknowledgements were written: places in queues with a concurrency limit may be free."""
        for id in tuple(self.policies.limited):
            queue = self.local_queues.queues.get(id)
            if queue is not None and (queue.interest.known or self.policies.is_shared(id)):
                self._ready(id, queue.backlog.watermark.value + 1)
        self.progress()

    def _overfull(self, share: float) -> bool:
        return (
            self.waiting_bytes > share * self.options.pending_bytes
            or self.settlements.unwritten > share * 10 * self.options.most_unsettled
        )

    async def reread(self, queues: Sequence[int]) -> None:
        """Read the policies of queues anew, and who serves them. Raises StoreUnavailable."""
        async with self.connections.asking() as connection:
            await self._reread(connection, queues)

    async def _reread(self, connection: Connection, queues: Sequence[int]) -> None:
        await self.policies.load(connection, queues, again=True)
        for queue in queues:
            if not self.local_queues.obey(queue):
                self.subscriptions.drop_queue(queue)
            self.mailboxes.change_policy(queue)

    async def _forget_history(self, connection: Connection) -> None:
        """The store has another past: nothing that is remembered of messages may be used."""
        await self.subscriptions.move_tags(connection)
        self.settlements.forget_history()
        self.local_queues.forget_history()
        self.mailboxes.forget_history()
        self.writer.forget_history()

    # Life.

    async def start(self, *, patient: bool = False) -> None:
        """Connect and begin; with `patient`, wait for a server that takes no connections, or no writes, for now. Raises
        UnsafeServer, UnsupportedServer, NotMigrated, or psycopg.OperationalError."""
        await self.supervisor.start(patient=patient)
        running.add(self)
        self._deadlines.start()

    async def begin_life(self) -> None:
        """Become a node, on new connections. Raises the error that makes the database unfit for use."""
        former = await self.connections.open()
        beginning = self.connections["reaper"]  # its commits wait for no standby
        await check_server(beginning)
        await reaper.settle_predecessors(beginning, self.options.host, former, self.health)
        self.connections.forget_former()
        await self.timeline.check(beginning)
        self._node.trust_from(now())
        self._node.begin(*await membership.register(self.connections["liveness"], self.options, self._id))
        await self.connections["listener"].execute(f"listen {CHANNEL}".encode())
        self.routing.forget()
        self.grants.look()
        await self._reread(self.connections["lookups"], tuple(self.policies.by_id))

    def end_life(self) -> None:
        """The connections are lost, and every lease with them."""
        self.settlements.forget_leases()
        self.lines.forget()
        self.local_queues.lose_leases()
        self.mailboxes.lose_connections()

    async def stop(self, timeout: float = 10.0) -> None:
        """Write pending work, hand back held messages, and leave; at most `timeout` seconds."""
        running.discard(self)
        drained = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout * 0.6):
                await self._drain()
                drained = True
        self._deadlines.stop()
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
        await _until(lambda: self.writer.idle and not self.local_queues.claiming and self.mailboxes.idle)
        for queue in self.local_queues:
            outstanding = [(entry[0], tag) for tag, entry in queue.unacked.items()]
            self.settlements.hand_back(queue.take_all())
            self.settlements.hand_back(outstanding, queue.audited)
        self.settlements.hurry()
        await _until(lambda: self.settlements.idle)


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for something that only a stop waits for, and that therefore needs no event of its own."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
