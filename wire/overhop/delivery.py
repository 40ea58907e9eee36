"""The deliveries of one connection: its consumers, and the jobs that its worker has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from time import monotonic, time
from typing import Any
from uuid import UUID, uuid4

from queues.engine.api import ClientConnection, Content, PrefetchedQueue, PushConsumer, PushRun, QueueNotFound, first_id
from queues.permissions.rules import Operation
from wire.net.connection import Connection, contained
from wire.overhop.assignments import Assignment, Assignments, Pushed
from wire.overhop.codec.encoder import Unencodable, encode_value, err
from wire.overhop.codec.fields import DomainError, forbidden
from wire.overhop.codec.hot_frames import QuestWriter, empty_ok, empty_oks
from wire.overhop.codec.messages import Log, Subscribe, credit, done, fail, job_id, split_job_id, subscription_id
from wire.overhop.codec.names import Code
from wire.overhop.codec.runs import DoneRun
from wire.overhop.codec.timestamps import format_timestamp
from wire.overhop.payloads import job_names, payload_value
from wire.overhop.service import OverhopService
from wire.replies import Parts, Replies

logger = logging.getLogger(__name__)

Payload = dict[str, Any]
#: Jobs that a snapshot lists for each worker, at most: the oldest.
MAX_JOBS = 100
NOT_SETTLED = "the store cannot settle this job: an operator has to see to it"
NOT_COUNTED = "the database was lost before this attempt was counted: the job comes again"
MSGPACK = int(Content.MSGPACK)


class Consumer(PushConsumer):
    """A subscription to a queue, made by SUBSCRIBE: its jobs are pushed as QUESTs, each for a credit."""

    __slots__ = (
        "_owner", "_writer", "active", "buffer", "client", "connection", "kept_credits", "largest",
        "queue", "sid",
    )  # fmt: skip

    def __init__(self, owner: Deliveries, queue: str, buffer: PrefetchedQueue, largest: int, key: int | None) -> None:
        """`largest` is the most bytes that a payload may have to go into a frame, `key` the client's API key."""
        super().__init__(key)
        self.sid = str(uuid4())
        self.queue = queue
        self.buffer = buffer
        #: Credits set aside while the worker does not read.
        self.kept_credits = 0
        self.active = 0
        self.largest = largest
        self.connection = owner.connection
        self.client = owner.client
        self._owner = owner
        self._writer = QuestWriter(self.sid, queue)

    # Called by the engine.

    @contained
    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        """Send jobs to the worker."""
        since = time()
        due = None if deadline is None else since + deadline - monotonic()
        text = None if due is None else format_timestamp(datetime.fromtimestamp(due, UTC))
        usual = self.buffer.policy.max_attempts
        frames: list[bytes | bytearray] = []
        count = 0
        for run in runs:
            detail, pushed = run.detail, Pushed(self, run.attempts + 1, since, due)
            own = None if detail is None else detail.max_attempts
            most = usual if own is None else own
            tags, ids, values = run.tags, run.ids, run.payloads
            if detail is None or detail.content != MSGPACK or max(map(len, values)) > self.largest:
                tags, ids, values = self._values(run, None if detail is None else detail.content)
            if values:
                frames.append(self._push_alike(pushed, text, most, tags, ids, values))
                count += len(values)
        if count:
            self.active += count
            self._owner.send_quests(frames, count)

    def _values(self, run: PushRun, content: int | None) -> tuple[list[int], list[int], list[bytes]]:
        """The tags, ids and encoded payloads of those that a frame can have."""
        tags, ids, values = list[int](), list[int](), list[bytes]()
        for tag, id, payload in zip(run.tags, run.ids, run.payloads, strict=True):
            if (value := self._value(tag, id, payload, content)) is not None:
                tags.append(tag)
                ids.append(id)
                values.append(value)
        return tags, ids, values

    def _push_alike(
        self, pushed: Pushed[Consumer], deadline: str | None, most: int, tags: Sequence[int], ids: Sequence[int],
        payloads: Sequence[bytes],
    ) -> bytes | bytearray:  # fmt: skip
        """Assign jobs that have all but their payloads in common; returns their QUESTs."""
        owner, names = self._owner, job_names(self.queue, self.buffer.policy.uuid)
        jids = names.jids(ids)
        owner.assignments.add(pushed, tags, jids)
        return self._writer.write(deadline, pushed.attempt, most, names.head, jids, payloads)

    def _value(self, tag: int, id: int, payload: bytes, content: int | None) -> bytes | None:
        """A payload as a frame has it; None for one that no frame can have, which is a dead letter."""
        try:
            value = payload if content == MSGPACK else payload_value(payload, content)
        except Unencodable as error:
            self.buffer.deliveries.bury(tag, str(error))
            return None
        except Exception as error:  # this message costs itself only, and is not tried again
            if self.connection.listener.session_failed("a delivery"):
                logger.exception(
                    "%s: message %d of %s cannot be delivered", self.connection.name, id, self.queue,
                    extra=self.connection.log_fields | {"queue": str(self.queue), "message_id": id},
                )  # fmt: skip
            self.buffer.deliveries.bury(tag, f"it cannot be delivered: {type(error).__name__}")
            return None
        if len(value) > self.largest:
            self.buffer.deliveries.bury(tag, f"its payload of {len(value)} bytes does not fit into a frame")
            return None
        return value

    @contained
    def expired(self, tags: list[int]) -> None:
        """Jobs have been taken away, unless they were finished."""
        self.active -= self._owner.assignments.take_tags(self, tags)
        self._owner.note_change()

    def refuse(self) -> None:
        self._owner.note_change()

    # Called by the session.

    def finished(self, count: int) -> None:
        """Count jobs as no longer the worker's."""
        self.active -= count

    def grant(self, credits: int) -> None:
        """Let so many more jobs be pushed."""
        if self.kept_credits:
            self.kept_credits += credits
        else:
            self.buffer.dispatcher().grant(self, credits)

    def withdraw(self) -> None:
        """Take no more jobs; those at work may be finished."""
        self.kept_credits = 0
        self.buffer.dispatcher().withdraw(self)
        self.buffer.leave(self, finish=True)

    def set_aside(self) -> None:
        """Take no more jobs for now."""
        self.kept_credits += self.credits
        self.buffer.dispatcher().withdraw(self)

    def go_on(self) -> None:
        """Take jobs again."""
        credits, self.kept_credits = self.kept_credits, 0
        if credits:
            self.buffer.dispatcher().grant(self, credits)


