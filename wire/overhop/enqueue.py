"""ENQUEUE on one connection: publishes jobs, and answers when they are stored.

Plain jobs for one queue are published and answered together (`publish_run`). A job with a key may not be stored because
another job has the key: the answer then names that job, which has to be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from queues.engine.api import (
    ClientConnection,
    Content,
    DetailedMessage,
    EngineError,
    Publisher,
    QueueFull,
    QueueNotFound,
    QueuePolicy,
    StoreUnavailable,
    Unstorable,
)
from queues.intervals import IntervalMap
from wire.net.connection import Connection, contained
from wire.overhop.codec.encoder import Unencodable, encode_value, err, ok
from wire.overhop.codec.fields import DomainError
from wire.overhop.codec.hot_frames import jid_oks
from wire.overhop.codec.messages import Enqueue
from wire.overhop.codec.names import Code
from wire.overhop.codec.runs import JobRun
from wire.overhop.payloads import job_names
from wire.overhop.service import OverhopService
from wire.replies import HeldReplies, Parts, Replies

NIL = b"\xc0"
#: The number of times that a job whose key has just become free is given to the store again.
ROUNDS = 5

CODES: tuple[tuple[type[EngineError], Code], ...] = (
    (QueueFull, Code.QUEUE_FULL),
    (QueueNotFound, Code.QUEUE_NOT_FOUND),
    (Unstorable, Code.INVALID_JOB_PAYLOAD),
    (StoreUnavailable, Code.UNAVAILABLE),
)


class JobAnswers:
    """The answers to ENQUEUEs of one queue with request ids of one length, in their place in a list of replies. The
    engine tells them before the replies to that batch are released."""

    __slots__ = ("_frames", "_left", "_parts", "_q", "_rids", "_slot")

    def __init__(self, parts: Parts, rids: Sequence[bytes], q: str) -> None:
        self._parts = parts
        self._slot = len(parts)
        self._rids = rids
        self._q = q
        #: Those that are known, by the number of the first job that they are for; the number of the others.
        self._frames: dict[int, bytes | bytearray] = {}
        self._left = len(rids)
        parts.append(b"")

    def __len__(self) -> int:
        return len(self._rids)

    @property
    def complete(self) -> bool:
        """Whether all are known."""
        return self._left <= 0

    def fill(self, n: int, ids: Sequence[int], queue: QueuePolicy) -> None:
        """The jobs from the `n`th on were stored in `queue` with these ids."""
        names = job_names(self._q, queue.uuid)
        self._put(n, len(ids), jid_oks(self._rids[n : n + len(ids)], names.head, names.jids(ids)))

    def refuse(self, n: int, code: Code, text: str) -> None:
        """The `n`th job was not stored."""
        self._put(n, 1, err(self._rids[n].decode(), code, text))

    def _put(self, n: int, count: int, frames: bytes | bytearray) -> None:
        """So many answers from the `n`th on are known."""
        self._frames[n] = frames
        self._left -= count
        if self.complete:
            known = self._frames
            self._parts[self._slot] = frames if len(known) == 1 else b"".join(known[n] for n in sorted(known))


class Keyed(NamedTuple):
    """A job with a key: its holder may have to be asked for before the answer is known."""

    held: HeldReplies
    rid: str
    publisher: Publisher
    q: str
    message: DetailedMessage
    rounds: int


class PendingRuns:
    """The runs whose answers are not all known. The token of a job in a run is a number, by which its run is found."""

    def __init__(self) -> None:
        self._answers: IntervalMap[JobAnswers] = IntervalMap()
        self._next = 0

    def add(self, answers: JobAnswers) -> range:
        """The tokens of a new run's jobs."""
        tokens = range(self._next, self._next + len(answers))
        self._next = tokens.stop
        self._answers.add(tokens, answers)
        return tokens

    def find(self, token: int) -> tuple[JobAnswers, int]:
        """The answers to the run that has this token, and the job's number there."""
        found = self._answers.find(token)
        assert found is not None
        return found[1], token - found[0].start

    def prune(self) -> None:
        """Forget the first runs as far as they are answered."""
        while (first := next(iter(self._answers), None)) is not None and first[1].complete:
            self._answers.cut(first[0])


#: The token of a job that is published by itself: its answer. Of one with a key: `Keyed`. Of one in a run: a number.
JobToken = JobAnswers | Keyed | int


