"""What this node does with the messages of an audited queue, written together with the record of it.

Everything that waits for one queue is one transaction: messages are settled, returned and buried, and a row for each
that was really there is appended to the queue's chain. Deliveries are made from memory and have no transaction: they
are noted here, and their rows come first in the queue's next one.

When the connection is lost at the commit nobody knows whether it was done. The hash of the last row tells, later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from queues.engine import audit
from queues.engine.audit import Event
from queues.engine.batches import Completion, JobBatch, Returns, failure_arrays, lock_late, return_arrays, time_array
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.errors import Later
from queues.engine.faults import Fault, fault_of, told
from queues.engine.isolation import carry_out, halves
from queues.engine.message import ROWS_PER_STATEMENT, Detail, Failure
from queues.engine.policy import QueuePolicy
from queues.engine.statements import array, statement

if TYPE_CHECKING:
    from queues.engine.settler import Settler

#: Seconds until a queue whose audit chain cannot be appended to is tried again.
BROKEN = 1.0
_numbers = count(1)


#: Seconds until a message acknowledged late, which another transaction has locked, is tried again.
BUSY = 0.01


def queue_chain(name: str) -> str:
    """The chain of an audited queue."""
    return f"queue:{name}"


class KeyNames:
    """The names of API keys, which never change, as far as they were asked for."""

    def __init__(self) -> None:
        self._names: dict[int | None, str] = {None: ""}

    def __getitem__(self, key: int | None) -> str:
        return self._names[key]

    async def learn(self, connection: Connection, keys: Iterable[int | None]) -> None:
        """Know the names of these keys; that of one which was deleted is empty."""
        unknown = {key for key in keys if key not in self._names}
        if unknown:
            cursor = await connection.execute(statement("key_names"), {"ids": array(unknown)})
            self._names |= dict.fromkeys(unknown, "") | dict(await cursor.fetchall())


class Ack(NamedTuple):
    """An acknowledged message: its id, when it was delivered (monotonic), and to which API key; `late`: this node may
    no longer have the lease."""

    id: int
    delivered: float
    consumer: int | None
    retention: str
    job: bool
    result: bytes | None
    late: bool = False
    completion: Completion | None = None

    def refuse(self) -> None:
        """It cannot be settled."""
        if self.completion is not None:
            self.completion.refuse_some([self.id])


class Return(NamedTuple):
    """A delivery that failed, and to which API key it was made."""

    failure: Failure
    consumer: int | None


@dataclass(slots=True)
class Work:
    """What one transaction writes."""

    #: First id of each message, and the API key that it was delivered to.
    deliveries: list[tuple[int, int | None]] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    #: Dead letters, by the queue they go to.
    buried: dict[int | None, list[Failure]] = field(default_factory=dict)
    #: Id, tag to keep, and the API key that it was delivered to.
    handed_back: list[tuple[int, int | None, int | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.deliveries or self.acks or self.returns or self.buried or self.handed_back)

    @property
    def consumers(self) -> Iterator[int | None]:
        """Every API key in it."""
        yield from (consumer for _, consumer in self.deliveries)
        yield from (ack.consumer for ack in self.acks)
        yield from (one.consumer for one in self.returns)
        yield from (consumer for _, _, consumer in self.handed_back)

    @property
    def items(self) -> list[tuple[str, Any]]:
        """Everything in it one by one: what kind of thing, and the thing; of a dead letter also where it goes."""
        found: list[tuple[str, Any]] = []
        for kind in ("deliveries", "acks", "returns"):
            found += [(kind, one) for one in getattr(self, kind)]
        found += [("buried", (target, one)) for target, failures in self.buried.items() for one in failures]
        return found + [("handed_back", one) for one in self.handed_back]

    @classmethod
    def of(cls, items: Iterable[tuple[str, Any]]) -> Work:
        """What `items` gave of one, or a part of that."""
        work = cls()
        for kind, one in items:
            if kind == "buried":
                work.buried.setdefault(one[0], []).append(one[1])
            else:
                getattr(work, kind).append(one)
        return work

    def forget_leases(self) -> None:
        """Keep what is to be done whoever has the messages."""
        self.acks = [ack._replace(late=True) for ack in self.acks]
        self.returns, self.buried, self.handed_back = [], {}, []


@dataclass(slots=True)
class Outcome:
    """What a transaction does, to be told once it is committed."""

    #: Late acknowledgements of messages that another transaction has locked.
    busy: list[Ack] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: Queues and the lowest id that became ready there; queues that dead letters came to.
    ready: list[tuple[int, int]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)


class AuditedQueue:
    """One audited queue as this node serves it."""

    def __init__(self, settler: Settler, policy: QueuePolicy) -> None:
        self._settler = settler
        self.obey(policy)
        self._work = Work()
        #: What is being written, in parts: one, unless something in it cannot be written.
        self._writing: deque[Work] = deque()
        self.returns = Returns()
        self._again_at = 0.0
        #: What `settling` gave for what waits, and for what is being written.
        self._mark = 0
        self._marks: list[int] = []
        self._proof: audit.Place | None = None
        #: To whom each message that is out was delivered, by its id.
        self._consumers: dict[int, int | None] = {}

    def obey(self, policy: QueuePolicy) -> None:
        """The policy as it is now. Once the queue is no longer audited, what is left is written without a record."""
        self.name = policy.name
        self.recording = policy.audited

    # What buffers say.

    def delivered(self, id: int, detail: Detail | None, consumer: int | None) -> None:
        """A message was handed to a consumer."""
        self._work.deliveries.append((_first_id(id, detail), consumer))
        self._consumers[id] = consumer
        self._settler.record(self)

    def not_delivered(self, id: int, detail: Detail | None) -> None:
        """The message that was handed out a moment ago cannot be sent."""
        first, deliveries = _first_id(id, detail), self._work.deliveries
        for n in reversed(range(len(deliveries))):
            if deliveries[n][0] == first:
                del deliveries[n]
                break

    def acknowledge(self, ack: Ack) -> None:
        """A message is done; `consumer` is who says so, None: who had it."""
        had = self._consumers.pop(ack.id, None)
        self._work.acks.append(ack if ack.consumer is not None else ack._replace(consumer=had))
        self._settler.unsettled += 1
        self._settler.record(self)

    def give_back(self, failure: Failure) -> None:
        self._work.returns.append(Return(failure, self._consumers.pop(failure.id, None)))
        self.returns.add()
        self._settler.record(self)

    def bury(self, target: int | None, failure: Failure) -> None:
        self._consumers.pop(failure.id, None)
        self._work.buried.setdefault(target, []).append(failure)
        self._settler.record(self)

    def hand_back(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Make messages that were delivered, (id, tag to keep), ready again where they were."""
        self._work.handed_back += [(id, tag, self._consumers.pop(id, None)) for id, tag in taken]
        self._settler.record(self)

    def forget_leases(self) -> None:
        """The leases were lost: what was to be returned is returned by whoever reaps them."""
        for work in (self._work, *self._writing):
            work.forget_leases()
        self.returns.forget()
        self._consumers.clear()

    def forget_history(self) -> None:
        """The store has another past: nothing that waits is of messages that are still known by their ids."""
        lost = [ack for work in (self._work, *self._writing) for ack in work.acks]
        self._settler.unsettled -= len(lost)
        for ack in lost:
            self._settler.health.guard("session", None, ack.refuse)
        self._work, self._proof = Work(), None
        self._writing.clear()

    @property
    def idle(self) -> bool:
        return not (self._work or self._writing or self._mark)

    @property
    def waits(self) -> bool:
        """Whether its chain is broken, and it is not time to try again."""
        return now() < self._again_at

    @property
    def settling(self) -> int:
        """What tells in `Engine.settles` whether everything until now is durable: of this queue alone, since its chain
        may be broken."""
        if not self._mark:
            self._mark = -next(_numbers)
            self._settler.unrecorded.add(self._mark)
            self._settler.record(self)
        return self._mark

    # What the settler runs.

    async def write(self, connection: Connection, names: KeyNames) -> Exception | None:
        """Write what waits, in one transaction, or several when something in it cannot be written. While the chain is
        broken nothing is. Returns the error by which the server refuses for now what is left."""
        if self._proof is not None and self._writing and await self._was_committed(connection, self._proof):
            self._finish(self._writing.popleft(), Outcome())
        self._proof = None
        if not self._writing:
            if self._work:
                self._writing.append(self._work)
            self._work = Work()
            self.returns.take()
            self._marks, self._mark = [*self._marks, self._mark], 0
        write = partial(self._write_part, connection, names)
        refused = await carry_out(self._writing, write, _take_apart, self._set_aside, connection)
        trouble = audit.trouble(queue_chain(self.name))
        if isinstance(refused, Later):
            self._settler.health.begin(trouble, refused.detail)
            self._again_at = now() + BROKEN
            return None
        if refused is None:
            self._settler.health.end(trouble)
            self._settler.unrecorded.difference_update(self._marks)
            self._marks = []
            self.returns.written()
        return refused

    async def _write_part(self, connection: Connection, names: KeyNames, work: Work) -> None:
        outcome = Outcome()
        if self.recording:
            with contextlib.suppress(audit.AuditError):  # if it is this chain that is broken, that will show
                await audit.seal(connection)  # what others have noted of these messages came before
            await names.learn(connection, work.consumers)
        try:
            async with connection.transaction():
                await self._write(connection, work, outcome, names)
                if self.recording:
                    self._proof = await audit.append(connection, queue_chain(self.name), outcome.events)
        except audit.ChainBroken as error:
            raise Later(error.why) from error
        try:
            self._finish(work, outcome)
        except Exception as error:  # it is durable, and must not be done again
            if fault_of(error, connection) is Fault.LOST:
                raise
            self._settler.health.isolate("record", error, queue=self.name)
        if outcome.busy:
            self._writing[0] = Work(acks=outcome.busy)
            await asyncio.sleep(BUSY)

    def _set_aside(self, work: Work, error: Exception) -> None:
        """One thing that cannot be written: its message becomes a dead letter, without a record if need be."""
        settler = self._settler
        [(kind, one)] = work.items
        ids = {"returns": lambda: one.failure.id, "buried": lambda: one[1].id}
        id = ids.get(kind, lambda: one[0])()
        settler.health.isolate("record", error, queue=self.name, kind=kind, message=id)
        settler.unsettled -= len(work.acks)
        for ack in work.acks:
            settler.health.guard("session", None, ack.refuse)
        if kind != "deliveries":
            settler.set_aside(id, 1, f"not written: {told(error)}")

    async def _was_committed(self, connection: Connection, proof: audit.Place) -> bool:
        """Whether the transaction that was under way when the connection was lost has been committed."""
        async with connection.transaction():
            return await audit.has(connection, queue_chain(self.name), proof)

    def _finish(self, work: Work, outcome: Outcome) -> None:
        settler, settled = self._settler, len(work.acks) - len(outcome.busy)
        self._proof = None
        settler.unsettled -= settled
        settler.counts.acknowledged += settled
        settler.counts.returned += len(work.returns)
        settler.counts.buried += sum(map(len, work.buried.values()))
        for queue, low in outcome.ready:
            settler.more_in_store(queue, low)
        for queue in outcome.dead:
            settler.more_dead(queue)

    async def _write(self, connection: Connection, work: Work, outcome: Outcome, names: KeyNames) -> None:
        if self.recording:
            outcome.events += [
                Event("deliver", str(first), self.name, names[consumer]) for first, consumer in work.deliveries
            ]
        current = [ack for ack in work.acks if not ack.late]
        if current:
            await self._settle(connection, current, outcome, names)
        if len(current) < len(work.acks):
            await self._settle_late(connection, [ack for ack in work.acks if ack.late], outcome, names)
        for start in range(0, len(work.returns), ROWS_PER_STATEMENT):
            await self._return(connection, work.returns[start : start + ROWS_PER_STATEMENT], outcome, names)
        for target, failures in work.buried.items():
            for start in range(0, len(failures), ROWS_PER_STATEMENT):
                await self._bury(connection, target, failures[start : start + ROWS_PER_STATEMENT], outcome)
        if work.handed_back:
            await self._hand_back(connection, work.handed_back, outcome, names)

    async def _settle_late(self, connection: Connection, acks: list[Ack], outcome: Outcome, names: KeyNames) -> None:
        """Settle what others may lease, claim or return at the same time, without waiting for them."""
        ids, times = [ack.id for ack in acks], [ack.delivered for ack in acks]
        mine, busy = await lock_late(connection, ids, times, self._settler.clock)
        if mine:
            await self._settle(connection, [ack for ack in acks if ack.id in mine], outcome, names)
        outcome.busy = [ack for ack in acks if ack.id in busy]

    async def _settle(self, connection: Connection, acks: list[Ack], outcome: Outcome, names: KeyNames) -> None:
        once = {ack.id: ack for ack in acks}  # acknowledged late, and again after another delivery
        parameters = {
            "ids": array(once),
            "delivered": time_array([ack.delivered for ack in once.values()], self._settler.clock),
            "consumers": [ack.consumer for ack in once.values()],
            "jobs": [ack.job for ack in once.values()],
            "results": [ack.result for ack in once.values()],
            "kept": [ack.retention != "none" for ack in once.values()],
            "whole": [ack.retention == "full" for ack in once.values()],
        }
        cursor = await connection.execute(statement("settle_audited"), parameters)
        gone: dict[int, int] = dict(await cursor.fetchall())
        outcome.events += [
            Event("settle", str(gone[id]), self._name_of(ack.consumer, names), "")
            for id, ack in once.items() if id in gone
        ]  # fmt: skip

    async def _return(
        self, connection: Connection, returns: Sequence[Return], outcome: Outcome, names: KeyNames
    ) -> None:
        parameters = return_arrays([one.failure for one in returns])
        parameters |= {"node": self._settler.node, "audited": True}
        cursor = await connection.execute(statement("return"), parameters)
        for queue, low, ready, _, ids, first_ids, dead in await cursor.fetchall():
            if ready:
                outcome.ready.append((queue, low))
            if dead:
                outcome.dead.append(queue)
            gone = dict(zip(ids, first_ids, strict=True))
            self._returned(((failure.id, consumer) for failure, consumer in returns), gone, outcome, names)

    async def _bury(
        self, connection: Connection, target: int | None, failures: Sequence[Failure], outcome: Outcome
    ) -> None:
        parameters = failure_arrays(failures) | {"node": self._settler.node, "audited": True, "target": target}
        rows: list[tuple[str, list[int], list[int]]] = []
        if target is not None:
            cursor = await connection.execute(statement("bury_elsewhere"), parameters)
            if (row := await cursor.fetchone()) is not None:
                outcome.ready.append((target, row[0]))
                rows.append((row[2], row[3], row[4]))
                if row[5]:
                    await self._settler.make_room(connection, target)
        if not rows or len(rows[0][1]) < len(failures):  # what the target does not take stays with this queue
            cursor = await connection.execute(statement("bury"), parameters)
            for queue, ids, first_ids in await cursor.fetchall():
                outcome.dead.append(queue)
                rows.append(("", ids, first_ids))
        for name, ids, first_ids in rows:
            gone = dict(zip(ids, first_ids, strict=True))
            outcome.events += [
                Event("dead-letter", str(gone[one.id]), self.name, name) for one in failures if one.id in gone
            ]

    async def _hand_back(
        self, connection: Connection, taken: Sequence[tuple[int, int | None, int | None]], outcome: Outcome,
        names: KeyNames,
    ) -> None:  # fmt: skip
        parameters = {
            "node": self._settler.node,
            "ids": array(id for id, _, _ in taken),
            "tags": [tag for _, tag, _ in taken],
            "audited": True,
        }
        cursor = await connection.execute(statement("hand_back"), parameters)
        for queue, low, dead, ids, first_ids in await cursor.fetchall():
            if dead:
                outcome.dead.append(queue)
            else:
                outcome.ready.append((queue, low))
            gone = dict(zip(ids, first_ids, strict=True))
            self._returned(((id, consumer) for id, _, consumer in taken), gone, outcome, names)

    def _returned(
        self, deliveries: Iterable[tuple[int, int | None]], gone: dict[int, int], outcome: Outcome, names: KeyNames
    ) -> None:
        """Record those of the deliveries that went back."""
        outcome.events += [
            Event("return", str(gone[id]), self._name_of(consumer, names), self.name)
            for id, consumer in deliveries if id in gone
        ]  # fmt: skip

    def _name_of(self, consumer: int | None, names: KeyNames) -> str:
        return names[consumer] if self.recording else ""


class AuditedBatch(JobBatch):
    """Acknowledgements of an audited queue: they are not gathered here, but with everything else of the queue."""

    __slots__ = ("_queue",)

    def __init__(
        self, settler: Settler, retention: str, consumer: int | None, queue: AuditedQueue, late: bool = False
    ) -> None:
        super().__init__(settler, retention, consumer, late)
        self._queue = queue

    def add_many(self, ids: list[int], delivered: list[float]) -> None:
        for id, time in zip(ids, delivered, strict=True):
            self._queue.acknowledge(Ack(id, time, self.consumer, self.retention, False, None, self.late))

    def add_job(
        self, id: int, delivered: float, result: bytes | None, completion: Completion | None = None
    ) -> None:
        self._queue.acknowledge(Ack(id, delivered, self.consumer, self.retention, True, result, self.late, completion))

    def add_jobs(self, ids: list[int], delivered: list[float], completion: Completion | None = None) -> None:
        for id, time in zip(ids, delivered, strict=True):
            self.add_job(id, time, None, completion)


def _take_apart(work: Work, _: Exception) -> list[Work]:
    return [Work.of(some) for some in halves(work.items)]


def _first_id(id: int, detail: Detail | None) -> int:
    return id if detail is None or detail.origin is None else detail.origin
