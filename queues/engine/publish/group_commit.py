"""Group commit: everything that is pending becomes one transaction, and only then is anything confirmed or delivered.

Batches are numbered. A publish belongs to `open_batch`; `committed` is the last batch that is durable; a reply that
must not overtake a publish waits until `committed` has reached its batch. Nothing waits to fill a batch: while one
is being written the next one grows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, repeat

import psycopg

from queues.engine import audit
from queues.engine.cache import Cache
from queues.engine.clock import now
from queues.engine.confirmed import Confirmations
from queues.engine.consume.fetcher import Fetcher
from queues.engine.consume.memory import OVERHEAD
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.database import Connection
from queues.engine.driver import Answer
from queues.engine.errors import EngineError, QueueFull, StoreUnavailable, TopologyMoved, Unstorable
from queues.engine.faults import told
from queues.engine.health import Health, Trouble
from queues.engine.isolation import StoreBackoff, carry_out, halves
from queues.engine.max_length import MaxLength
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.policies import Policies
from queues.engine.publish.destination import Destination
from queues.engine.publish.insert_plan import Insert, Plan, Write
from queues.engine.publish.publisher import OpenBatch, Publisher, PublishGroup
from queues.engine.publish.route_tallies import RouteTallies
from queues.engine.publish.routing import UNKNOWN, Routing
from queues.engine.settle.audited_queues import KeyNames, queue_chain
from queues.engine.settle.segments import OpenSegments

#: A part of a batch: publishers with their groups.
Work = list[tuple[Publisher, list[PublishGroup]]]


#: An open transaction has stored a message with this key.
KEY_HELD = psycopg.errors.LockNotAvailable
KEY_IS_HELD = "an unfinished transaction holds the key"
#: The topology's lock may be waited for long. A key is waited for briefly, because others then wait for the topology's
#: lock.
KEY_TIMEOUT = b"select queues_topology_version(), set_config('lock_timeout', '20ms', true)"
NO_KEY_TIMEOUT = b"set local lock_timeout to default"
#: Seconds between two tries of a batch with locked keys, and seconds for all tries.
KEY_PAUSE = 0.02
KEY_PATIENCE = 0.3
#: After a wait for locked keys the writer does not wait again for this many times as long.
KEY_REST = 10
#: Limits of the publisher cache: publishers, and bytes of their destinations' names. Connections keep their own
#: references.
MAX_PUBLISHERS = 100_000
MAX_PUBLISHER_BYTES = 32 << 20
#: The trouble in /readyz while the writer cannot write.
STORING = Trouble("Publishes are not stored", "publishes")


class KeyIsHeld(Exception):
    """An open transaction holds the key of one of these messages."""


@dataclass(eq=False, repr=False)
class PublishWriter:
    """Takes open batches and writes them.

    `more_in_store(queue id, lowest id)` is told of messages left ready, `due_in(seconds)` of delayed ones;
    `deliver_transient(queue id, bodies)` hands QoS 0 messages on; `on_commit()` is called after each batch.
    """

    duty = STORING

    node: LocalNode
    policies: Policies
    routing: Routing
    prefetched_queues: Mapping[int, PrefetchedQueue]
    fetcher: Fetcher
    counts: Counts
    health: Health
    max_length: MaxLength
    more_in_store: Callable[[int, int], None]
    due_in: Callable[[float], None]
    deliver_transient: Callable[[int, list[bytes]], None]
    on_commit: Callable[[], None]
    segments: OpenSegments
    segment_messages: int
    route_tallies: RouteTallies
    #: The last batch that is durable.
    committed: int = 0
    _publishers: Cache[tuple[Destination, int | None], Publisher] = field(default_factory=lambda: Cache(
        MAX_PUBLISHERS, MAX_PUBLISHER_BYTES, lambda at, _: 400 + len(at[0].name), lambda one: not one.groups
    ))  # fmt: skip
    #: The batch being written: one part, or several after a message could not be stored.
    _taken: deque[Work] = field(default_factory=deque)
    _taken_bytes: int = 0
    _open: OpenBatch = field(default_factory=OpenBatch)
    #: Keys of the current batch that another transaction holds.
    _held_keys: set[str] = field(default_factory=set)
    #: Start of the wait for this batch's locked keys, and the time before which there is no further wait.
    _waits_since: float | None = None
    _rests_until: float = 0.0
    _backoff: StoreBackoff = field(default_factory=StoreBackoff)
    #: Monotonic time since which a taken batch waits for the database.
    waiting_since: float | None = None
    #: The last confirmed commit.
    confirmed: Confirmations = field(default_factory=Confirmations)
    _names: KeyNames = field(default_factory=KeyNames)
    #: The topology's version up to which changes of audited queues are in their chains.
    _sealed: int = UNKNOWN

    def publisher(self, destination: Destination, key: int | None = None) -> Publisher:
        """The publisher for a destination and an API key."""
        found = self._publishers.get((destination, key))
        if found is None:
            found = Publisher(self._open, destination, key)
            self._publishers.put((destination, key), found)
            self._publishers.trim()
        return found

    @property
    def open_batch(self) -> int:
        """The number of the batch that the next publish belongs to."""
        return self._open.number

    @property
    def idle(self) -> bool:
        return not self._open.publishers and not self._taken

    async def run(self, connection: Connection) -> None:
        """Write for ever. Raises when the connection is lost, and may be run again with another."""
        self.waiting_since = None
        while True:
            if self._taken:
                self.waiting_since = self.waiting_since or now()
                await self._write_taken(connection)
            elif self._open.publishers:
                self._take()
            else:
                self.fetcher.take_back()
                await self._open.filled()

    def fail(self, error: EngineError) -> None:
        """Drop all waiting publishes and report them as failed. The batch being written may still be stored; then it is
        delivered but not confirmed."""
        if self._open.publishers:
            self._take()
        taken = list(self._taken)
        self._finish()
        for work in taken:
            for _, group in _groups(work):
                self._reject(group, error)

    def forget_history(self) -> None:
        """The store's history differs: forget its audit chains and keys."""
        self._names = KeyNames()
        self._sealed = UNKNOWN

    def _take(self) -> None:
        self._taken_bytes = self._open.bytes
        self._taken.append(self._open.take())

    def _finish(self) -> None:
        self._taken.clear()
        self._taken_bytes = 0
        self.committed = self.open_batch - 1
        self.counts.batches += 1

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all publishes that are not yet durable."""
        return self._open.bytes + self._taken_bytes

    async def _write_taken(self, connection: Connection) -> None:
        """Store the batch taken, then confirm and deliver it."""
        batch = self.open_batch
        write = partial(self._write_part, connection)
        refused = await carry_out(self._taken, write, self._take_apart, self._refuse, connection)
        self._held_keys.clear()
        if self._waits_since is not None:
            self._rests_until = now() + KEY_REST * (now() - self._waits_since)
            self._waits_since = None
        if not self._taken and self.committed < batch - 1:  # its last part was refused
            self._finish()
            self.on_commit()
        if refused is None:
            self.waiting_since = None
        await self._backoff.after(refused, self.health, STORING)

    async def _write_part(self, connection: Connection, work: Work) -> None:
        """Store a part of the batch taken, in one transaction, and deliver it.

        First the last of each backlog is claimed: only here nothing new can come between the claim and the write,
        so that messages written now may go to memory at once.
        """
        if self._held_keys and any(self._held_keys.intersection(group.keys) for _, group in _groups(work)):
            raise KeyIsHeld()  # so as not to wait for it again
        while True:
            try:
                plan = await self._plan(connection, work)
                await self._store(connection, plan)
            except TopologyMoved:
                await self.routing.follow(connection)
                continue  # with the new routes
            except KEY_HELD as error:
                if _single(work) is None or not self._may_wait():
                    raise KeyIsHeld() from error
                await asyncio.sleep(KEY_PAUSE)  # outside any transaction: no locks are held
                continue
            break
        if not self._taken or self._taken[0] is not work:
            plan.forget_producers()  # its producers were told that it failed
        elif len(self._taken) == 1:
            self._finish()
        self._answer(plan)
        self.on_commit()  # a confirm does not wait until the messages are in memory
        self._deliver(plan)

    def _may_wait(self) -> bool:
        """Whether to wait for a locked key. A client that sends many of them must not cost others much time."""
        time = now()
        if self._waits_since is None:
            if time < self._rests_until:
                return False
            self._waits_since = time
        return time - self._waits_since < KEY_PATIENCE

    def _take_apart(self, work: Work, error: Exception) -> list[Work]:
        """Split a part that could not be stored. A message with a locked key is waited for once."""
        if isinstance(error, KeyIsHeld):
            one = _single(work)
            if one is not None:
                self._held_keys.update(one[1].keys)
                return []
            runs: list[Work] = [
                [(publisher, [group.cut(start, stop)])]
                for publisher, group in _groups(work)
                for start, stop in _runs(group)
            ]
            if len(runs) > 1:
                return runs
        groups = _groups(work)
        if len(groups) > 1:
            return [[(publisher, [group]) for publisher, group in some] for some in halves(groups)]
        [(publisher, group)] = groups
        if isinstance(error, audit.ChainBroken):
            return []
        return [[(publisher, [group.cut(some[0], some[-1] + 1)])] for some in halves(range(len(group.bodies)))]

    def _refuse(self, work: Work, error: Exception) -> None:
        """Refuse a message that cannot be stored, or all messages of an audited queue whose chain is broken."""
        [(publisher, group)] = _groups(work)
        answer: EngineError
        if isinstance(error, KeyIsHeld):
            answer = StoreUnavailable(KEY_IS_HELD)
        elif isinstance(error, audit.ChainBroken):
            self.health.begin(audit.trouble(error.chain), error.why)
            answer = Unstorable(str(error))
        else:
            key = group.keys[0] if group.keys else None
            self.health.isolate("publish", error, address=str(publisher.destination), producer=publisher.key, key=key)
            answer = error if isinstance(error, EngineError) else Unstorable(_reason(error))
        self._reject(group, answer)

    def _reject(self, group: PublishGroup, error: EngineError) -> None:
        self.counts.rejected += len(group.bodies)
        for producer, token in zip(group.producers, group.tokens, strict=True):
            self.health.guard("session", producer, producer.publish_failed, token, error)

    async def _plan(self, connection: Connection, work: Work) -> Plan:
        routing = self.routing
        unknown = [publisher.destination for publisher, _ in work if routing.targets(publisher.destination) is None]
        if unknown:
            await routing.resolve(connection, unknown)
        if self.fetcher.nearly_done:
            await self.fetcher.finish(connection)
        plan = Plan(self.segment_messages)
        time = now()
        for publisher, groups in work:
            targets = routing.targets(publisher.destination)
            if targets is None:
                raise TopologyMoved()
            for group in groups:
                plan.add(
                    group, publisher.destination, targets, publisher.key, self.policies.by_id,
                    self.prefetched_queues, time,
                )  # fmt: skip
        return plan

    async def _store(self, connection: Connection, plan: Plan) -> None:
        """Write a plan in one transaction; each write gets its `first` id and `leased`. Raises TopologyMoved."""
        plan.begin()
        try:
            keyed = any(write.group.keys for write in plan.writes)
            inserts = plan.inserts()
            if len(inserts) == 1 and not (plan.limited or plan.audited or keyed):
                await self._write(connection, inserts[0])
            elif not inserts:
                await self._check_version(connection)
            elif plan.audited and not (plan.limited or keyed):
                await self._store_recorded(connection, plan, inserts)
            else:
                if plan.audited:
                    await self._prepare_record(connection, plan)
                async with connection.transaction():
                    if plan.limited:
                        await self._admit(connection, plan)
                    if not plan.writes:  # the statements would not notice that a full queue is no longer a target
                        await self._check_version(connection)
                    if keyed:  # another transaction may hold a key for any time
                        await connection.execute(KEY_TIMEOUT)
                    await self._write_all(connection, plan.inserts())
                    if keyed and (plan.drop_oldest or plan.audited):
                        await connection.execute(NO_KEY_TIMEOUT)
                    overfull = [
                        queue for queue in plan.drop_oldest if not await self.max_length.keep_within(connection, queue)
                    ]
                    if plan.audited:
                        await audit.append_all(connection, self._records(plan))
                for queue in overfull:
                    await self.max_length.keep(connection, queue)
            for name in plan.audited.values() if inserts else ():
                self.health.end(audit.trouble(queue_chain(name)))
        except BaseException:
            plan.end()
            raise

    async def _store_recorded(self, connection: Connection, plan: Plan, inserts: list[Insert]) -> None:
        """Write a plan in two round trips, where no answer is needed in between."""
        await self._prepare_record(connection, plan)
        names = (plan.audited.get(queue) for write in plan.writes for queue in write.queues)
        async with audit.transaction(connection) as transaction:
            cursors = [await self._send(connection, insert) for insert in inserts]
            for chain in sorted({queue_chain(name) for name in names if name is not None}):
                await transaction.lock(chain)
            for insert, cursor in zip(inserts, cursors, strict=True):
                insert.store(await cursor.fetchone())
            for chain, record in self._records(plan).items():
                await transaction.append(chain, record)

    async def _prepare_record(self, connection: Connection, plan: Plan) -> None:
        """Record that queues became audited, before a transaction that records something else."""
        if self._sealed != self.routing.version:
            with contextlib.suppress(audit.AuditError):  # a broken one among these chains will show
                await audit.seal(connection)
            self._sealed = self.routing.version
        await self._names.learn(connection, (write.key for write in plan.writes))

    def _records(self, plan: Plan) -> dict[str, audit.AuditRecord]:
        """The messages stored in audited queues, by chain."""
        records: dict[str, audit.AuditRecord] = {}
        for write in plan.writes:
            producer = self._names.of(write.key)
            for queue in write.queues:
                if (name := plan.audited.get(queue)) is not None:
                    records.setdefault(queue_chain(name), audit.AuditRecord()).add_messages(
                        "publish", producer, name, write.stored_ids(queue)
                    )
        return records

    async def _check_version(self, connection: Connection) -> None:
        """Check that destinations without known targets still have none. Raises TopologyMoved."""
        [(version,)] = await connection.fetch("select queues_topology_version()")
        if version != self.routing.version:
            raise TopologyMoved()

    async def _write_all(self, connection: Connection, inserts: list[Insert]) -> None:
        """Several statements in one round trip."""
        async with connection.pipeline():
            cursors = [await self._send(connection, insert) for insert in inserts]
            for insert, cursor in zip(inserts, cursors, strict=True):
                insert.store(await cursor.fetchone())

    async def _write(self, connection: Connection, insert: Insert) -> None:
        parameters = insert.parameters(self.routing.version, self.node.id, self.node.slot)
        row = await (await connection.run("publish_leased", parameters)).fetchone() if insert.wanted else None
        insert.store(row or await (await connection.run(insert.statement, parameters)).fetchone())

    async def _send(self, connection: Connection, insert: Insert) -> Answer:
        parameters = insert.parameters(self.routing.version, self.node.id, self.node.slot)
        return await connection.run(insert.statement, parameters)

    async def _admit(self, connection: Connection, plan: Plan) -> None:
        """Cut messages beyond the length of queues that reject. A message that one queue rejects enters none."""
        rows = await connection.rows("admit", {"queues": sorted(plan.limited)})
        # One that has just lost its limit is not among them.
        room: dict[int, int] = {queue: free for queue, free in rows if free is not None}
        for queue in plan.drop_oldest:
            room.pop(queue, None)
        error = QueueFull()
        for group, writes, routes in plan.limited_groups:
            targets = [queue for write in writes for queue in write.queues if queue in room]
            accepted = max(0, min((room[queue] for queue in targets), default=len(group.bodies)))
            accepted = min(accepted, len(group.bodies))
            for queue in targets:
                room[queue] -= accepted
            plan.reject(group.cut(accepted), error, routes)
            for write in writes:
                write.keep(accepted)
        plan.drop_empty()

    def _answer(self, plan: Plan) -> None:
        """After the commit: report results to producers before replies are released."""
        for write, policy in plan.answers:
            try:
                write.answer(policy, self.health)
            except Exception as error:
                self.health.isolate("answer", error, queue=policy.id, firsts=write.firsts)
        for group, refusal in plan.rejected:
            self._reject(group, refusal)

    def _deliver(self, plan: Plan) -> None:
        """Then deliver stored and transient messages in the order of their publishes."""
        plan.end()
        transient = deque(plan.transient)
        for n, write in enumerate(plan.writes):
            while transient and transient[0][0] <= n:
                self._deliver_transient(*transient.popleft()[1:])
            try:
                self._deliver_write(write, plan)
            except Exception as error:  # a leased message in no buffer would come back only when this node ends
                self.health.isolate("delivery", error, queues=write.queues, firsts=write.firsts)
        for _, queue, bodies in transient:
            self._deliver_transient(queue, bodies)
        self.counts.dropped += plan.unroutable
        if plan.carried:
            self.route_tallies.add(plan.carried)

    def _deliver_transient(self, queue: int, bodies: list[bytes]) -> None:
        try:
            self.deliver_transient(queue, bodies)
        except Exception as error:
            self.health.isolate("transient delivery", error, queue=queue)

    def _deliver_write(self, write: Write, plan: Plan) -> None:
        """Put leased messages into memory, and announce those left in the store."""
        count = len(write.group.bodies)
        self.counts.published += count * len(write.queues)
        self.node.note_id(write.ids(write.width - 1)[-1])
        if (last := write.last_stored) is not None:
            self.confirmed.note(*last, self.waiting_since)
        if write.delayed:
            for delay in {message.delay for message in write.group.outgoing if message.delay > 0}:
                self.due_in(delay)
        size = sum(map(len, write.group.bodies)) + OVERHEAD * count
        bodies = plan.shared_payloads(write, self.fetcher.limits.memory)
        for k, (queue, leased) in enumerate(zip(write.queues, write.leased, strict=True)):
            buffer, ids = self.prefetched_queues.get(queue), write.ids(k)
            if leased and write.packed:
                self.segments.add(ids[0], count)
            elif leased and queue in write.single:
                self.segments.add_singles(ids)
            if not leased:
                self.more_in_store(queue, ids[0] - write.raised)
            elif buffer is not None and buffer is write.buffers[k]:
                if buffer.policy.taken_as_asked:  # a limit was set meanwhile
                    plain = zip(ids, write.group.bodies, repeat(0), repeat(write.own_detail))
                    buffer.prefetch.decline(write.leased_details(ids) if write.group.detailed else plain)
                elif write.group.detailed:
                    buffer.prefetch.add_claimed(write.leased_details(ids))
                else:
                    buffer.prefetch.add_run(ids, bodies, write.own_detail, size)
                buffer.prefetch.refilled()


def _groups(work: Work) -> list[tuple[Publisher, PublishGroup]]:
    return [(publisher, group) for publisher, groups in work for group in groups]


def _single(work: Work) -> tuple[Publisher, PublishGroup] | None:
    """The part's message if it has only one."""
    groups = _groups(work)
    return groups[0] if len(groups) == 1 and len(groups[0][1].bodies) == 1 else None


def _runs(group: PublishGroup) -> list[tuple[int, int]]:
    """Ranges of a group in which each message with a key is alone."""
    if not group.outgoing:
        return [(0, len(group.bodies))]
    runs, at = [], 0
    for keyed, some in groupby(message.key is not None for message in group.outgoing):
        count = sum(1 for _ in some)
        runs += [(at + n, at + n + 1) for n in range(count)] if keyed else [(at, at + count)]
        at += count
    return runs


def _reason(error: Exception) -> str:
    """The error text for a refused message's publisher: PostgreSQL's on bad data, else the kind of the error."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError | psycopg.ProgrammingError | audit.AuditError):
        return str(error)
    return told(error)