@dataclass(eq=False)
class Enqueuer:
    """Publishes jobs; an `AnsweredProducer` to the engine, with `JobToken`s."""

    connection: Connection
    service: OverhopService
    replies: Replies
    #: Runs a coroutine in the background, no longer than the connection lives.
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    client: ClientConnection
    _pending: PendingRuns = field(default_factory=PendingRuns)
    _gone: bool = False

    def publish(self, rid: str, job: Enqueue, publisher: Publisher) -> None:
        """Give a job to the store; the answer follows by itself. Raises DomainError."""
        q, value, scheduled_at, max_attempts, interval, key, priority = job
        payload = NIL if value is None else self._payload(value)
        self.client.published(1)
        replies = self.replies
        replies.follow_batch(self.service.engine.open_batch)
        token: JobToken
        if scheduled_at is None and interval is None and key is None and not priority:
            token = JobAnswers(replies.begin(), [rid.encode()], q)
            publisher.publish_answered(payload, Content.MSGPACK, self, token, max_attempts)
            return
        message = DetailedMessage(
            payload, key=key, max_attempts=max_attempts, priority=priority, content=Content.MSGPACK,
            retry_interval=interval, due=scheduled_at,
        )  # fmt: skip
        if key is not None:
            token = Keyed(replies.begin_pending(), rid, publisher, q, message, ROUNDS)
        else:
            token = JobAnswers(replies.begin(), [rid.encode()], q)
        publisher.publish_detailed(message, self, token, True)

    def publish_run(self, run: JobRun) -> bool:
        """Publish the jobs of a run; False if permissions have to be looked up, jobs may not be given to the queue, or
        one is too large: they are left to `publish`."""
        try:
            publisher = self.service.publisher(run.q)
        except DomainError:
            return False
        if publisher is None or max(map(len, run.payloads)) > self.service.largest_payload:
            return False
        self.client.published(len(run))
        replies = self.replies
        replies.follow_batch(self.service.engine.open_batch)
        answers = JobAnswers(replies.begin(), run.rids, run.q)
        publisher.publish_many_answered(run.payloads, Content.MSGPACK, self, self._pending.add(answers))
        return True

    def _payload(self, value: Any) -> bytes:
        try:
            payload = encode_value(value)
        except Unencodable as error:
            raise DomainError(Code.INVALID_JOB_PAYLOAD, str(error)) from error
        if len(payload) > self.service.largest_payload:
            raise DomainError(
                Code.INVALID_JOB_PAYLOAD,
                f"the payload has {len(payload)} bytes; {self.service.largest_payload} can be delivered",
            )
        return payload

    # Called by the engine.

    @contained
    def published(self, tokens: list[Any], ids: Sequence[int | None], queue: QueuePolicy) -> None:
        """The jobs are durable in `queue`; without an id a job's key is another's."""
        at = 0
        while at < len(tokens):
            token: JobToken = tokens[at]
            end = at + 1
            if isinstance(token, Keyed):
                self._published_keyed(token, ids[at], queue)
            elif isinstance(token, JobAnswers):
                token.fill(0, cast(Sequence[int], ids[at:end]), queue)
            else:
                answers, n = self._pending.find(token)
                last = min(at + len(answers) - n, len(tokens)) - 1
                if tokens[last] == token + last - at:  # else not all of the rest of the run are there
                    end = last + 1
                answers.fill(n, cast(Sequence[int], ids[at:end]), queue)
                self._pending.prune()
            at = end

    def _published_keyed(self, keyed: Keyed, id: int | None, queue: QueuePolicy) -> None:
        if id is not None:
            self._answer(keyed, id, queue)
        elif not self._gone:
            self.spawn(self._find_holder(keyed, queue))

    @contained
    def publish_failed(self, token: JobToken, error: EngineError) -> None:
        """The job was not stored."""
        code = next((code for kind, code in CODES if isinstance(error, kind)), Code.UNAVAILABLE)
        if isinstance(token, Keyed):
            token.held.fill(err(token.rid, code, str(error)))
        elif isinstance(token, JobAnswers):
            token.refuse(0, code, str(error))
        else:
            answers, n = self._pending.find(token)
            answers.refuse(n, code, str(error))
            self._pending.prune()

    def forget(self) -> None:
        """The connection is gone: answers are not needed any more."""
        self._gone = True

    # Keys.

    def _answer(self, keyed: Keyed, id: int, queue: QueuePolicy) -> None:
        keyed.held.fill(ok(keyed.rid, {"jid": job_names(keyed.q, queue.uuid).jid(id)}))

    async def _find_holder(self, keyed: Keyed, queue: QueuePolicy) -> None:
        """Answer with the job that has the key; if it has just finished, there is room for this one."""
        try:
            rows = await self.service.engine.look_up("find_key", queue=queue.id, key=keyed.message.key)
        except StoreUnavailable as error:
            keyed.held.fill(err(keyed.rid, Code.UNAVAILABLE, str(error)))
        else:
            if rows:
                self._answer(keyed, rows[0][0], queue)
            elif keyed.rounds:
                again = keyed._replace(rounds=keyed.rounds - 1)
                batch = keyed.publisher.publish_detailed(keyed.message, self, again, True)
                keyed.held.wait_for(batch)
                self.replies.follow_batch(max(self.replies.batch, batch))
            else:
                keyed.held.fill(err(keyed.rid, Code.UNAVAILABLE, "the key changes hands too fast"))
        # Not when it is filled: while the engine reports a commit, the answers to other jobs of it are not there yet.
        self.replies.release()
