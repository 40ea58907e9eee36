"""The work of one connection: its claims on queues, and the jobs that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from queues.engine import Engine, QueueBuffer, QueueNotFound
from queues.reach import Operation
from wire.connection import Connection
from wire.overhop.claim import Assignment, Claim
from wire.overhop.codec import Message
from wire.overhop.encoding import Unencodable, encode_value, err
from wire.overhop.fields import DomainError, forbidden
from wire.overhop.frames import OkWriter
from wire.overhop.messages import Log, Subscribe, credit, done, fail, job_id, subscription_id
from wire.overhop.names import Code, Type
from wire.overhop.service import OverhopService
from wire.replies import Replies

Payload = dict[str, Any]
DONE = int(Type.DONE)
NOT_SETTLED = "the store cannot settle this job: an operator has to see to it"


class Session(Protocol):
    """What the work needs of its connection."""

    connection: Connection
    replies: Replies
    engine: Engine
    service: OverhopService
    oks: OkWriter


class Answers:
    """The answers to some DONEs, which wait for the commit. ERR takes the place of the OK for a job that the store
    cannot settle."""

    __slots__ = ("_at", "_parts", "_rids", "_tags")

    def __init__(self, tags: list[int], rids: list[str]) -> None:
        self._tags = tags
        self._rids = rids
        self._parts: list[bytes] = []
        self._at = 0

    def put(self, out: list[bytes], parts: list[bytes]) -> None:
        """These are the answers, one a job, and go here."""
        self._parts, self._at = out, len(out)
        out += parts

    def refuse(self, tag: int) -> None:
        """The job with this tag could not be settled."""
        n = self._tags.index(tag)
        self._parts[self._at + n] = err(self._rids[n], Code.UNAVAILABLE, NOT_SETTLED)


class Work:
    """Claims by their sids, assignments by their jids; the oldest assignment comes first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.connection = session.connection
        self.claims: dict[str, Claim] = {}
        self.assignments: dict[str, Assignment] = {}

    # Subscriptions.

    async def subscribe(self, wanted: Subscribe) -> Claim:
        """SUBSCRIBE: a claim without credits; the caller grants them. Raises DomainError or StoreUnavailable."""
        service = self._session.service
        if not await service.may(Operation.CONSUME, wanted.q):
            raise forbidden(wanted.q, f"jobs of queue {wanted.q} may not be done here")
        if len(self.claims) >= (most := service.options.most_subscriptions):
            raise DomainError(Code.FORBIDDEN, f"this worker has {most} subscriptions, as many as it may")
        try:
            buffer = await self._session.engine.queue(wanted.q)
        except QueueNotFound as error:
            raise DomainError(Code.QUEUE_NOT_FOUND, f"there is no queue {wanted.q}") from error
        for earlier in [claim for claim in self.claims.values() if claim.queue == wanted.q]:
            if earlier.buffer is buffer:
                raise DomainError(Code.DUPLICATE_SUBSCRIPTION, f"this worker has subscribed to {wanted.q} already")
            earlier.withdraw()  # it was for a queue that has been removed since
            del self.claims[earlier.sid]
        key = None if service.grant is None else service.grant.id
        claim = Claim(self, wanted.q, buffer, service.largest_payload, key)
        self.claims[claim.sid] = claim
        return claim

    def unsubscribe(self, rid: str, p: Payload) -> None:
        """UNSUBSCRIBE: no more jobs; those at work may be finished."""
        sid = subscription_id(p)
        claim = self.claims.pop(sid, None)
        if claim is None:
            raise DomainError(Code.SUBSCRIPTION_NOT_FOUND, f"this worker has no subscription {sid}")
        claim.withdraw()
        self._ok(rid)

    def credit(self, rid: str, p: Payload) -> None:
        """CREDIT."""
        sid, credits = credit(p)
        claim = self.claims.get(sid)
        if claim is None:
            raise DomainError(Code.SUBSCRIPTION_NOT_FOUND, f"this worker has no subscription {sid}")
        self._ok(rid)
        claim.grant(credits)

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
        self._session.replies.round = self._session.engine.settling_of(buffer)
        answers.put(self._session.replies.begin(), [self._session.oks.empty(rid)])

    def done_run(self, received: Sequence[Message], at: int) -> int:
        """DONE for the jobs of one claim that begin at `at`, without results; how many there are, perhaps none.

        What is anything else is left to `done`.
        """
        assignments = self.assignments
        claim: Claim | None = None
        tags: list[int] = []
        rids: list[str] = []
        for t, rid, p in received[at:]:
            jid = p.get("jid")
            if t != DONE or len(p) != 1 or type(jid) is not str:
                break
            job = assignments.get(jid)
            if job is None or (claim is not None and job[0] is not claim):
                break
            claim = job[0]
            del assignments[jid]
            tags.append(job[1])
            rids.append(rid)
        if claim is None:
            return 0
        claim.active -= len(tags)
        answers = Answers(tags, rids)
        late = set(claim.buffer.complete_many(tags, answers.refuse))
        session = self._session
        session.replies.round = session.engine.settling_of(claim.buffer)
        empty = session.oks.empty
        if late:
            gone = "this worker no longer has the job"
            parts = [err(rid, Code.JOB_NOT_FOUND, gone) if tag in late else empty(rid)
                     for tag, rid in zip(tags, rids, strict=True)]  # fmt: skip
        else:
            parts = [empty(rid) for rid in rids]
        answers.put(session.replies.begin(), parts)
        return len(tags)

    def fail(self, rid: str, p: Payload) -> None:
        """FAIL: another attempt after the backoff, or none if it was the last."""
        jid, error, retry_in_ms = fail(p)
        buffer, tag = self._take(jid)
        if tag not in buffer.unacked:
            raise _not_found(jid)
        delay = None if retry_in_ms is None else retry_in_ms / 1000
        buffer.give_back(tag, delay=delay, error=(error or "failed without a word").replace("\0", "\ufffd"))
        self._settled(rid, buffer)

    def ack(self, rid: str, p: Payload) -> None:
        """ACK: the worker has it."""
        self._assignment(job_id(p))
        self._ok(rid)

    def beat(self, rid: str, p: Payload) -> None:
        """BEAT: the worker is still at it."""
        jid = job_id(p)
        job = self._assignment(jid)
        try:
            moved = job.claim.buffer.pushing().beat(job.tag)
        except KeyError:
            raise _not_found(jid) from None
        if moved is not None:
            self.assignments[jid] = job._replace(deadline=job.claim.wall_time(moved))
        self._ok(rid)

    async def log(self, wanted: Log) -> Payload:
        """LOG: a line is kept with the job."""
        job = self._assignment(wanted.jid)
        line = wanted.line.replace("\0", "\ufffd")
        return await self._session.service.clerk.log(job.claim.buffer.id, job.id, line)

    # The connection.

    def send_quests(self, frames: list[bytes]) -> None:
        """Push jobs; a worker that does not read gets no more of them until it does."""
        connection = self._session.connection
        connection.write(b"".join(frames))
        if connection.is_choked:
            for claim in self.claims.values():
                claim.set_aside()

    def go_on(self) -> None:
        """The worker reads again."""
        for claim in self.claims.values():
            claim.go_on()

    def withdraw(self) -> None:
        """Take no more jobs."""
        for claim in self.claims.values():
            claim.withdraw()

    def hand_back(self) -> None:
        """Every job goes back to its place, as if it had not been pushed. The next reply waits for all of that."""
        jobs, self.assignments = self.assignments, {}
        for job in jobs.values():
            job.claim.active -= 1
            job.claim.buffer.hand_back(job.tag)
        replies = self._session.replies
        for buffer in {job.claim.buffer for job in jobs.values()}:
            replies.round = self._session.engine.settling_of(buffer)
            replies.begin()  # what follows waits for this too

    def lose(self) -> None:
        """The worker is gone: another attempt for each of its jobs, after the backoff."""
        jobs, self.assignments = self.assignments, {}
        for job in jobs.values():
            job.claim.buffer.give_back(job.tag, error="the worker disconnected")

    def _assignment(self, jid: str) -> Assignment:
        job = self.assignments.get(jid)
        if job is None:
            raise _not_found(jid)
        return job

    def _take(self, jid: str) -> tuple[QueueBuffer, int]:
        job = self.assignments.pop(jid, None)
        if job is None:
            raise _not_found(jid)
        job.claim.active -= 1
        return job.claim.buffer, job.tag

    def _ok(self, rid: str) -> None:
        session = self._session
        session.replies.begin().append(session.oks.empty(rid))

    def _settled(self, rid: str, buffer: QueueBuffer) -> None:
        replies = self._session.replies
        replies.round = self._session.engine.settling_of(buffer)
        replies.begin().append(self._session.oks.empty(rid))


def _not_found(jid: str) -> DomainError:
    return DomainError(Code.JOB_NOT_FOUND, f"this worker does not have job {jid}")
