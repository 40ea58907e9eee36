"""Subscriptions of topics as this node serves them, and their QoS 0 messages, which live in memory only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from queues.database.sql_files import array
from queues.engine.clock import now
from queues.engine.connections import Connections
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.consume.registry import PrefetchedQueues
from queues.engine.database import Connection
from queues.engine.errors import QueueNotFound, QuotaExceeded, StoreUnavailable
from queues.engine.isolation import halves
from queues.engine.message import POSITION, Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions
from queues.engine.policies import Policies
from queues.engine.settle.writer import SettlementWriter

#: Delivery tags that a node reserves at a time: enough for years, so that no delivery waits for more.
TAGS = 1 << 44
#: Subscriptions made in one transaction.
MADE_AT_ONCE = 100
#: Seconds that a late acknowledgement waits until returned messages are written.
RETURNING = 5.0
#: Seconds for which an unknown id is not looked up again.
FORGET_UNKNOWN = 1.0


@dataclass(slots=True, eq=False)
class LocalSubscription:
    """A subscription and its queue on this node."""

    id: int
    topic: bytes
    qos: int
    buffer: PrefetchedQueue
    options: EngineOptions
    #: QoS 0 messages, each with the last message id that was known when it came; the oldest go first.
    transient: deque[tuple[int, bytes]] = field(default_factory=deque)
    transient_bytes: int = 0

    def hold_transient(self, body: bytes, after: int) -> int:
        """Keep a QoS 0 message until it is polled, behind stored ones up to the id `after`; returns how many older
        QoS 0 messages had to go."""
        self.transient.append((after, body))
        self.transient_bytes += len(body)
        dropped = 0
        messages, size = self.options.transient_messages, self.options.transient_bytes
        while len(self.transient) > messages or self.transient_bytes > size:
            self.take_transient()
            dropped += 1
        return dropped

    def take_transient(self) -> bytes:
        """The oldest QoS 0 message. Raises IndexError when there is none."""
        _, body = self.transient.popleft()
        self.transient_bytes -= len(body)
        return body

    @property
    def transient_is_next(self) -> bool:
        """Whether the oldest QoS 0 message, of which there must be one, came before all that waits in the store."""
        buffer = self.buffer
        if buffer.policy.paused:
            return True
        if buffer.ready:
            return self.transient[0][0] < buffer.ready[0][0] & POSITION
        return not buffer.backlog.unclaimed


#: The outcome of a wanted subscription: its id, its queue's, its first delivery tag; or the error.
_Made = tuple[int, int, int] | Exception


@dataclass(slots=True, eq=False)
class _Wanted:
    """A requested subscription."""

    topic: bytes
    qos: int
    owner: int | None
    made: asyncio.Future[_Made]


class Forwarding(Protocol):
    """The way to other nodes that serve a queue: the `Announcer`."""

    def forward_transient(self, queue: int, node: int, body: bytes) -> bool: ...
    def forward_acks(self, queue: int, tags: tuple[int, ...], consumer: int | None) -> None: ...


@dataclass(eq=False, repr=False)
class Subscriptions:
    """All subscriptions that this node has been asked for."""

    _options: EngineOptions
    _counts: Counts
    _node: LocalNode
    _policies: Policies
    _connections: Connections
    _prefetched_queues: PrefetchedQueues
    _settlements: SettlementWriter
    _forwarding: Forwarding
    _by_id: dict[int, LocalSubscription] = field(default_factory=dict)
    _by_queue: dict[int, LocalSubscription] = field(default_factory=dict)
    _unknown: dict[int, float] = field(default_factory=dict)
    #: Subscriptions to make, and the task that makes them.
    _wanted: list[_Wanted] = field(default_factory=list)
    _making: asyncio.Task[None] | None = None
    #: Subscriptions of each API key: the last count, and those made here since.
    _owned: dict[int, int] = field(default_factory=dict)

    def get(self, id: int) -> LocalSubscription | None:
        """A subscription that has been loaded; the hot path."""
        return self._by_id.get(id)

    def unknown(self, id: int) -> bool:
        """Whether it was looked up a moment ago and did not exist."""
        return now() - self._unknown.get(id, -FORGET_UNKNOWN) < FORGET_UNKNOWN

    async def create(self, topic: bytes, qos: int, owner: int | None) -> LocalSubscription:
        """Subscribe to a topic; on return no publish confirmed later on any node misses it.

        Raises StoreUnavailable; QuotaExceeded; QueueNotFound when an operator removes it meanwhile.
        """
        if owner is not None:
            await self._count(owner)
        wanted = _Wanted(topic, qos, owner, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        if self._making is None:
            self._making = asyncio.create_task(self._make_wanted())
        made = await asyncio.shield(wanted.made)
        if isinstance(made, Exception):
            raise made
        id, queue, first_tag = made
        subscription = await self._open(id, queue, topic, qos, first_tag)
        if subscription is None:
            raise QueueNotFound(f"subscription {id} was removed as soon as it was made")
        return subscription

    async def _make_wanted(self) -> None:
        """Make wanted subscriptions, all that wait in one transaction, which takes the topology's lock at its end."""
        try:
            while self._wanted:
                some, self._wanted = self._wanted[:MADE_AT_ONCE], self._wanted[MADE_AT_ONCE:]
                await self._make(some)
        finally:
            self._making = None

    async def _make(self, some: list[_Wanted]) -> None:
        """Make these subscriptions; if one cannot be made, the others."""
        try:
            rows = await self._insert(some)
        except Exception as error:
            smaller = [] if isinstance(error, StoreUnavailable) else halves(some)
            for part in smaller:
                await self._make(part)
            for wanted in () if smaller else some:
                wanted.made.set_result(error)
            return
        outcomes: Sequence[_Made] = rows
        try:
            await self._prefetched_queues.load_policies([queue for _, queue, _ in rows])
        except Exception as error:
            outcomes = [error] * len(some)
        for wanted, outcome in zip(some, outcomes, strict=True):
            wanted.made.set_result(outcome)

    async def _insert(self, some: list[_Wanted]) -> list[tuple[int, int, int]]:
        options = self._options
        return await self._connections.request(
            "subscribe",
            topics=[wanted.topic for wanted in some],
            labels=["".join(c for c in wanted.topic.decode("utf-8", "replace") if c.isprintable()) for wanted in some],
            qoses=[wanted.qos for wanted in some],
            owners=[wanted.owner for wanted in some],
            max_attempts=options.subscription_max_attempts,
            retry_backoff=options.subscription_retry_backoff,
            tags=TAGS,
        )

    async def _count(self, owner: int) -> None:
        """One subscription more of this API key. Its others were counted in the store once, and are again when it seems
        to have too many: other nodes make and operators remove some. Raises QuotaExceeded or StoreUnavailable."""
        most = self._options.subscriptions_per_key
        count = self._owned.get(owner)
        if count is None or count >= most:
            ((count,),) = await self._connections.look_up("count_subscriptions", owner=owner)
        if count >= most:
            raise QuotaExceeded(f"{most} subscriptions")
        self._owned[owner] = count + 1

    async def load(self, id: int) -> LocalSubscription | None:
        """The subscription of this id, or None. Raises StoreUnavailable."""
        if (known := self._by_id.get(id)) is not None:
            return known
        rows = await self._connections.look_up("subscription", id=id) if id < 1 << 63 else []
        if not rows:
            if len(self._unknown) > 10_000:
                self._unknown.clear()
            self._unknown[id] = now()
            return None
        [(queue, topic, qos)] = rows
        rows = await self._connections.look_up("take_tags", queue=queue, count=TAGS)
        return await self._open(id, queue, bytes(topic), qos, rows[0][0]) if rows else None

    async def _open(self, id: int, queue: int, topic: bytes, qos: int, first_tag: int) -> LocalSubscription | None:
        try:
            buffer = await self._prefetched_queues.open(queue, first_tag)
        except QueueNotFound:
            return None
        if id not in self._by_id:
            buffer.interest.settle_anywhere()
            made = LocalSubscription(id, topic, qos, buffer, self._options)
            self._by_id[id] = self._by_queue[queue] = made
        self._unknown.pop(id, None)
        return self._by_id[id]

    def forget(self, id: int) -> None:
        """Forget a subscription that was made or removed elsewhere. Its next use looks it up."""
        self._unknown.pop(id, None)
        known = self._by_id.get(id)
        if known is not None and known.buffer.closed:
            self._drop(known)

    def _drop(self, subscription: LocalSubscription) -> None:
        self._by_id.pop(subscription.id, None)
        self._by_queue.pop(subscription.buffer.id, None)

    def drop_queue(self, queue: int) -> None:
        """Remove a subscription whose queue is gone."""
        if (known := self._by_queue.get(queue)) is not None:
            self._drop(known)

    async def move_tags(self, connection: Connection) -> None:
        """The store has another past: see that it does not give the tags of this node's deliveries to another."""
        buffers = [subscription.buffer for subscription in self._by_id.values()]
        parameters = {
            "queues": array(buffer.id for buffer in buffers),
            "tags": array(buffer.held.next_tag + TAGS for buffer in buffers),
        }
        await connection.run("move_tags", parameters)

    # QoS 0.

    def deliver_transient(self, queue: int, bodies: list[bytes]) -> None:
        """Hand QoS 0 messages to the subscription of a queue, here and on other nodes that serve it."""
        here = self._by_queue.get(queue)
        others = self._policies.others(queue)
        served_here = here is not None and here.buffer.interest.known
        dropped = 0
        for body in bodies:
            if here is not None and (served_here or not others):
                dropped += here.hold_transient(body, self._node.last_id)
            elif others and len(body) <= self._options.transient_forward_bytes:
                dropped += not self._forwarding.forward_transient(queue, min(others), body)
            else:
                dropped += 1
        self._counts.transient_dropped += dropped

    def take_forwarded(self, queue: int, body: bytes) -> None:
        """Another node passes a QoS 0 message on."""
        if (here := self._by_queue.get(queue)) is not None:
            self._counts.transient_dropped += here.hold_transient(body, self._node.last_id)

    # Late acknowledgements.

    async def ack_late(self, subscription: LocalSubscription, tags: list[int], consumer: int | None) -> set[int]:
        """Settle by tags that are not outstanding here; returns those that are unknown.

        A message that waits to go out again keeps its tag in the store; one that is with another node is settled
        there. Raises StoreUnavailable.
        """
        queue = subscription.buffer.id
        audited = subscription.buffer.audited
        try:
            async with asyncio.timeout(RETURNING):
                await (self._settlements if audited is None else audited).returns.settled()
        except TimeoutError:
            raise StoreUnavailable("returned messages cannot be written") from None
        asked = [tag for tag in tags if tag < 1 << 63]
        rows = await self._connections.look_up("find_tags", queue=queue, tags=array(asked))
        found = {row[0] for row in rows}
        for tag, id, waits, node in rows:
            if not waits and node != self._node.id:
                self._forwarding.forward_acks(queue, (tag,), consumer)
            elif not subscription.buffer.deliveries.ack(tag, consumer):  # unless it is claimed
                subscription.buffer.deliveries.settle_late(id, now(), consumer)
        missing = set(tags) - found
        if missing and (self._policies.is_shared(queue) or await self._served_elsewhere(queue)):
            known = tuple(sorted(tag for tag in missing if tag < 1 << 63))
            self._forwarding.forward_acks(queue, known, consumer)
            return set()
        return missing

    async def _served_elsewhere(self, queue: int) -> bool:
        """Whether another node serves a queue by the store: a delivery that it just made may be older than its news."""
        return bool(await self._connections.look_up("served_elsewhere", queues=array([queue]), node=self._node.id))
