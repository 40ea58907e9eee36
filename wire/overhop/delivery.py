"""The deliveries of one connection: its consumers, and the jobs that its worker has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from queues.engine import Client, LocalQueue, QueueNotFound
from queues.reach import Operation
from wire.net.connection import Connection
from wire.overhop.codec.decoder import OverhopEnvelope
from wire.overhop.codec.encoder import Unencodable, encode_value, err
from wire.overhop.codec.fields import DomainError, forbidden
from wire.overhop.codec.hot_frames import OkWriter
from wire.overhop.codec.messages import Log, Subscribe, credit, done, fail, job_id, subscription_id
from wire.overhop.codec.names import Code, Type
from wire.overhop.consumer import Assignment, Consumer
from wire.overhop.service import OverhopService
from wire.replies import Replies

Payload = dict[str, Any]
DONE = int(Type.DONE)
#: Jobs that a snapshot lists for each worker, at most: the oldest.
MOST_JOBS = 100
NOT_SETTLED = "the store cannot settle this job: an operator has to see to it"
NOT_COUNTED = "the database was lost before this attempt was counted: the job comes again"


class Answers:
    """The answers to some DONEs, or to a FAIL, which wait for the commit. ERR with `reason` takes the place of the OK
    for a job whose end is not stored."""

    __slots__ = ("_at", "_parts", "_reason", "_rids", "_tags")

    def __init__(self, tags: list[int], rids: list[str], reason: str = NOT_SETTLED) -> None:
        self._tags = tags
        self._rids = rids
        self._reason = reason
        self._parts: list[bytes] = []
        self._at = 0

    def put(self, out: list[bytes], parts: list[bytes]) -> None:
        """These are the answers, one a job, and go here."""
        self._parts, self._at = out, len(out)
        out += parts

    def refuse(self, tag: int) -> None:
        """The end of the job with this tag is not stored."""
        n = self._tags.index(tag)
        self._parts[self._at + n] = err(self._rids[n], Code.UNAVAILABLE, self._reason)


class Deliveries:
    """Consumers by their sids, assignments by their jids; the oldest assignment comes first."""

    def __init__(
        self, connection: Connection, service: OverhopService, replies: Replies, oks: OkWriter, client: Client
    ) -> None:
        self.connection = connection
        self._client = client
        self.consumers: dict[str, Consumer] = {}
        self.assignments: dict[str, Assignment] = {}
        self._service = service
        self._engine = service.engine
        self._replies = replies
        self._oks = oks

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
        for earlier in [consumer for consumer in self.consumers.values() if consumer.queue == wanted.q]:
            if earlier.buffer is buffer:
                raise DomainError(Code.DUPLICATE_SUBSCRIPTION, f"this worker has subscribed to {wanted.q} already")
            earlier.withdraw()  # it was for a queue that has been removed since
            del self.consumers[earlier.sid]
        key = None if service.grant is None else service.grant.id
        consumer = Consumer(self, wanted.q, buffer, service.largest_payload, key)
        self.consumers[consumer.sid] = consumer
        return consumer

    def unsubscribe(self, rid: str, p: Payload) -> None:
        """UNSUBSCRIBE: no more jobs; those at work may be finished."""
        sid = subscription_id(p)
        consumer = self.consumers.pop(sid, None)
        if consumer is None:
            raise DomainError(Code.SUBSCRIPTION_NOT_FOUND, f"this worker has no subscription {sid}")
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
        answers = Answers([tag], [rid])
        if not buffer.complete(tag, kept, answers.refuse):
            raise _not_found(jid)
        self._replies.follow_round(self._engine.settling_of(buffer))
        answers.put(self._replies.begin(), [self._oks.empty(rid)])

    def done_run(self, received: Sequence[OverhopEnvelope], at: int) -> int:
        """DONE for the jobs of one consumer that begin at `at`, without results; how many there are, perhaps none.

        Every other DONE is left to `done`.
        """
        assignments = self.assignments
        consumer: Consumer | None = None
        tags: list[int] = []
        rids: list[str] = []
        for t, rid, p in received[at:]:
            jid = p.get("jid")
            if t != DONE or len(p) != 1 or type(jid) is not str:
                break
            job = assignments.get(jid)
            if job is None or (consumer is not None and job[0] is not consumer):
                break
            consumer = job[0]
            del assignments[jid]
            tags.append(job[1])
            rids.append(rid)
        if consumer is None:
            return 0
        consumer.finished(len(tags))
        answers = Answers(tags, rids)
        late = set(consumer.buffer.complete_many(tags, answers.refuse))
        self._replies.follow_round(self._engine.settling_of(consumer.buffer))
        empty = self._oks.empty
        if late:
            gone = "this worker no longer has the job"
            parts = [err(rid, Code.JOB_NOT_FOUND, gone) if tag in late else empty(rid)
                     for tag, rid in zip(tags, rids, strict=True)]  # fmt: skip
        else:
            parts = [empty(rid) for rid in rids]
        answers.put(self._replies.begin(), parts)
        return len(tags)

    def fail(self, rid: str, p: Payload) -> None:
        """FAIL: another attempt after the backoff, or none if it was the last."""
        jid, error, retry_in_ms = fail(p)
        buffer, tag = self._take(jid)
        if tag not in buffer.unacked:
            raise _not_found(jid)
        delay = None if retry_in_ms is None else retry_in_ms / 1000
        answers = Answers([tag], [rid], NOT_COUNTED)
        text = (error or "failed without a word").replace("\0", "\ufffd")
        buffer.give_back(tag, delay=delay, error=text, refuse=partial(answers.refuse, tag))
        self._replies.follow_round(self._engine.settling_of(buffer))
        answers.put(self._replies.begin(), [self._oks.empty(rid)])

    def ack(self, rid: str, p: Payload) -> None:
        """ACK: the worker has it."""
        self._assignment(job_id(p))
        self._ok(rid)

    def beat(self, rid: str, p: Payload) -> None:
        """BEAT: the worker is still at it."""
        jid = job_id(p)
        job = self._assignment(jid)
        try:
            moved = job.consumer.buffer.dispatcher().beat(job.tag)
        except KeyError:
            raise _not_found(jid) from None
        if moved is not None:
            self.assignments[jid] = job._replace(deadline=job.consumer.wall_time(moved))
        self._ok(rid)

    async def log(self, wanted: Log) -> Payload:
        """LOG: a line is kept with the job."""
        job = self._assignment(wanted.jid)
        line = wanted.line.replace("\0", "\ufffd")
        return await self._service.queries.log(job.consumer.buffer.id, job.id, line)

    # The connection.

    def send_quests(self, frames: list[bytes]) -> None:
        """Push jobs; a worker that does not read gets no more of them until it does."""
        connection = self.connection
        connection.write(b"".join(frames))
        self._client.delivered(len(frames))
        if connection.is_choked:
            for consumer in self.consumers.values():
                consumer.set_aside()

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
        jobs, self.assignments = self.assignments, {}
        for job in jobs.values():
            job.consumer.finished(1)
            job.consumer.buffer.hand_back(job.tag)
        for buffer in {job.consumer.buffer for job in jobs.values()}:
            self._replies.follow_round(self._engine.settling_of(buffer))
            self._replies.begin()  # what follows waits for this too

    def lose(self) -> None:
        """The worker is gone: another attempt for each of its jobs, after the backoff."""
        jobs, self.assignments = self.assignments, {}
        for job in jobs.values():
            job.consumer.buffer.give_back(job.tag, error="the worker disconnected")

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
                    "jid": jid, "queue": job.consumer.queue, "message": job.id, "attempt": job.attempt,
                    "since": round(job.since, 3),
                    "deadline": None if job.deadline is None else round(job.deadline, 3),
                }
                for jid, job in islice(self.assignments.items(), MOST_JOBS)
            ],
            "active": len(self.assignments),
        }  # fmt: skip

    def _assignment(self, jid: str) -> Assignment:
        job = self.assignments.get(jid)
        if job is None:
            raise _not_found(jid)
        return job

    def _take(self, jid: str) -> tuple[LocalQueue, int]:
        job = self.assignments.pop(jid, None)
        if job is None:
            raise _not_found(jid)
        job.consumer.finished(1)
        return job.consumer.buffer, job.tag

    def _ok(self, rid: str) -> None:
        self._replies.begin().append(self._oks.empty(rid))


def _not_found(jid: str) -> DomainError:
    return DomainError(Code.JOB_NOT_FOUND, f"this worker does not have job {jid}")
