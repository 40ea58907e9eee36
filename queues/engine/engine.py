"""The engine of one process: what sessions of every protocol use.

Life: `start` connects, refuses an unsafe server, registers the node and begins to work; when a connection is lost
everything that was leased counts as lost too (other nodes may have it by then), and the engine comes back as a new
node; `stop` writes what is pending, hands back what it holds, and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import psycopg

from queues.engine import control, maintenance
from queues.engine import node as nodes
from queues.engine.access import Grant, key_digest
from queues.engine.buffer import DeadLetterBuffer, QueueBuffer
from queues.engine.claimer import Claimer
from queues.engine.clock import now
from queues.engine.database import (
    LOST,
    Connection,
    answers,
    at_same_server,
    check_server,
    check_sessions,
    connect,
    watch,
)
from queues.engine.errors import EngineError, OutcomeUnknown, QueueNotFound, StoreUnavailable
from queues.engine.faults import Fault, fault_of, is_idle, passes, told
from queues.engine.floor import FIRST
from queues.engine.health import KINDS, Health, Trouble
from queues.engine.hearing import Hearing
from queues.engine.history import History
from queues.engine.isolation import Patience
from queues.engine.mailroom import Mailroom
from queues.engine.message import Counts
from queues.engine.notifications import CHANNEL
from queues.engine.options import EngineOptions
from queues.engine.policy import QueuePolicy
from queues.engine.settler import Settler
from queues.engine.source import Address, Source
from queues.engine.statements import array, statement
from queues.engine.subscriptions import Subscriptions
from queues.engine.topology import UNKNOWN, Topology
from queues.engine.writer import Writer
from queues.reach import MAILBOX_PREFIX

logger = logging.getLogger(__name__)

PURPOSES = (
    "writer", "settler", "claimer", "requests", "clockwork", "reaper", "upkeep", "listener", "liveness"
)  # fmt: skip
MAILROOM_PURPOSES = ("mailroom", "lookout")
WATCH = 0.1  # seconds between looks whether the server has closed a connection
DEADLINES = 0.02  # seconds between looks at delivery deadlines
GRACE = 0.1  # seconds that clients have to acknowledge after they were held up
FEW_UNSETTLED = 64  # below it, what somebody waits for is written at once
KNOWN = 60.0  # seconds between looks at what tells the store's past and its clock
GRANTS_APART = 0.1  # seconds between two looks, however many notifications say that a key changed
GRANTS = 60.0  # seconds between looks whether what is granted to sessions still is
HANG_UP = 0.2  # seconds that jobs have to notice the end of their connections
ANOTHER_PAST = (
    "the database has another past than this process knew; what was confirmed last may be lost, and what was delivered"
    " before is not settled any more"
)
#: Purposes of connections that several jobs use.
SHARED = ("requests", "upkeep", "reaper", "liveness")
#: Seconds after which a job that had failed counts as working, and a process that had started anew as steady.
STEADY_JOB, STEADY = 5.0, 60.0
#: Seconds between looks how long the database lets others wait; that make a look late, since this process stood still;
#: for which a probe may take; and without an answer after which a database counts as silent.
LOOK, STANDSTILL, PROBE, SILENT = 0.25, 2.0, 3.0, 3.0
#: What does not work while the database does not answer, as /readyz says it.
SILENCE = Trouble("The database", "silence")
#: What a commit waits for, by the name or the kind of the server's wait event.
WAITS_FOR = {"SyncRep": "a synchronous standby has not confirmed it", "Lock": "another transaction holds a lock"}


class Holder(Protocol):
    """A connection with replies that wait for a commit."""

    def release(self) -> None:
        """A batch was committed, or acknowledgements were: send what may go."""


#: The engines of this process that have been started.
running: WeakSet[Engine] = WeakSet()


class Engine:
    """One process's engine. Sessions use the attributes and methods of the first section only."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.counts = Counts()
        self.health = Health()
        self.topology = Topology()
        self.buffers: dict[int, QueueBuffer] = {}
        self.dead_buffers: dict[int, DeadLetterBuffer] = {}
        self.announcer = control.Announcer()
        self.settler = Settler(self.counts, self.health, self._ready, self.announcer.dead)
        self.claimer = Claimer(options, self.counts, self.health)
        self.subscriptions = Subscriptions(self)
        self.writer = Writer(
            self.topology, self.buffers, self.claimer, self.counts, self.health, self._ready,
            self.subscriptions.deliver_transient,
        )  # fmt: skip
        self.maintenance = maintenance.Maintenance(
            options, self.counts, self.health, self.buffers, self.dead_buffers, self._ready
        )
        #: The letters of named peers; None in a process that serves none.
        self.mailroom: Mailroom | None = None
        if options.mailroom:
            self.mailroom = Mailroom(
                options, self.topology, self.counts, self.announcer, self.settler, self.writer.make_room
            )
            self.mailroom.on_commit = self._progress
        self.writer.on_commit = self._progress
        self.claimer.writer_busy = lambda: not self.writer.idle
        self.settler.on_progress = self._settled
        self.settler.make_room = self.writer.make_room
        self.node = 0
        self.available = False
        self.stopping = False
        #: Called with True when sockets should not be read, and with False when they may be again.
        self.on_saturation: list[Callable[[bool], None]] = []
        #: Called with the id of an API key that was changed or revoked.
        self.on_key_change: list[Callable[[int], None]] = []
        #: Called when a periodic job may be due earlier than was known.
        self.on_periodic_change: list[Callable[[], None]] = []
        self._holders: set[Holder] = set()
        self._saturated = False
        self._looked_at = 0.0
        self._held_up_at = 0.0
        self._away_since = self._back_at = 0.0
        #: Why the database is away, for everybody's eyes; how much had been written when it came back last.
        self._away = "a connection is lost"
        self._written_before = 0
        self._patience = Patience()
        self._connections: dict[str, Connection] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._grants: dict[str, Grant] = {}
        self._key_changes = 0
        self._key_told = asyncio.Event()
        #: What sessions were last told of each key that they use, by its id.
        self._granted: dict[int, Grant] = {}
        #: Backends of this engine's connections: those that are lost may go on living until they notice.
        self._pids: list[int] = []
        self._lost = asyncio.Event()
        #: What sessions have asked and PostgreSQL has not answered.
        self._asked: set[asyncio.Future[Any]] = set()
        self._listener = control.Listener(Hearing(self).handlers(), self.counts)
        self._history = History()
        #: Why the store was found to have another past, the last time that it was; for operators.
        self.rewritten = ""

    # What sessions use.

    def source(self, address: Address, key: int | None = None) -> Source:
        """Where a producer publishes to an address; keep it and call its `publish` for every message."""
        return self.writer.source(address, key)

    def notes(self) -> list[str]:
        """What an operator should know though the engine works, one sentence each."""
        return [f"Messages that were confirmed may be lost: {self.rewritten}."] if self.rewritten else []

    @property
    def last_id(self) -> int:
        """The last message id that this process has stored or claimed, without its priority."""
        return max(self.writer.last_id, self.claimer.last_id)

    @property
    def open_batch(self) -> int:
        """The batch that whatever is published now belongs to."""
        return self.writer.open_batch

    def holds(self, batch: int) -> bool:
        """Whether a reply that follows a publish of this batch must wait."""
        return batch > self.writer.committed

    @property
    def behind(self) -> bool:
        """Whether so many acknowledgements wait to be written that barriers should wait too."""
        return self.settler.unsettled > self.options.most_unsettled

    @property
    def settling(self) -> int:
        """The round in which whatever was settled last is written; `settles` tells whether it is still under way."""
        return self.settler.round

    def hurry_settling(self) -> None:
        """A reply waits for the round: it is written at once when little else is to be."""
        if self.settler.unsettled < FEW_UNSETTLED:
            self.settler.hurry()

    def settles(self, round: int) -> bool:
        """Whether a reply that answers something settled in this round must wait."""
        return round in self.settler.unrecorded if round < 0 else round > self.settler.settled

    def settling_of(self, buffer: QueueBuffer) -> int:
        """As `settling`, for what was settled last in this buffer: an audited queue is written by itself, and whoever
        waits for it waits for its chain."""
        return self.settler.round if buffer.audited is None else buffer.audited.settling

    def hold(self, holder: Holder) -> None:
        """Call `holder.release` after every commit and every settling until `unhold`."""
        self._holders.add(holder)

    def unhold(self, holder: Holder) -> None:
        self._holders.discard(holder)

    def check_saturation(self) -> None:
        """Stop reading when too much waits for the database; sessions call it after each read that published."""
        if not self._saturated and self._overfull(1.0):
            self._saturated = True
            for pause in self.on_saturation:
                pause(True)

    async def authenticate(self, key: str, protocol: str) -> Grant | None:
        """What an API key allows, or None if it is not good for this protocol. Raises StoreUnavailable."""
        digests = [key_digest(key, pepper) for pepper in self.options.peppers]
        digest = digests[0]
        grant = self._grants.get(digest)
        while grant is None:
            changes = self._key_changes
            row = await (await self.request("key", digests=digests)).fetchone()
            if row is None:
                return None
            if self._key_changes == changes:  # else what was read may be no longer so
                grant = self._grants[digest] = self._granted[row[0]] = _grant(row)
        return grant if grant.for_protocol(protocol) else None

    def descriptors(self) -> list[int]:
        """The descriptors of its connections, which a forked child of this process must not keep open."""
        return [connection.fileno() for connection in tuple(self._connections.values()) if not connection.closed]

    def look_at_keys(self) -> None:
        """An API key is said to have changed: see at once whether one has. A log-in under way reads its key again."""
        self._key_changes += 1
        self._key_told.set()

    def forget_key(self, key: int) -> None:
        """An API key was changed or revoked."""
        self._key_changes += 1
        self._granted.pop(key, None)
        self._grants = {digest: grant for digest, grant in self._grants.items() if grant.id != key}
        for changed in self.on_key_change:
            self.health.guard("session", None, changed, key)

    async def grant_named(self, name: str) -> Grant | None:
        """What the API key of this name allows; None if there is none. Raises StoreUnavailable."""
        row = await (await self.request("key_named", name=name)).fetchone()
        if row is None:
            return None
        grant = self._granted[row[0]] = _grant(row)
        return grant

    async def queue(self, name: str) -> QueueBuffer:
        """The queue of this name, to consume from. Raises QueueNotFound or StoreUnavailable."""
        return await self.open_buffer(await self._queue_id(name))

    async def dead_letters(self, name: str) -> DeadLetterBuffer:
        """The dead letters of a queue, to consume from. Raises QueueNotFound or StoreUnavailable."""
        id = await self._queue_id(name)
        if id not in self.dead_buffers:
            policy = await self._policy(id)
            self.dead_buffers.setdefault(id, DeadLetterBuffer(policy, self.settler, self.claimer))
        return self.dead_buffers[id]

    async def request(self, name: str, /, **parameters: Any) -> Any:
        """Run one of the named statements outside the hot path, to its end even if the caller is cancelled: to stop it
        at the server could hit what others ask on the same connection. Raises StoreUnavailable.
        """
        return await self._to_its_end(self._request(name, parameters))

    async def _to_its_end(self, asking: Coroutine[Any, Any, Any]) -> Any:
        asked = asyncio.ensure_future(asking)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return await asyncio.shield(asked)

    async def _request(self, name: str, parameters: dict[str, Any]) -> Any:
        async with self._asking() as connection:
            return await connection.execute(statement(name), parameters)

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[Connection]:
        """The connection for what sessions ask. No job reads it, so whoever finds it lost says so."""
        connection = self._connections.get("requests")
        if connection is None or not self.available:
            raise StoreUnavailable()
        try:
            yield connection
        except Exception as error:
            fault = fault_of(error, connection)
            if fault is Fault.LOST:
                self._lost.set()
            if fault is not Fault.BAD:
                raise StoreUnavailable(told(error)) from error
            raise

    # Buffers.

    async def open_buffer(self, id: int, first_tag: int = 1) -> QueueBuffer:
        """The buffer of a queue, made if need be. Raises QueueNotFound or StoreUnavailable."""
        if id not in self.buffers:
            policy = await self._policy(id)
            buffer = self.buffers.setdefault(id, QueueBuffer(policy, self.settler, self.claimer, first_tag))
            buffer.shared = self.is_shared(id)
        return self.buffers[id]

    def with_consumers(self, queue: str) -> list[int]:
        """First ids of the messages of a queue that consumers of this process have."""
        return [
            (None if detail is None else detail.origin) or id
            for buffer in self.buffers.values()
            if buffer.policy.name == queue
            for id, _, _, detail in buffer.unacked.values()
        ]

    def prefetched(self, queue: str, most: int) -> list[int]:
        """First ids of messages of a queue that this process has for its next free consumers, the first `most`."""
        return [
            (None if detail is None else detail.origin) or id
            for buffer in self.buffers.values()
            if buffer.policy.name == queue
            for id, _, _, detail in islice(buffer.ready, most)
        ]

    async def policy(self, name: str) -> QueuePolicy:
        """A queue's policy, kept current from now on. Raises QueueNotFound or StoreUnavailable."""
        return await self._policy(await self._queue_id(name))

    async def refresh(self, name: str) -> None:
        """Obey a queue's policy as it is now, not only once its change is heard of. Raises StoreUnavailable."""
        for buffer in tuple(self.buffers.values()):
            if buffer.policy.name == name:
                await self.reread([buffer.id])

    async def reread(self, queues: Sequence[int]) -> None:
        """Read the policies of queues anew, and who serves them. Raises StoreUnavailable."""
        async with self._asking() as connection:
            await self._reload_policies(connection, queues)

    def known_policy(self, id: int) -> QueuePolicy | None:
        """The policy of a queue that `policy` was asked for, as it is now; None once the queue is gone."""
        return self.topology.policies.get(id)

    async def _queue_id(self, name: str) -> int:
        if name.startswith(MAILBOX_PREFIX):
            raise QueueNotFound(name)
        row = await (await self.request("queue_id", name=name)).fetchone()
        if row is None:
            raise QueueNotFound(name)
        return int(row[0])

    async def _policy(self, id: int) -> QueuePolicy:
        if id not in self.topology.policies:
            await self.load_policies([id])
        if id not in self.topology.policies:
            raise QueueNotFound(str(id))
        return self.topology.policies[id]

    async def load_policies(self, queues: Sequence[int]) -> None:
        """Read the policies of those queues that are not known. Raises StoreUnavailable."""
        await self._to_its_end(self._load_policies(queues))

    async def _load_policies(self, queues: Sequence[int]) -> None:
        async with self._asking() as connection:
            await self.topology.load_policies(connection, queues)

    def is_shared(self, queue: int) -> bool:
        """Whether another node serves this queue, too."""
        return bool(self.topology.interest.get(queue, set()) - {self.node})

    def _ready(self, queue: int, first_id: int) -> None:
        """Messages of a queue became ready in the store: tell this node's consumers and others'."""
        if (buffer := self.buffers.get(queue)) is not None:
            buffer.more_in_store(first_id)
        elif self.mailroom is not None:
            self.mailroom.more_in_store(queue, first_id)
        if self.is_shared(queue):
            self.announcer.ready(queue, first_id)
        else:
            self.announcer.ready_for_any(queue, first_id)

    # Progress.

    def _progress(self) -> None:
        for holder in tuple(self._holders):
            try:
                holder.release()
            except Exception as error:
                self._holders.discard(holder)
                self.health.broken("session", holder, error)
        if self._saturated and not self._overfull(0.5):
            self._saturated = False
            for resume in self.on_saturation:
                self.health.guard("session", None, resume, False)

    def _overfull(self, share: float) -> bool:
        letters = 0 if self.mailroom is None else self.mailroom.waiting_bytes
        return (
            self.writer.waiting_bytes + letters > share * self.options.pending_bytes
            or self.settler.unsettled > share * 10 * self.options.most_unsettled
        )

    def _settled(self) -> None:
        """Acknowledgements were written: places in queues with a concurrency limit may be free."""
        for queue in tuple(self.topology.limited):
            buffer = self.buffers.get(queue)
            if buffer is not None and (buffer.interested or self.is_shared(queue)):
                self._ready(queue, buffer.floor.value + 1)
        self._progress()

    def _watch_deadlines(self) -> None:
        """Return what was not acknowledged in time, by the time of the last look: what has arrived by now in the
        sockets was read in between, however long this process was held up. While barriers are held or sockets not
        read, clients may not be able to acknowledge: the clock stands still, and a moment longer."""
        time = now()
        if self._saturated or self.behind:
            self._held_up_at = time
        elif time - self._held_up_at > GRACE:
            maintenance.deadlines(self.settler.timed, self._looked_at, self.health)
            self._looked_at = time
        self._deadline_timer = asyncio.get_running_loop().call_later(DEADLINES, self._watch_deadlines)

    # Life.

    async def start(self, *, patient: bool = False) -> None:
        """Connect and begin; with `patient`, wait for a server that takes no connections, or no writes, for now. Raises
        UnsafeServer, UnsupportedServer, NotMigrated, or psycopg.OperationalError."""
        pauses, said = Patience(), ""
        while True:
            try:
                await self._open()
                break
            except psycopg.OperationalError as error:
                if not (patient and passes(error)):
                    raise
                if said != (said := told(error)):
                    logger.warning("waiting for the database: %s", said)
            await pauses.wait()
        running.add(self)
        self._supervisor = asyncio.create_task(self._supervise(), name="engine")
        self._watch_deadlines()

    async def stop(self, timeout: float = 10.0) -> None:
        """Write what is pending, hand back what is held, and leave; at most `timeout` seconds."""
        self.stopping = True
        running.discard(self)
        drained = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout * 0.6):
                await self._drain()
                drained = True
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor], timeout=timeout * 0.2)
        if self.available and self.options.anchor_audit is not None:
            await maintenance.anchor_at_stop(self.options.anchor_audit, timeout * 0.1)
        if self.available and "listener" in self._connections:
            with contextlib.suppress(TimeoutError, psycopg.Error, OSError):
                async with asyncio.timeout(timeout * 0.1):
                    await nodes.leave(self._connections["requests"], self.node, drained)
        self.available = False
        await self._close()

    async def _drain(self) -> None:
        self.claimer.stopping = True
        await _until(lambda: self.writer.idle and not any(buffer.claiming for buffer in self.buffers.values()))
        if self.mailroom is not None:
            await _until(lambda: self.mailroom is None or self.mailroom.idle)
        for buffer in (*self.buffers.values(), *self.dead_buffers.values()):
            outstanding = [(entry[0], tag) for tag, entry in buffer.unacked.items()]
            self.settler.hand_back(buffer.take_all())
            self.settler.hand_back(outstanding, buffer.audited)
        self.settler.hurry()
        await _until(lambda: self.settler.idle)

    async def _open(self) -> None:
        """Open all connections and become a node."""
        lost, pids, conninfo = self._pids, [], self.options.conninfo
        try:
            for purpose in PURPOSES + (MAILROOM_PURPOSES if self.mailroom is not None else ()):
                self._connections[purpose] = connection = await connect(
                    conninfo, purpose, self.options.database_timeout
                )
                conninfo = at_same_server(connection, self.options.conninfo)
                pids.append(connection.info.backend_pid)
            pids = await check_sessions(self._connections)
            self._pids = lost + pids
            await check_server(self._connections["requests"])
            await nodes.settle_predecessors(
                self._connections["requests"], self.options.host, lost, self.health
            )
            self._pids = pids
            await self._check_history(self._connections["requests"])
            listener = self._connections["listener"]
            self.claimer.trusted_until = now() + nodes.TRUSTED
            self.node, self.claimer.horizon = await nodes.register(self._connections["liveness"], self.options)
            self.settler.node = self.claimer.node = self.writer.node = self.node
            if self.mailroom is not None:
                self.mailroom.node = self.node
            await listener.execute(f"listen {CHANNEL}".encode())
            await self._reload()
        except BaseException:
            await self._close()
            raise
        self._back_at, self._written_before = now(), self._written()
        self.available = True

    async def _check_history(self, connection: Connection) -> None:
        """Is this the store that was known? If not, nothing that is remembered of messages may be used."""
        history = self._history
        history.saw(self.last_id)
        reading = await history.read(connection)
        self.settler.clock = reading.clock
        if (reason := history.broken_by(reading)) is not None:
            await history.move_on(connection, reading, self.node)
            await self.subscriptions.move_tags(connection)
            await connection.execute(statement("note_history"), {"node": self.options.name, "reason": reason})
            self._forget_history()
            self.counts.rewritten += 1
            self.rewritten = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {reason}"
            logger.error("%s: %s", ANOTHER_PAST, reason)
        history.know(reading)

    async def _keep_history(self, connection: Connection) -> None:
        """Go on knowing the store's past, and its clock."""
        while True:
            await asyncio.sleep(KNOWN)
            reading = await self._history.read(connection)
            self._history.know(reading)
            self.settler.clock = reading.clock

    def _forget_history(self) -> None:
        self.settler.forget_history()
        for buffer in (*self.buffers.values(), *self.dead_buffers.values()):
            buffer.stale.clear()
        if self.mailroom is not None:
            self.mailroom.forget_history()
        self.writer.forget_history()

    async def _keep_grants(self, connection: Connection) -> None:
        """Read anew what is granted to sessions: at once, since a notification may have been missed while the database
        was away, and then from time to time. A key that was revoked or changed ends its sessions."""
        while True:
            self._key_told.clear()
            known = dict(self._granted)
            cursor = await connection.execute(statement("keys"), {"ids": array(known)})
            found = {row[0]: _grant(row) for row in await cursor.fetchall()}
            for key, grant in known.items():
                if found.get(key) != grant and self._granted.get(key) is grant:
                    self.forget_key(key)
            await asyncio.sleep(GRANTS_APART)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._key_told.wait(), GRANTS)

    async def _reload(self) -> None:
        """Read anew what notifications keep current."""
        connection = self._connections["requests"]
        self.topology.version = UNKNOWN
        self._grants.clear()
        await self._reload_policies(connection, tuple(self.topology.policies))

    async def _reload_policies(self, connection: Connection, queues: Sequence[int]) -> None:
        await self.topology.load_policies(connection, queues, again=True)
        for queue in queues:
            policy = self.topology.policies.get(queue)
            known = [b for b in (self.buffers.get(queue), self.dead_buffers.get(queue)) if b is not None]
            if policy is not None and any(buffer.policy.uuid != policy.uuid for buffer in known):
                policy = None  # a restored store has given the id to another queue
            for buffer in known:
                if buffer.shared != self.is_shared(queue):
                    buffer.shared = not buffer.shared
                    buffer.tidy_soon()
                if policy != buffer.policy:
                    buffer.change_policy(policy)
            if policy is None:
                self.subscriptions.drop_queue(queue)
                self.buffers.pop(queue, None)
                self.dead_buffers.pop(queue, None)
            if self.mailroom is not None:
                self.mailroom.change_policy(queue)

    async def _close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            with contextlib.suppress(*LOST):
                await connection.close()

    def _jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the connections last."""
        at = self._connections
        keep = self.maintenance
        mail, look_after = self.mailroom, self.options.look_after_audit
        jobs: list[tuple[str, str, Callable[[Connection], Coroutine[Any, Any, None]]]] = [
            ("writer", "writer", self.writer.run),
            ("settler", "settler", self.settler.run),
            ("claimer", "claimer", self.claimer.run),
            ("announcer", "requests", self.announcer.run),
            ("asking", "requests", lambda connection: self.announcer.ask(connection, self.node)),
            ("instructions", "requests", lambda connection: self._listener.obey(connection, self.node)),
            ("history", "requests", self._keep_history),
            ("grants", "requests", self._keep_grants),
            ("delays", "clockwork", keep.promote_due),
            ("liveness", "liveness", lambda connection: keep.live(connection, self.claimer)),
            ("reaper", "reaper", keep.reap),
            ("sweep", "upkeep", keep.sweep),
            ("tidying", "upkeep", lambda connection: keep.tidy(connection, self.settler, self.claimer)),
            ("partitions", "upkeep", keep.keep_partitions),
            ("listener", "listener", self._listener.run),
        ]
        if mail is not None:
            jobs += [("mailroom", "mailroom", mail.run), ("lookout", "lookout", mail.watch)]
        if look_after is not None:
            jobs.append(("audit", "requests", lambda _: keep.keep_audit(look_after)))
        return [self._keep_running(name, at[purpose], run, purpose in SHARED) for name, purpose, run in jobs]

    async def _keep_running(
        self, name: str, connection: Connection, run: Callable[[Connection], Coroutine[Any, Any, None]], shared: bool
    ) -> None:
        """Run a job again when something has failed in it, after growing pauses. Raises when its connection is lost."""
        patience, trouble = Patience(), Trouble(f"The engine's {name} does not work", "job")
        loop = asyncio.get_running_loop()

        def works() -> None:
            patience.reset()
            self.health.end(trouble)

        while True:
            working = loop.call_later(STEADY_JOB, works)
            try:
                await run(connection)
            except Exception as error:
                fault = fault_of(error, connection)
                if fault is Fault.LOST or not (shared or is_idle(connection)):
                    raise
                if fault is Fault.BAD:
                    self.health.isolate("job", error, job=name)
                self.health.begin(trouble, told(error))
            finally:
                working.cancel()
            await patience.wait()

    async def _supervise(self) -> None:
        while True:
            for buffer in (*self.buffers.values(), *self.dead_buffers.values()):
                buffer.more_in_store(FIRST)
            await self._work()
            ticking = asyncio.create_task(self._give_up_in_time())  # to open may last, too
            try:
                await self._come_back()
            finally:
                await _cancel([ticking])

    async def _work(self) -> None:
        """Run every job until one of them loses its connection."""
        self._lost.clear()
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(job) for job in self._jobs()]
        tasks.append(asyncio.create_task(self._watch_waits()))
        tasks.append(asyncio.create_task(watch(self._connections.values(), WATCH)))
        tasks.append(asyncio.create_task(self._lost.wait()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel(tasks)
            raise
        self.available = False
        self._away_since = now()
        error = next(iter(done)).exception()
        self._away = told(error)
        self.health.restarted(self._away)
        logger.warning("the database is away: %s", str(error or "a connection is lost").strip().split("\n")[0])
        self._hang_up()
        await asyncio.wait(tasks, timeout=HANG_UP)
        await _cancel(tasks)
        await self._close()

    def _hang_up(self) -> None:
        """End every connection's socket, so that whoever waits on one hears of it before its descriptor is closed:
        an event loop that watches a closed descriptor, whose number is soon another file's, aborts the process."""
        for connection in self._connections.values():
            with contextlib.suppress(*LOST), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    async def _come_back(self) -> None:
        """Reconnect with growing pauses. Every lease is lost: whoever comes first returns them to their queues."""
        self.counts.reconnects += 1
        self.health.forget()
        self.settler.forget_leases()
        for buffer in (*self.buffers.values(), *self.dead_buffers.values()):
            buffer.lose_leases()
            buffer.interested = False
        if self.mailroom is not None:
            self.mailroom.lose_connections()
        if self._written() != self._written_before or now() - self._back_at > STEADY:
            self._patience.reset()
        else:  # nothing could be written since the last time
            await self._patience.wait()
        while True:
            try:
                await self._open()
            except Exception as error:
                self._away = told(error)
                if not isinstance(error, LOST):  # it is being restored, or a standby: it may be fit again
                    unforeseen = not isinstance(error, psycopg.Error | EngineError)
                    text = str(error).strip().split("\n")[0]
                    logger.warning("the database is not fit for use: %s", text, exc_info=unforeseen)
                await self._patience.wait()
            else:
                logger.info("the database is back; this is node %d now", self.node)
                return

    async def _watch_waits(self) -> NoReturn:
        """See how long the database lets others wait: whoever publishes is told when it is too long, and a server that
        does not answer is left. Raises psycopg.OperationalError. While this process itself stands still, none of it
        counts."""
        options, seen, awake_since = self.options, now(), now()
        while True:
            await asyncio.sleep(LOOK)
            if now() - seen > STANDSTILL:
                awake_since = now()
            seen = now()
            for part in (self.writer, *(() if self.mailroom is None else (self.mailroom,))):
                waited = 0.0 if part.waiting_since is None else seen - max(part.waiting_since, awake_since)
                if waited > options.stall_timeout and not self.health.has(part.duty):
                    self.health.begin(part.duty, await self._explain_wait())
                if waited > options.publish_timeout and part.waiting_since is not None:
                    part.fail(OutcomeUnknown())
                    self._progress()
            silent = seen - max(awake_since, self.claimer.trusted_until - nodes.TRUSTED)
            if silent > SILENT:
                self.health.begin(SILENCE, "it does not answer")
            else:
                self.health.end(SILENCE)
            if silent > options.database_timeout and not await answers(
                self._connections["liveness"], options.conninfo, PROBE
            ):
                raise psycopg.OperationalError("the database has not answered for too long")

    async def _explain_wait(self) -> str:
        """What the writer waits for, as the server tells."""
        why = ""
        with contextlib.suppress(TimeoutError, StoreUnavailable, psycopg.Error):
            async with asyncio.timeout(PROBE):
                pids = [at.info.backend_pid for name, at in self._connections.items() if name in ("writer", "mailroom")]
                rows = await (await self.request("waits_for", pids=pids)).fetchall()
                why = next((f": {WAITS_FOR[kind]}" for (kind,) in rows if kind in WAITS_FOR), "")
        return f"the database has taken more than {self.options.stall_timeout:g} s for a commit{why}"

    def _written(self) -> int:
        """Grows with whatever is written."""
        counts = self.counts
        return counts.published + counts.acknowledged + counts.returned + counts.buried + counts.claimed

    async def _give_up_in_time(self) -> NoReturn:
        """While the database is away: tell those who have waited for too long."""
        while True:
            if now() - self._away_since > self.options.publish_timeout:
                self._give_up(StoreUnavailable(self._away))
            await asyncio.sleep(LOOK)

    def _give_up(self, error: EngineError) -> None:
        """Tell everybody who waits for the database that it is away for too long."""
        self.writer.fail(error)
        if self.mailroom is not None:
            self.mailroom.fail(error)
        self._progress()

    def troubles(self) -> dict[str, int]:
        """How much does not work now, by the kinds of `health.KINDS`."""
        now = dict.fromkeys(KINDS, 0) | self.health.kinds
        return now | {"reconnecting": int(not self.available), "history": int(bool(self.rewritten))}

    def unready_reasons(self) -> list[str]:
        """Why this process should get no work now, one sentence each, without names of hosts and users."""
        away = [] if self.available else [f"The engine has lost the database and is reconnecting: {self._away}."]
        return away + self.health.reasons()


def _grant(row: tuple[Any, ...]) -> Grant:
    protocols, publish, consume, manage = (tuple(patterns) for patterns in row[2:])
    return Grant(row[0], row[1], protocols, publish, consume, manage)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for something that only a stop waits for, and that therefore needs no event of its own."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
