"""ENQUEUE on one connection: publishes jobs, and answers when they are stored.

Plain jobs for one queue are published together (`publish_run`). A job with a key may not be stored because another
job has the key: the answer then names that job, which has to be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from msgpack import Packer  # type: ignore[import-untyped]

from queues.engine import (
    Client,
    Content,
    EngineError,
    Outgoing,
    QueueFull,
    QueueNotFound,
    StoreUnavailable,
    Unstorable,
)
from wire.net.connection import Connection, contained
from wire.overhop.codec.decoder import OverhopEnvelope
from wire.overhop.codec.encoder import Unencodable, encode_value, err, is_simple
from wire.overhop.codec.fields import DomainError, forbidden
from wire.overhop.codec.hot_frames import OkWriter
from wire.overhop.codec.messages import Enqueue
from wire.overhop.codec.names import Code, Type
from wire.overhop.payloads import DIGITS, JobNames
from wire.overhop.service import OverhopService, Target
from wire.replies import HeldReplies, Replies

NIL = b"\xc0"
ENQUEUE = int(Type.ENQUEUE)
#: The number of times that a job whose key has just become free is given to the store again.
ROUNDS = 5

CODES: tuple[tuple[type[EngineError], Code], ...] = (
    (QueueFull, Code.QUEUE_FULL),
    (QueueNotFound, Code.QUEUE_NOT_FOUND),
    (Unstorable, Code.INVALID_JOB_PAYLOAD),
    (StoreUnavailable, Code.UNAVAILABLE),
)


#: The place of an answer: a slot of a list of replies; with the request's id and the queue's names.
Place = tuple[list[bytes], int, str, JobNames]


class Keyed(NamedTuple):
    """A job with a key: its holder may have to be asked for before the answer is known."""

    held: HeldReplies
    rid: str
    target: Target
    message: Outgoing
    rounds: int


class Enqueuer:
    """Publishes jobs; an `AnsweredProducer` to the engine, to which each job's token is the place of its answer."""

    def __init__(
        self,
        connection: Connection,
        service: OverhopService,
        replies: Replies,
        oks: OkWriter,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        client: Client,
    ) -> None:
        """`spawn` runs a coroutine in the background, no longer than the connection lives."""
        self.connection = connection
        self._service = service
        self._engine = service.engine
        self._replies = replies
        self._oks = oks
        self._spawn = spawn
        self._client = client
        self._gone = False
        #: `encode_value` of simple maps; a packer that is kept is faster than `packb`, which makes one each time.
        self._pack: Callable[[Any], bytes] = Packer(buf_size=4096).pack

    async def find(self, q: str) -> Target:
        """Look up a queue that is not known yet. Raises DomainError or StoreUnavailable."""
        try:
            target = await self._service.find_target(q)
        except QueueNotFound as error:
            raise DomainError(Code.QUEUE_NOT_FOUND, f"there is no queue {q}") from error
        if target is None:
            raise forbidden(q, f"jobs may not be given to queue {q} here")
        return target

    def publish(self, rid: str, job: Enqueue, target: Target) -> None:
        """Give a job to the store; the answer follows by itself. Raises DomainError."""
        _, value, scheduled_at, max_attempts, interval, key, priority = job
        payload = NIL if value is None else self._payload(value)
        self._client.published(1)
        replies = self._replies
        if max_attempts is not None or interval is not None:
            policy = self._engine.known_policy(target.id)
            if policy is not None and not policy.allow_job_overrides:
                max_attempts = interval = None
        replies.follow_batch(self._engine.open_batch)
        message = Outgoing(
            payload, key=key, max_attempts=max_attempts, priority=priority, content=Content.MSGPACK,
            retry_interval=interval, due=scheduled_at,
        )  # fmt: skip
        if key is not None:
            keyed = Keyed(replies.begin_pending(), rid, target, message, ROUNDS)
            target.publisher.publish_detailed(message, self, keyed, True)
            return
        parts = replies.begin()
        place: Place = (parts, len(parts), rid, target.names)
        parts.append(b"")
        if scheduled_at is None and interval is None and not priority:
            target.publisher.publish_answered(payload, Content.MSGPACK, self, place, max_attempts)
        else:
            target.publisher.publish_detailed(message, self, place, True)

    def publish_run(self, received: Sequence[OverhopEnvelope], at: int) -> int:
        """Publish the plain jobs for one queue that begin at `at`; how many there are, perhaps none.

        Every other ENQUEUE, a wrong one too, is left to `publish`.
        """
        pack = self._pack
        q = received[at][2].get("q")
        target = self._service.target(q) if type(q) is str else None
        if target is None:
            return 0
        largest = self._service.largest_payload
        bodies: list[bytes] = []
        rids: list[str] = []
        for t, rid, p in received[at:]:
            value = p.get("job_payload")
            if t != ENQUEUE or type(value) is not dict or len(p) != 2 or p.get("q") != q or not is_simple(value):
                break
            body = pack(value)
            if len(body) > largest:
                break
            bodies.append(body)
            rids.append(rid)
        if bodies:
            self._client.published(len(bodies))
            replies, names = self._replies, target.names
            replies.follow_batch(self._engine.open_batch)
            parts = replies.begin()
            start = len(parts)
            parts += [b""] * len(bodies)
            places: list[Place] = [(parts, start + n, rid, names) for n, rid in enumerate(rids)]
            target.publisher.publish_many_answered(bodies, Content.MSGPACK, self, places)
        return len(bodies)

    def _payload(self, value: Any) -> bytes:
        try:
            payload = self._pack(value) if type(value) is dict and is_simple(value) else encode_value(value)
        except Unencodable as error:
            raise DomainError(Code.INVALID_JOB_PAYLOAD, str(error)) from error
        if len(payload) > self._service.largest_payload:
            raise DomainError(
                Code.INVALID_JOB_PAYLOAD,
                f"the payload has {len(payload)} bytes; {self._service.largest_payload} can be delivered",
            )
        return payload

    # Called by the engine.

    @contained
    def published(self, tokens: list[Any], ids: Sequence[int | None]) -> None:
        """The jobs are durable; without an id a job's key is another's."""
        oks = self._oks
        known: tuple[str, JobNames, int] | None = None
        start = end = b""
        for token, id in zip(tokens, ids, strict=True):
            if type(token) is Keyed:
                self._published_keyed(token, id)
            elif id is not None:
                parts, slot, rid, names = token
                if (rid, names, id >> 12) != known:
                    known = rid, names, id >> 12
                    start, end = oks.around_jid(rid, names.pack(names.start(id)))
                parts[slot] = start + DIGITS[id & 4095] + end

    def _published_keyed(self, keyed: Keyed, id: int | None) -> None:
        if id is not None:
            self._answer(keyed, id)
        elif not self._gone:
            self._spawn(self._find_holder(keyed))

    @contained
    def publish_failed(self, token: Any, error: EngineError) -> None:
        """The job was not stored."""
        code = next((code for kind, code in CODES if isinstance(error, kind)), Code.UNAVAILABLE)
        if isinstance(token, Keyed):
            self._say(token, err(token.rid, code, str(error)))
        else:
            parts, slot, rid, _ = token
            parts[slot] = err(rid, code, str(error))

    def forget(self) -> None:
        """The connection is gone: answers are not needed any more."""
        self._gone = True

    # Keys.

    def _answer(self, keyed: Keyed, id: int) -> None:
        self._say(keyed, self._oks.jid(keyed.rid, keyed.target.names.packed(id)))

    def _say(self, keyed: Keyed, frame: bytes) -> None:
        keyed.held.fill(frame)

    async def _find_holder(self, keyed: Keyed) -> None:
        await self._answer_with_holder(keyed)
        # Not in `_say`: while the engine reports a commit, the answers to other jobs of it are not there yet.
        self._replies.release()

    async def _answer_with_holder(self, keyed: Keyed) -> None:
        """Answer with the job that has the key; if it has just finished, there is room for this one."""
        try:
            cursor = await self._engine.request("find_key", queue=keyed.target.id, key=keyed.message.key)
            row = await cursor.fetchone()
        except StoreUnavailable as error:
            self._say(keyed, err(keyed.rid, Code.UNAVAILABLE, str(error)))
            return
        if row is not None:
            self._answer(keyed, row[0])
        elif keyed.rounds:
            again = keyed._replace(rounds=keyed.rounds - 1)
            batch = keyed.target.publisher.publish_detailed(keyed.message, self, again, True)
            keyed.held.wait_for(batch)
            self._replies.follow_batch(max(self._replies.batch, batch))
        else:
            self._say(keyed, err(keyed.rid, Code.UNAVAILABLE, "the key changes hands too fast"))