class Answers:
    """The answers to some DONEs, or to a FAIL, which wait for the commit. ERR with `reason` takes the place of the OK
    for a job whose end is not stored."""

    __slots__ = ("_at", "_errors", "_parts", "_reason", "_rids", "_tags")

    def __init__(self, tags: list[Sequence[int]], rids: Sequence[bytes], reason: str = NOT_SETTLED) -> None:
        """`tags` of the jobs, in several parts."""
        self._tags = tags
        self._rids = rids
        self._reason = reason
        #: Answers in place of OK, by the job's place among them.
        self._errors: dict[int, bytes] = {}
        self._parts: Parts = []
        self._at = 0

    def put(self, out: Parts) -> None:
        """Append the answers to `out`."""
        self._parts, self._at = out, len(out)
        out.append(self._frames())

    def not_found(self, tag: int) -> None:
        """The worker no longer has the job with this tag."""
        self._answer(tag, Code.JOB_NOT_FOUND, "this worker no longer has the job")

    def refuse(self, tag: int) -> None:
        """The end of the job with this tag is not stored."""
        self._answer(tag, Code.UNAVAILABLE, self._reason)
        if self._parts:
            self._parts[self._at] = self._frames()

    def _answer(self, tag: int, code: Code, text: str) -> None:
        n = [*chain.from_iterable(self._tags)].index(tag)
        self._errors[n] = err(self._rids[n].decode(), code, text)

    def _frames(self) -> bytes | bytearray:
        errors = self._errors
        if not errors:
            return empty_oks(self._rids)
        return b"".join(errors.get(n) or empty_oks([rid]) for n, rid in enumerate(self._rids))


