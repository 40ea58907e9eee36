"""The client's side of Overhop without I/O: requests out, answers matched to them, QUESTs kept.

`wire.client.protocol` describes how a core is driven. A request is prepared (encoded, so that bad input is
refused before anything leaves), submitted (its bytes are in `outgoing`), and answered: its `Reply` is done then.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, again
from wire.client.protocol import Steps
from wire.overhop import requests
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope
from wire.overhop.codec.encoder import encode
from wire.overhop.codec.names import PUSH_RID, Type
from wire.overhop.errors import MessageTooLarge, OverhopError, refusal
from wire.overhop.requests import Quest, Request

T = TypeVar("T")

LENGTH_SIZE: Final = 4

#: Requests that change nothing, and so may be sent twice.
READING: Final = frozenset((Type.PING, Type.GQUEUE, Type.LQUEUES, Type.STATUS, Type.JOB, Type.LSJOB, Type.QSTATS))
#: Requests about a connection's subscriptions, which are made again on the next one as these have left them.
OF_THE_CONNECTION: Final = frozenset((Type.SUBSCRIBE, Type.UNSUBSCRIBE, Type.CREDIT))


class Reply(Generic[T]):
    """The answer to a request, once it has come."""

    __slots__ = ("_payload", "error", "frame", "request", "rid", "submitted_at", "subscription", "wake")

    def __init__(self, request: Request[T], rid: str, frame: bytes) -> None:
        self.request = request
        self.rid = rid
        self.frame = frame
        self.submitted_at = 0.0
        #: The error in place of a result.
        self.error: ClientError | None = None
        #: Called when it is done.
        self.wake: Callable[[], object] | None = None
        #: What a SUBSCRIBE resumes.
        self.subscription: _Subscription | None = None
        self._payload: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        return self._payload is not None or self.error is not None

    def answer(self, payload: dict[str, Any]) -> None:
        """The request was granted."""
        self._payload = payload
        if self.wake is not None:
            self.wake()

    def refuse(self, error: ClientError) -> None:
        """The request was refused, or there will be no answer."""
        self.error = error
        if self.wake is not None:
            self.wake()

    def result(self) -> T:
        """Return the answer's value; raises `error`, or ProtocolViolation for a malformed answer."""
        if self.error is not None:
            raise self.error
        assert self._payload is not None
        return _understood(self.request.parse, self.request.answer, self._payload)


def _understood(parse: Callable[[dict[str, Any]], T], t: int, payload: dict[str, Any]) -> T:
    try:
        return parse(payload)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolViolation(f"malformed {Type(t).name}: {type(error).__name__}: {error}") from error


class _Subscription:
    """A queue that jobs are taken of, over any number of connections."""

    def __init__(self, sid: str, queue: str, credits: int) -> None:
        #: The id that the program has: that of the first connection.
        self.name = sid
        #: The broker's id for it on this connection.
        self.sid = sid
        self.queue = queue
        #: Those that the broker has, once it has answered.
        self.credits = credits


