"""Group commit: whatever is pending becomes one transaction, and only then is anything confirmed or delivered.

Batches are numbered. A publish belongs to `open_batch`; `committed` is the last batch that is durable; a reply that
must not overtake a publish waits until `committed` has reached its batch. Nothing waits to fill a batch: while one
is being written the next one grows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import repeat

import psycopg

from queues.engine import audit
from queues.engine.audited import KeyNames, queue_chain
from queues.engine.buffer import QueueBuffer
from queues.engine.claimer import Claimer
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.errors import EngineError, QueueFull, StoreUnavailable, TopologyMoved, Unstorable
from queues.engine.message import Counts
from queues.engine.plan import Plan, Write, plan_segment
from queues.engine.source import Address, Segment, Source
from queues.engine.statements import statement
from queues.engine.topology import UNKNOWN, Topology

Work = list[tuple[Source, list[Segment]]]


#: What PostgreSQL says of a message that it will never take; or what is to be recorded of it cannot be.
REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, audit.AuditError)
#: A transaction that is not finished has stored a message with this key.
KEY_HELD = psycopg.errors.LockNotAvailable
KEY_IS_HELD = "an unfinished transaction holds the key"
KEY_TIMEOUT = b"set local lock_timeout = '500ms'"


class Writer:
    """Takes publishes from sources and writes them in batches.

    `more_in_store(queue id, lowest id)` is told what was left ready; `deliver_transient(queue id, bodies)` hands
    QoS 0 messages on; `on_commit()` is called after each batch.
    """

    def __init__(
        self, topology: Topology, buffers: dict[int, QueueBuffer], claimer: Claimer, counts: Counts,
        more_in_store: Callable[[int, int], None], deliver_transient: Callable[[int, list[bytes]], None],
    ) -> None:  # fmt: skip
        self.topology = topology
        self.buffers = buffers
        self.claimer = claimer
        self.counts = counts
        self.more_in_store = more_in_store
        self.deliver_transient = deliver_transient
        self.on_commit: Callable[[], None] = lambda: None
        self.node = 0
        self.pending_bytes = 0
        self.open_batch = 1
        self.committed = 0
        self._sources: dict[tuple[Address, int | None], Source] = {}
        self._pending: list[Source] = []
        self._taken: Work = []
        self._taken_bytes = 0
        #: The last message id that was stored, without its priority.
        self.last_id = 0
        self._wake = asyncio.Event()
        self._names = KeyNames()
        #: The version of the topology whose changes of audited queues are in their chains.
        self._sealed = UNKNOWN

    def source(self, address: Address, key: int | None = None) -> Source:
        """Where a producer with this API key publishes to this address."""
        found = self._sources.get((address, key))
        if found is None:
            if len(self._sources) > 100_000:  # forget idle ones; connections hold those that they use
                self._sources = {at: source for at, source in self._sources.items() if source.segments}
            found = self._sources[address, key] = Source(self, address, key)
        return found

    def open(self, source: Source) -> None:
        """A source has something to write."""
        self._pending.append(source)
        self._wake.set()

    @property
    def idle(self) -> bool:
        return not self._pending and not self._taken

    async def run(self, connection: Connection) -> None:
        """Write for ever; ends by an exception when the connection is lost, and may be run again with another."""
        while True:
            if self._taken:
                await self._write_taken(connection)
            elif self._pending:
                self._take()
            else:
                self.claimer.take_back()
                self._wake.clear()
                await self._wake.wait()

    def fail(self, error: EngineError) -> None:
        """Give up everything that waits, telling those who published it."""
        if self._pending:
            self._take()
        taken, self._taken = self._taken, []
        self._finish()
        for _, segments in taken:
            for segment in segments:
                _reject(segment, error)

    def forget_history(self) -> None:
        """The store has another past: what was read of its audit chains and keys is no longer so."""
        self._names = KeyNames()
        self._sealed = UNKNOWN

    def _take(self) -> None:
        pending, self._pending = self._pending, []
        self._taken += [(source, source.take()) for source in pending]
        self._taken_bytes, self.pending_bytes = self.pending_bytes, 0
        self.open_batch += 1

    def _finish(self) -> None:
        self._taken = []
        self._taken_bytes = 0
        self.committed = self.open_batch - 1
        self.counts.batches += 1

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all publishes that are not yet durable."""
        return self.pending_bytes + self._taken_bytes

    async def _write_taken(self, connection: Connection) -> None:
        """Store what was taken, then confirm and deliver it.

        First the last of each backlog is claimed: only here nothing new can come between the claim and the write,
        so that what is written now may go to memory at once.
        """
        try:
            plan = await self._plan(connection, self._taken)
            await self._store(connection, plan)
        except TopologyMoved:
            await self.topology.resolve(connection, [source.address for source, _ in self._taken])
            return  # and again, with the new routes
        except (*REFUSED, KEY_HELD):
            plan = await self._store_singly(connection)
        self._finish()
        self._deliver(plan)
        self.on_commit()

    async def _store_singly(self, connection: Connection) -> Plan:
        """One message of the batch is not storable: store each segment by itself, and of those that have such a
        message each message, so that only that one is refused."""
        whole = Plan()
        try:
            for source, segments in self._taken:
                for segment in segments:
                    try:
                        whole.merge(await self._store_one(connection, source, segment))
                    except (*REFUSED, KEY_HELD):
                        await self._store_messages(connection, source, segment, whole)
        except BaseException:
            whole.end()
            raise
        return whole

    async def _store_messages(self, connection: Connection, source: Source, segment: Segment, whole: Plan) -> None:
        held: set[str] = set()
        for n in range(len(segment.bodies)):
            one = segment.cut(n, n + 1)
            if held.intersection(one.keys):  # not to wait for it again
                whole.rejected.append((one, StoreUnavailable(KEY_IS_HELD)))
                continue
            try:
                whole.merge(await self._store_one(connection, source, one))
            except REFUSED as error:
                whole.rejected.append((one, Unstorable(str(error))))
            except KEY_HELD:
                whole.rejected.append((one, StoreUnavailable(KEY_IS_HELD)))
                held.update(one.keys)

    async def _store_one(self, connection: Connection, source: Source, segment: Segment) -> Plan:
        while True:
            try:
                plan = await self._plan(connection, [(source, [segment])])
                await self._store(connection, plan)
            except TopologyMoved:
                await self.topology.resolve(connection, [source.address])
            else:
                return plan

    async def _plan(self, connection: Connection, work: Work) -> Plan:
        topology = self.topology
        unknown = [source.address for source, _ in work if topology.destination(source.address) is None]
        if unknown:
            await topology.resolve(connection, unknown)
        await self.claimer.finish(connection)
        plan = Plan()
        time = now()
        for source, segments in work:
            destination = topology.destination(source.address)
            if destination is None:
                raise TopologyMoved()
            for segment in segments:
                plan_segment(
                    plan, segment, source.address, destination, source.key, topology.policies, self.buffers, time
                )
        return plan

    async def _store(self, connection: Connection, plan: Plan) -> None:
        """Write a plan in one transaction; each write gets its `first` id and `leased`. Raises TopologyMoved."""
        plan.begin()
        try:
            keyed = any(write.segment.keys for write in plan.writes)
            if len(plan.writes) == 1 and not (plan.limited or plan.audited or keyed):
                await self._write(connection, plan.writes[0])
            elif not plan.writes:
                await self._check_version(connection)
            else:
                if plan.audited:
                    await self._prepare_record(connection, plan)
                async with connection.transaction():
                    if keyed:  # a transaction elsewhere may hold a key for as long as it likes
                        await connection.execute(KEY_TIMEOUT)
                    if plan.limited:
                        await self._admit(connection, plan)
                    await self._write_all(connection, plan.writes)
                    for queue in plan.drop_oldest:
                        await self.make_room(connection, queue)
                    if plan.audited:
                        await audit.append_all(connection, self._events(plan))
        except BaseException:
            plan.end()
            raise

    async def _prepare_record(self, connection: Connection, plan: Plan) -> None:
        """Before a transaction that has something to record: that a queue became audited is recorded first."""
        if self._sealed != self.topology.version:
            with contextlib.suppress(audit.AuditError):  # if it is one of these chains that is broken, that will show
                await audit.seal(connection)
            self._sealed = self.topology.version
        await self._names.learn(connection, (write.producer for write in plan.writes))

    def _events(self, plan: Plan) -> dict[str, list[audit.Event]]:
        """What was stored in audited queues, by chain."""
        events: dict[str, list[audit.Event]] = {}
        for write in plan.writes:
            producer = self._names[write.producer]
            for queue in write.queues:
                if (name := plan.audited.get(queue)) is not None:
                    events.setdefault(queue_chain(name), []).extend(
                        audit.Event("publish", str(id), producer, name)
                        for id in write.first_ids(queue) if id is not None
                    )  # fmt: skip
        return events

    async def _check_version(self, connection: Connection) -> None:
        """Nothing is written because nobody is known to want it: is that still so? Raises TopologyMoved."""
        row = await (await connection.execute("select queues_topology_version()")).fetchone()
        if row is None or row[0] != self.topology.version:
            raise TopologyMoved()

    async def _write_all(self, connection: Connection, writes: list[Write]) -> None:
        """Several statements in one round trip."""
        async with connection.pipeline():
            cursors = [
                await connection.execute(statement(write.statement), write.parameters(self.topology.version, self.node))
                for write in writes
            ]
            for write, cursor in zip(writes, cursors, strict=True):
                write.store(await cursor.fetchone())

    async def _write(self, connection: Connection, write: Write) -> None:
        parameters = write.parameters(self.topology.version, self.node)
        cursor = await connection.execute(statement(write.statement), parameters)
        write.store(await cursor.fetchone())

    async def _admit(self, connection: Connection, plan: Plan) -> None:
        """Cut what does not fit into queues that reject; a message that one of its queues rejects enters none."""
        cursor = await connection.execute(statement("admit"), {"queues": sorted(plan.limited)})
        room: dict[int, int] = dict(await cursor.fetchall())
        for queue in plan.drop_oldest:
            room.pop(queue, None)
        error = QueueFull()
        for segment, writes in plan.limited_segments:
            targets = [queue for write in writes for queue in write.queues if queue in room]
            accepted = max(0, min((room[queue] for queue in targets), default=len(segment.bodies)))
            accepted = min(accepted, len(segment.bodies))
            for queue in targets:
                room[queue] -= accepted
            plan.rejected.append((segment.cut(accepted), error))
            for write in writes:
                write.keep(accepted)
        plan.writes = [write for write in plan.writes if write.segment.bodies]

    async def make_room(self, connection: Connection, queue: int) -> None:
        """Drop the oldest messages of a queue that has more than it may."""
        cursor = await connection.execute("select queues_room(%s)", (queue,))
        row = await cursor.fetchone()
        if row is not None and row[0] is not None and row[0] < 0:
            cursor = await connection.execute(statement("drop_oldest"), {"queue": queue, "count": -row[0]})
            if (gone := await cursor.fetchone()) is not None:
                self.counts.dropped += gone[0]

    def _deliver(self, plan: Plan) -> None:
        """After the commit: hand to memory what was leased, and tell what was left in the store."""
        plan.end()
        for write in plan.writes:
            self.counts.published += len(write.segment.bodies) * len(write.queues)
            self.last_id = write.first + len(write.segment.bodies) * write.width - 1
            size = sum(map(len, write.segment.bodies))
            for k, (queue, leased) in enumerate(zip(write.queues, write.leased, strict=True)):
                buffer = self.buffers.get(queue)
                if not leased:
                    self.more_in_store(queue, write.lowest + k)
                elif buffer is not None and buffer is write.buffers[k]:
                    ids = range(write.first + k, write.first + len(write.segment.bodies) * write.width, write.width)
                    if write.segment.detailed:
                        buffer.add_claimed(write.leased_details(ids))
                    else:
                        own = write.own_detail
                        buffer.add(zip(ids, write.segment.bodies, repeat(0), repeat(own)), size)
                    buffer.refilled()
        for write, queue in plan.answers:
            write.answer(queue)
        for queue, bodies in plan.transient:
            self.deliver_transient(queue, bodies)
        self.counts.dropped += plan.unroutable
        for segment, error in plan.rejected:
            self.counts.rejected += len(segment.bodies)
            _reject(segment, error)


def _reject(segment: Segment, error: EngineError) -> None:
    for publisher, token in zip(segment.publishers, segment.tokens, strict=True):
        publisher.publish_failed(token, error)