class Deliveries:
    """Consumers by their sids, and the jobs of the worker."""

    def __init__(
        self, connection: Connection, service: OverhopService, replies: Replies, client: ClientConnection
    ) -> None:
        self.connection = connection
        self.client = client
        self.consumers: dict[str, Consumer] = {}
        #: Grows whenever the snapshot may have become another, unless the client sent a message that did it.
        self.changes = 0
        self._by_queue: dict[str, Consumer] = {}
        self.assignments = Assignments[Consumer]()
        self._service = service
        self._engine = service.engine
        self._replies = replies

    # Subscriptions.

    async def subscribe(self, wanted: Subscribe) -> Consumer:
        """SUBSCRIBE: a consumer without credits; the caller grants them. Raises DomainError or StoreUnavailable."""
        service = self._service
        if not await service.may(Operation.CONSUME, wanted.q):
            raise forbidden(wanted.q, f"jobs of queue {wanted.q} may not be done here")
        if len(self.consumers) >= (most := service.options.most_subscriptions):
            raise DomainError(Code.FORBIDDEN, f"this worker has {most} subscriptions, as many as it may")
        try:
            buffer = await self._engine.queue(wanted.q)
        except QueueNotFound as error:
            raise DomainError(Code.QUEUE_NOT_FOUND, f"there is no queue {wanted.q}") from error
        if (earlier := self._by_queue.get(wanted.q)) is not None:
            if earlier.buffer is buffer:
                raise DomainError(Code.DUPLICATE_SUBSCRIPTION, f"this worker has subscribed to {wanted.q} already")
            earlier.withdraw()  # it was for a queue that has been removed since
            del self.consumers[earlier.sid]
        key = None if service.grant is None else service.grant.id
        consumer = Consumer(self, wanted.q, buffer, service.largest_payload, key)
        self.consumers[consumer.sid] = self._by_queue[wanted.q] = consumer
        self.note_change()  # when SUBSCRIBE came is some time ago
        buffer.enter(consumer)
        return consumer

    def unsubscribe(self, rid: str, p: Payload) -> None:
        """UNSUBSCRIBE: no more jobs; those at work may be finished."""
        sid = subscription_id(p)
        consumer = self.consumers.pop(sid, None)
        if consumer is None:
            raise DomainError(Code.SUBSCRIPTION_NOT_FOUND, f"this worker has no subscription {sid}")
        del self._by_queue[consumer.queue]
        consumer.withdraw()
        self._ok(rid)

    def credit(self, rid: str, p: Payload) -> None:
        """CREDIT."""
        sid, credits = credit(p)
        consumer = self.consumers.get(sid)
        if consumer is None:
            raise DomainError(Code.SUBSCRIPTION_NOT_FOUND, f"this worker has no subscription {sid}")
        self._ok(rid)
        consumer.grant(credits)

    # Jobs.

    def done(self, rid: str, p: Payload) -> None:
        """DONE, one that is not for `done_run`: the job leaves the store; the answer waits for that."""
        jid, result = done(p)
        try:
            kept = None if result is None else encode_value(result)
        except Unencodable as error:
            raise DomainError(Code.INVALID_JOB_PAYLOAD, str(error)) from error
        buffer, tag = self._take(jid)
        answers = Answers([(tag,)], [rid.encode()])
        if not buffer.deliveries.complete(tag, kept, answers.refuse):
            raise _not_found(jid)
        self._replies.follow_round(self._engine.settling_of(buffer))
        answers.put(self._replies.begin())

    def done_run(self, run: DoneRun) -> bool:
        """Finish the jobs of a run; False if they are not all of one consumer, and this worker's: they are left to
        `done`."""
        taken = self.assignments.take_together(run.jids)
        if taken is None:
            return False
        consumer, tags = taken
        consumer.finished(len(run))
        answers = Answers(tags, run.rids)
        for some in tags:
            for tag in consumer.buffer.deliveries.complete_many(some, answers.refuse):
                answers.not_found(tag)
        self._replies.follow_round(self._engine.settling_of(consumer.buffer))
        answers.put(self._replies.begin())
        return True

    def fail(self, rid: str, p: Payload) -> None:
        """FAIL: another attempt after the backoff, or none if it was the last."""
        jid, error, retry_in_ms = fail(p)
        buffer, tag = self._take(jid)
        if tag not in buffer.unacked:
            raise _not_found(jid)
        delay = None if retry_in_ms is None else retry_in_ms / 1000
        answers = Answers([(tag,)], [rid.encode()], NOT_COUNTED)
        error, refuse = error or "failed without a word", partial(answers.refuse, tag)
        buffer.deliveries.give_back(tag, delay=delay, error=error, refuse=refuse)
        self._replies.follow_round(self._engine.settling_of(buffer))
        answers.put(self._replies.begin())

    def ack(self, rid: str, p: Payload) -> None:
        """ACK: the worker has it."""
        self._assignment(job_id(p))
        self._ok(rid)

    def beat(self, rid: str, p: Payload) -> None:
        """BEAT: the worker is still at it."""
        jid = job_id(p)
        pushed, tag = self._assignment(jid)
        try:
            moved = pushed.consumer.buffer.deliveries.beat(tag)
        except KeyError:
            raise _not_found(jid) from None
        if moved is not None:
            later = replace(pushed, deadline=moved + time() - monotonic())
            self.assignments.replace(jid.encode(), (later, tag))
        self._ok(rid)

    async def log(self, wanted: Log) -> Payload:
        """LOG: a line is kept with the job."""
        pushed, _ = self._assignment(wanted.jid)
        return await self._service.queries.log(pushed.consumer.buffer.id, _id_of(wanted.jid), wanted.line)

    # The connection.

    def send_quests(self, frames: list[bytes | bytearray], count: int) -> None:
        """Push jobs; a worker that does not read gets no more of them until it does."""
        connection = self.connection
        for some in frames:
            connection.write_soon(some)
        self.client.delivered(count)
        self.note_change()
        if connection.is_choked:
            for consumer in self.consumers.values():
                consumer.set_aside()

    def note_change(self) -> None:
        """The snapshot may have become another."""
        self.changes += 1

    def go_on(self) -> None:
        """The worker reads again."""
        for consumer in self.consumers.values():
            consumer.go_on()

    def withdraw(self) -> None:
        """Take no more jobs."""
        for consumer in self.consumers.values():
            consumer.withdraw()

    def hand_back(self) -> None:
        """Every job goes back to its place, as if it had not been pushed. The next reply waits for all of that."""
        jobs = self.assignments.take_all()
        for pushed, tag in jobs:
            pushed.consumer.finished(1)
            pushed.consumer.buffer.deliveries.hand_back(tag)
        for buffer in {pushed.consumer.buffer for pushed, _ in jobs}:
            self._replies.follow_round(self._engine.settling_of(buffer))
            self._replies.begin()  # what follows waits for this too

    def lose(self) -> None:
        """The worker is gone: another attempt for each of its jobs, after the backoff; those of a queue with a single
        active consumer go back in place."""
        jobs = self.assignments.take_all()
        for consumer in {pushed.consumer for pushed, _ in jobs}:
            consumer.buffer.leave(consumer)
        for pushed, tag in jobs:
            pushed.consumer.buffer.deliveries.give_back(tag, error="the worker disconnected")

    def snapshot(self) -> dict[str, Any]:
        """Describe the subscriptions and the jobs, for the admin."""
        return {
            "subscriptions": [
                {
                    "sid": consumer.sid, "queue": consumer.queue, "credits": consumer.credits + consumer.kept_credits,
                    "active": consumer.active,
                }
                for consumer in self.consumers.values()
            ],
            "jobs": [
                {
                    "jid": jid.decode(), "queue": pushed.consumer.queue, "message": _id_of(jid.decode()),
                    "attempt": pushed.attempt, "since": round(pushed.since, 3),
                    "deadline": None if pushed.deadline is None else round(pushed.deadline, 3),
                }
                for jid, (pushed, _) in self.assignments.oldest(MAX_JOBS)
            ],
            "active": len(self.assignments),
        }  # fmt: skip

    def _assignment(self, jid: str) -> Assignment[Consumer]:
        job = self.assignments.get(jid.encode())
        if job is None:
            raise _not_found(jid)
        return job

    def _take(self, jid: str) -> tuple[PrefetchedQueue, int]:
        job = self.assignments.take(jid.encode())
        if job is None:
            raise _not_found(jid)
        pushed, tag = job
        pushed.consumer.finished(1)
        return pushed.consumer.buffer, tag

    def _ok(self, rid: str) -> None:
        self._replies.begin().append(empty_ok(rid))


def _id_of(jid: str) -> int:
    """The first id of a job."""
    return first_id(UUID(split_job_id(jid)[1]))


def _not_found(jid: str) -> DomainError:
    return DomainError(Code.JOB_NOT_FOUND, f"this worker does not have job {jid}")
