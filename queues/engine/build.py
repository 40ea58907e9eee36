"""Makes the parts of one process's engine, gives each its collaborators, and passes on what one reports to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from queues.engine.backpressure import Barriers, Saturation
from queues.engine.clients import Clients
from queues.engine.clock import ServerClock
from queues.engine.cluster import membership, periodic, reaper
from queues.engine.cluster.lines import Lines
from queues.engine.cluster.notifications.channel import Announcer, NotificationReader
from queues.engine.cluster.notifications.handlers import Handlers, PolicyReader
from queues.engine.cluster.tidying import Tidying
from queues.engine.cluster.timeline import Timeline
from queues.engine.connections import Connections
from queues.engine.consume.deadlines import DeadlineTimer
from queues.engine.consume.fetcher import Fetcher
from queues.engine.consume.memory import FlowLimits
from queues.engine.consume.registry import PrefetchedQueues
from queues.engine.consume.subscriptions import Subscriptions
from queues.engine.database import Connection
from queues.engine.grants import Grants
from queues.engine.health import Health
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
from queues.engine.supervisor import EngineJob


class Parts:
    """The parts of one engine, each made from those above it. What one has to tell those below it, it tells a method of
    this class."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.counts = counts = Counts()
        self.health = health = Health()
        self.node = node = LocalNode(options.turn)
        clock = ServerClock()
        turn = asyncio.Lock()
        # Shared by all: the database, who may do what, what operators have set.
        self.connections = connections = Connections(options)
        self.grants = Grants(options, health, connections)
        self.clients = Clients(node, health)
        self.policies = policies = Policies(node)
        self.announcer = Announcer(health)
        max_length = MaxLength(counts, health)
        self.maintenance = periodic.Maintenance(options, node, counts, health, turn, max_length, self.ready)
        # The path of a message, from its end to its begin.
        self.settlements = settlements = SettlementWriter(
            node, clock, counts, health, max_length, self.ready, self.maintenance.due_in, self.announcer.dead,
            self.settled,
        )  # fmt: skip
        self.fetcher = fetcher = Fetcher(FlowLimits(options), node, counts, health, settlements.segments, self.writing)
        self.prefetched_queues = prefetched_queues = PrefetchedQueues(policies, connections, settlements, fetcher)
        self.subscriptions = Subscriptions(
            options, counts, node, policies, connections, prefetched_queues, settlements, self.announcer
        )
        self.routing, self.route_tallies = Routing(policies), RouteTallies()
        self.writer = PublishWriter(
            node, policies, self.routing, prefetched_queues.queues, fetcher, counts, health, max_length, self.ready,
            self.maintenance.due_in, self.subscriptions.deliver_transient, self.progress, settlements.segments,
            options.segment_messages, self.route_tallies,
        )  # fmt: skip
        self.mailboxes = MailboxService(
            options, node, policies, counts, health, self.announcer.ready, settlements, self.progress
        )
        # What clients wait for.
        self.barriers = Barriers(health)
        self.saturation = Saturation(health, self.overfull)
        self.deadlines = DeadlineTimer(prefetched_queues.schedule.deliveries, health, self.held_up)
        # The node among others.
        confirmed = self.writer.confirmed, self.mailboxes.confirmed
        self.timeline = Timeline(options.name, counts, node, clock, self.forget_history, confirmed)
        self.tidying = Tidying(node, health, prefetched_queues, fetcher, turn)
        self.lines = Lines(node, prefetched_queues.schedule)
        self.on_periodic_change: list[Callable[[], None]] = []
        handlers = Handlers(
            node, policies, PolicyReader(policies, self.reread), prefetched_queues, self.subscriptions, settlements,
            self.grants, self.clients, self.mailboxes, self.lines, self.on_periodic_change,
        )  # fmt: skip
        self.notifications = NotificationReader(handlers.by_type, counts)

    def jobs(self) -> list[EngineJob]:
        """The coroutines that run as long as the connections last."""
        node, keep, reaping = self.node, self.maintenance, reaper.Reaper(self.counts, self.health)
        liveness = membership.Liveness(node, self.counts, self.prefetched_queues.queues, reaping)
        jobs = [
            EngineJob("writer", "writer", self.writer.run),
            EngineJob("settlements", "settlements", self.settlements.run),
            EngineJob("fetcher", "fetcher", self.fetcher.run),
            EngineJob("announcer", "requests", self.announcer.run),
            EngineJob("asking", "requests", lambda connection: self.announcer.ask(connection, node.id)),
            EngineJob("instructions", "requests", lambda connection: self.notifications.obey(connection, node.id)),
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
            EngineJob("listener", "listener", self.notifications.run),
        ]
        if self.options.mailboxes:
            jobs.append(EngineJob("mailboxes", "mailboxes", self.mailboxes.run))
            jobs.append(EngineJob("mailbox-poll", "requests", self.mailboxes.watch))
        if self.options.look_after_audit is not None:
            jobs.append(EngineJob("audit", "requests", keep.keep_audit))
        if self.options.take_sample is not None:
            jobs.append(EngineJob("samples", "requests", keep.keep_samples))
        return jobs

    # Reported by parts.

    def ready(self, queue: int, first_id: int) -> None:
        """Messages of a queue became ready in the store: tell this node's consumers and others'."""
        if (local := self.prefetched_queues.queues.get(queue)) is not None:
            local.prefetch.more_in_store(first_id)
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

    def settled(self) -> None:
        """Acknowledgements were written: places in queues with a concurrency limit may be free."""
        for id in tuple(self.policies.limited):
            queue = self.prefetched_queues.queues.get(id)
            if queue is not None and (queue.interest.known or self.policies.is_shared(id)):
                self.ready(id, queue.backlog.watermark.value + 1)
        self.progress()

    def writing(self) -> bool:
        """Whether a publish is being written or waits to be."""
        return not self.writer.idle

    @property
    def behind(self) -> bool:
        """Whether too many acknowledgements wait to be written."""
        return self.settlements.unwritten > self.options.most_unsettled

    def overfull(self, share: float) -> bool:
        """Whether more than this share of what may wait for the database does."""
        return (
            self.writer.waiting_bytes + self.mailboxes.waiting_bytes > share * self.options.pending_bytes
            or self.settlements.unwritten > share * 10 * self.options.most_unsettled
        )

    def held_up(self) -> bool:
        """Whether clients may be unable to acknowledge in time."""
        return self.saturation.reached or self.behind

    async def reread(self, queues: Sequence[int], on: Connection | None = None) -> None:
        """Read the policies of queues anew, and who serves them. Raises StoreUnavailable."""
        async with nullcontext(on) if on is not None else self.connections.asking() as connection:
            await self.policies.load(connection, queues, again=True)
            for queue in queues:
                if not self.prefetched_queues.obey(queue):
                    self.subscriptions.drop_queue(queue)
                self.mailboxes.change_policy(queue)

    async def forget_history(self, connection: Connection) -> None:
        """The store has another past: nothing that is remembered of messages may be used."""
        await self.subscriptions.move_tags(connection)
        self.settlements.forget_history()
        self.prefetched_queues.forget_history()
        self.mailboxes.forget_history()
        self.writer.forget_history()