class ClientCore:
    """A client's requests, their answers, and the QUESTs, over any number of connections."""

    def __init__(self, timeout: float, max_envelope: int, resend: bool = False) -> None:
        """`timeout`: seconds without any answer after which an expected one is given up. `resend`: send an ENQUEUE that
        was not answered again on the next connection."""
        self.outgoing = bytearray()
        #: The broker's name for this connection.
        self.worker_id = ""
        self.timeout = timeout
        self.quests: deque[Quest] = deque()
        #: Takes each QUEST as it arrives; it keeps them in `quests` unless another is put here.
        self.on_quest: Callable[[Quest], object] = self.quests.append
        #: Told that a connection has ended, after all else is done about it; True if there will be no other.
        self.on_lost: Callable[[ClientError, bool], object] = lambda error, final: None
        #: The number of answers so far: a rising number shows that the broker is working.
        self.answered = 0
        #: The lead of the broker's clock over ours; known after a PING.
        self.clock_offset: timedelta | None = None
        self._max_envelope = max_envelope
        self._decoder = Decoder.for_client(max_envelope)
        self._next_id = 0
        self._expected: dict[str, Reply[Any]] = {}
        self._resend = resend
        #: Requests of the connection before that are sent again.
        self._repeated: list[Reply[Any]] = []
        #: By the id that the program has.
        self._subscriptions: dict[str, _Subscription] = {}

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation for what a broker never sends."""
        for message in self._decoder.feed(data):
            self._take(message)
        if self._decoder.error is not None:
            raise ProtocolViolation(self._decoder.error)

    def now(self) -> datetime:
        """Return the time by the broker's clock, as far as it is known."""
        return datetime.now(UTC) + (self.clock_offset or timedelta())

    def prepare(self, request: Request[T]) -> Reply[T]:
        """Encode a request. Raises Unencodable or MessageTooLarge; nothing has happened then."""
        rid = str(self._next_id + 1)
        p = request.p
        if request.t in (Type.CREDIT, Type.UNSUBSCRIBE) and (known := self._subscriptions.get(p["sid"])) is not None:
            p = p | {"sid": known.sid}
        frame = encode(request.t, rid, p)
        if (size := len(frame) - LENGTH_SIZE) > self._max_envelope:
            raise MessageTooLarge(f"{request.t.name} of {size} bytes is over {self._max_envelope}")
        self._next_id += 1
        return Reply(request, rid, frame)

    def submit(self, reply: Reply[Any]) -> None:
        """Put a prepared request into `outgoing`, unless it is there already or on its way."""
        if reply.done or reply.rid in self._expected:
            return
        self.outgoing += reply.frame
        reply.submitted_at = time.time()
        self._expected[reply.rid] = reply

    def submit_all(self, replies: Sequence[Reply[Any]]) -> None:
        """Put prepared requests into `outgoing`."""
        for reply in replies:
            self.submit(reply)

    def repeats(self, request: Request[Any]) -> bool:
        """Whether a request that the end of a connection has left unanswered goes on with the next one."""
        t = request.t
        return t in READING or t in OF_THE_CONNECTION or (self._resend and t == Type.ENQUEUE)

    def begin(self, request: Request[T]) -> Reply[T]:
        """Prepare and submit a request."""
        reply = self.prepare(request)
        self.submit(reply)
        return reply

    def ask(self, request: Request[T]) -> Steps[T]:
        """Send a request and return its answer."""
        return (yield from self.answer_to(self.prepare(request)))

    def answer_to(self, reply: Reply[T]) -> Steps[T]:
        """Send a prepared request and return its answer."""
        yield from self.settle([reply])
        return reply.result()

    def settle(self, replies: Sequence[Reply[Any]]) -> Steps[None]:
        """Submit prepared requests, and wait until all are answered, refusals too."""
        self.submit_all(replies)
        answered, deadline = self.answered, time.monotonic() + self.timeout
        for reply in replies:
            while not reply.done:
                left = deadline - time.monotonic()
                if left <= 0 or not (yield left):
                    raise ReplyTimeout(f"no answer for {self.timeout} s")
                if answered != self.answered:
                    answered, deadline = self.answered, time.monotonic() + self.timeout

    def handshake(self) -> Steps[int]:
        """HELLO, then REGISTER at once, whether an IDENT asks for it or not; then what there was before.

        The number of ENQUEUEs that are sent once more.
        """
        yield from self.ask(requests.hello())
        self.worker_id = yield from self.ask(requests.register())
        for known in list(self._subscriptions.values()):
            reply = self.prepare(requests.subscribe(known.queue, known.credits))
            reply.subscription = known
            yield from self.answer_to(reply)
        repeated, self._repeated = self._repeated, []
        for reply in repeated:
            self.submit(reply)
        return sum(reply.request.t == Type.ENQUEUE for reply in repeated)

    def next_quest(self, timeout: float | None) -> Steps[Quest | None]:
        """Return the next QUEST; None when the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.quests:
            left = None if deadline is None else deadline - time.monotonic()
            if not (yield left if left is None else max(left, 0)) and left is not None:
                return None
        return self.quests.popleft()

    def lost(self, error: ClientError, final: bool) -> None:
        """The connection has ended: refuse every request that is not answered and does not go on.

        The broker gives the jobs that it has delivered to others.
        """
        expected = [*self._repeated, *self._expected.values()]
        self._repeated, self._expected = [], {}
        for reply in expected:
            if final or not self.repeats(reply.request):
                reply.refuse(again(error))
            elif reply.subscription is None and reply.request.t in (Type.CREDIT, Type.UNSUBSCRIBE):
                self._take_answer(reply, reply.request.answer, {})
            elif reply.subscription is None:
                self._repeated.append(reply)
        if not final:
            self.outgoing.clear()
            self._decoder = Decoder.for_client(self._max_envelope)
            for quest in self.quests:
                if (known := self._subscriptions.get(quest.sid)) is not None:
                    known.credits += 1
            self.quests.clear()
        self.on_lost(error, final)

    def _take(self, message: OverhopEnvelope) -> None:
        t, rid, p = message
        if t == Type.QUEST:
            self._take_quest(_understood(requests.quest, t, p))
        elif (reply := self._expected.get(rid)) is not None:
            self._take_answer(reply, t, p)
        elif t == Type.ERR and rid == PUSH_RID:
            error = _understood(refusal, t, p)
            raise ConnectionLost(f"the broker closes the connection: {error}") from error
        elif t != Type.IDENT:
            raise ProtocolViolation(f"message type {t} with request id {rid!r} answers nothing")

    def _take_quest(self, quest: Quest) -> None:
        for known in self._subscriptions.values():
            if known.sid == quest.sid:
                known.credits -= 1
                if known.name != quest.sid:
                    quest = replace(quest, sid=known.name)
                break
        self.on_quest(quest)

    def _take_answer(self, reply: Reply[Any], t: int, p: dict[str, Any]) -> None:
        error: OverhopError | None = None
        if t == Type.ERR:
            error = _understood(refusal, t, p)
        elif t != reply.request.answer:
            raise ProtocolViolation(f"{reply.request.t.name} was answered with message type {t}")
        elif t == Type.PONG:
            between = datetime.fromtimestamp((reply.submitted_at + time.time()) / 2, UTC)
            self.clock_offset = _understood(requests.server_time, t, p) - between
        elif t == Type.OK and reply.request.t in OF_THE_CONNECTION:
            self._note_subscription(reply, p)
        self._expected.pop(reply.rid, None)
        self.answered += 1
        reply.frame = b""
        if error is not None:
            reply.refuse(error)
        else:
            reply.answer(p)

    def _note_subscription(self, reply: Reply[Any], p: dict[str, Any]) -> None:
        given = reply.request.p
        if reply.request.t == Type.SUBSCRIBE:
            sid = _understood(requests.text("sid"), Type.OK, p)
            if (known := reply.subscription) is None:
                self._subscriptions[sid] = _Subscription(sid, given["q"], given["credits"])
            else:
                known.sid = sid
        elif reply.request.t == Type.UNSUBSCRIBE:
            self._subscriptions.pop(given["sid"], None)
        elif (known := self._subscriptions.get(given["sid"])) is not None:
            known.credits += given["credits"]
