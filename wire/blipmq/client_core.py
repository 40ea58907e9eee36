"""The client's side of BlipMQ without I/O; docs/protocols/blipmq.md. `wire.client.protocol` says how it is driven."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from queues.backoff import Backoff, even
from wire.blipmq import codec
from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout
from wire.client.protocol import Steps

#: Waits between two POLLs of an empty subscription.
PAUSE: Final = Backoff(0.001, 0.1, even)

#: The first request id. Delivery tags count from 1, so that an answer always shows which of the two it names.
FIRST_REQUEST: Final = 1 << 63

#: Kept publishes, or bytes of them, after which the broker is asked to confirm them.
CONFIRM_COUNT, CONFIRM_BYTES = 256, 1 << 20
#: Limits of unconfirmed publishes and their bytes. A client at the limit waits.
UNCONFIRMED_COUNT, UNCONFIRMED_BYTES = 65_536, 16 << 20

#: Bytes of a batch of publishes that are sent together.
SEND_AT: Final = 64 * 1024
#: Messages that `messages` fetches at once, at most.
PREFETCH: Final = 1000
#: Seconds of a program's work that are fetched at once, a fifth of a queue's usual acknowledgement time; after half of
#: that time what was fetched is left to be delivered again.
AHEAD: Final = 0.02
STALE: Final = 0.05


class Message(NamedTuple):
    """A delivered message; give it to `ack` once it is processed."""

    topic: str
    body: bytes
    qos: int
    subscription: int
    #: The delivery tag, the same again if the message is redelivered; None with QoS 0, which needs no ack.
    tag: int | None
    #: The client's connection that it came by, counted from 1: it can be acknowledged on that one only.
    connection: int = 1


class NackError(ClientError):
    """The broker refused a frame with a NACK. The connection stays usable."""

    def __init__(self, code: int, message: str, correlation_id: int) -> None:
        super().__init__(code, message, correlation_id)
        self.code = code
        self.message = message
        #: The return value of `publish` for the refused message, or the delivery tag for a refused `ack`.
        self.correlation_id = correlation_id
        #: Further refusals that the same `flush` found.
        self.others: tuple[NackError, ...] = ()

    def __str__(self) -> str:
        return f"{self.code} {self.message}"

    @property
    def passing(self) -> bool:
        return self.code >= 500


class _Reply:
    """The answer to one request, once it has come."""

    def __init__(self, correlation_id: int, covers: int) -> None:
        self.correlation_id = correlation_id
        #: Publishes that a PONG confirms.
        self.covers = covers
        self.done = False
        self.subscription = 0
        self.reject: codec.Reject | None = None


class _Burst:
    """POLLs of one subscription and the PING behind them: what comes before its PONG belongs to them."""

    def __init__(self, subscription: int, first: int, pong: _Reply) -> None:
        self.subscription = subscription
        self.polls = range(first, pong.correlation_id)
        self.pong = pong
        self.messages: list[Message] = []
        self.reject: NackError | None = None


class Window:
    """How many messages to fetch at once: as many as the program processes in `AHEAD` seconds, and about twice as many
    as came last."""

    def __init__(self, prefetch: int) -> None:
        self.size = 1
        self._prefetch = prefetch

    def processed(self, count: int, seconds: float, longest: float) -> None:
        """The last `count` messages took so long, one of them the longest."""
        fitting = 1 if longest > AHEAD else int(AHEAD * count / max(seconds, 1e-6))
        self.size = max(1, min(self._prefetch, fitting, 2 * count + 1))


class ClientCore:
    """One client's requests, their answers, and the deliveries between them, over any number of connections."""

    def __init__(self, key: str, timeout: float, resend: bool) -> None:
        """`timeout`: seconds of silence after which an expected answer is given up. `resend`: keep each publish until
        it is confirmed, and send it again on the next connection."""
        self.outgoing = bytearray()
        #: Publishes since the last `flush`, or since they were given up.
        self.unflushed = 0
        #: The number of connections so far.
        self.connection = 0
        self._key = key
        self._timeout = timeout
        self._resend = resend
        self._decoder = codec.Decoder()
        self._next_id = FIRST_REQUEST
        self._expected: dict[int, _Reply] = {}
        self._bursts: deque[_Burst] = deque()
        self._rejected: list[NackError] = []
        #: Publishes whose program waits for their own confirmation: the connection they were sent on, and the refusal.
        self._confirming: dict[int, tuple[int, NackError | None]] = {}
        #: Messages that were fetched and not taken, with the time when they came, by subscription.
        self._left: dict[int, tuple[float, list[Message]]] = {}
        #: Publishes that no `flush` has confirmed and that may be lost, and why.
        self._unsure = 0
        self._why: ClientError | None = None
        #: Publishes that are not known to be stored, to be sent again, by id.
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._unasked = 0
        self._unasked_bytes = 0

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation for what a broker never sends."""
        for kind, correlation_id, payload in self._decoder.feed(data):
            try:
                self._take(kind, correlation_id, payload)
            except codec.PayloadError as error:
                raise ProtocolViolation(error.message) from error
        if self._decoder.error is not None:
            raise ProtocolViolation(self._decoder.error)

    def handshake(self) -> Steps[int]:
        """HELLO and AUTH in one packet; then what is to be sent again. The number of publishes that this is."""
        self.connection += 1
        hello = self._ask(codec.encode_hello)
        auth = self._ask(lambda correlation_id: codec.encode_auth(correlation_id, self._key))
        yield from self._answer(hello)
        yield from self._answer(auth)
        for frame in self._kept.values():
            self.outgoing += frame
        if self._kept:
            self._ask_for_confirmation()
        return len(self._kept)

    def lost(self, error: ClientError, final: bool) -> None:
        """The connection has ended: forget its answers, and what it has delivered."""
        if final:
            return
        self.outgoing.clear()
        self._decoder = codec.Decoder()
        self._expected.clear()
        self._bursts.clear()
        if self.unflushed and not self._resend:
            self._unsure += self.unflushed
            self._why = error
            self.unflushed = 0

    @property
    def needs_flush(self) -> bool:
        """Whether `flush` has something to confirm, or to raise about publishes."""
        return self.unflushed > 0 or self._unsure > 0

    @property
    def congested(self) -> bool:
        """Whether to publish nothing more until something is confirmed."""
        return len(self._kept) >= UNCONFIRMED_COUNT or self._kept_bytes >= UNCONFIRMED_BYTES

    @property
    def resends(self) -> bool:
        """Whether what is not confirmed is sent again on the next connection."""
        return self._resend

    def publish(self, topic: str | bytes, body: bytes, qos: int, confirm: bool = False) -> int:
        """Put a PUBLISH into `outgoing` and return its correlation id. With `confirm` it is no concern of `flush`: send
        a `barrier` and call `confirmed`."""
        if confirm and not qos:
            raise ValueError("a message with QoS 0 is not confirmed")
        frame = codec.encode_publish(self._next_id, qos, _encoded(topic), body)
        self.outgoing += frame
        correlation_id = self._take_id()
        if confirm:
            self._confirming[correlation_id] = self.connection, None
        else:
            self.unflushed += 1
        if self._resend and qos:
            self._kept[correlation_id] = frame
            self._kept_bytes += len(frame)
            self._unasked += 1
            self._unasked_bytes += len(frame)
            if self._unasked >= CONFIRM_COUNT or self._unasked_bytes >= CONFIRM_BYTES:
                self._ask_for_confirmation()
        return correlation_id

    def publish_some(self, topic: str | bytes, bodies: Iterator[bytes], qos: int) -> list[int]:
        """Put PUBLISHes into `outgoing`, up to SEND_AT bytes, and return their ids; none when there are no bodies."""
        ids: list[int] = []
        for body in bodies:
            ids.append(self.publish(topic, body, qos))
            if len(self.outgoing) >= SEND_AT:
                break
        return ids

    def relieve(self) -> Steps[None]:
        """Wait until some of the publishes that are kept are confirmed."""
        if self.congested and not self._expected:
            self._ask_for_confirmation()
        while self.congested:
            if not (yield self._timeout):
                raise ReplyTimeout(f"no answer for {self._timeout} s")

    def check(self) -> None:
        """Raise, once, that publishes may be lost."""
        unsure, self._unsure = self._unsure, 0
        if unsure:
            raise ConnectionLost(f"{self._why}; {unsure} publishes since the last flush may not be stored")

    def flush(self) -> Steps[None]:
        """PING; then raise what was refused before the PONG."""
        yield from self._answer(self._ask(codec.encode_ping, self.unflushed))
        if self._rejected:
            first, *others = self._rejected
            self._rejected = []
            first.others = tuple(others)
            raise first

    def barrier(self) -> Steps[None]:
        """PING, and its PONG: what was published before on this connection is stored or refused."""
        yield from self._answer(self._ask(codec.encode_ping))

    def confirmed(self, correlation_id: int) -> None:
        """A barrier has passed that began after this publish. Raises why the publish may not be stored."""
        connection, refusal = self._confirming[correlation_id]
        if refusal is not None:
            raise refusal
        if connection != self.connection and not self._resend:
            raise ConnectionLost("the connection was lost; the message may not be stored")

    def forget(self, correlation_id: int) -> None:
        """Nobody waits for this publish any more."""
        self._confirming.pop(correlation_id, None)

    def subscribe(self, topic: str | bytes, qos: int) -> Steps[int]:
        """SUBSCRIBE, and the id it is answered with."""
        reply = self._ask(lambda correlation_id: codec.encode_subscribe(correlation_id, _encoded(topic), qos))
        yield from self._answer(reply)
        return reply.subscription

    def poll(self, subscription: int, limit: int, timeout: float | None) -> Steps[list[Message]]:
        """Up to `limit` messages; none only when the time is over."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pauses = PAUSE.delays()
        if fresh := self._take_left(subscription, limit):
            return fresh
        while True:
            messages = yield from self._poll_once(subscription, limit)
            left = deadline - time.monotonic()
            if messages or left <= 0:
                return messages
            yield min(next(pauses), left)

    def ack(self, messages: tuple[Message, ...]) -> None:
        """Put ACKs into `outgoing`. A message of a connection before comes again instead."""
        for message in messages:
            if message.tag is not None and message.connection == self.connection:
                self.outgoing += codec.encode_ack(message.tag, message.subscription)

    def is_current(self, message: Message) -> bool:
        """Whether a message can still be acknowledged, or needs not be."""
        return message.connection == self.connection or not message.qos

    def leave(self, subscription: int, messages: list[Message], came: float) -> None:
        """Keep what the program has not taken for the next `poll`, unless that comes too late."""
        if messages:
            before, others = self._left.get(subscription, (came, []))
            self._left[subscription] = min(before, came), others + messages

    def _take_left(self, subscription: int, limit: int) -> list[Message]:
        came, messages = self._left.pop(subscription, (0.0, []))
        late = time.monotonic() - came > STALE
        # The others come again.
        messages = [message for message in messages if not message.qos or (not late and self.is_current(message))]
        self.leave(subscription, messages[limit:], came)
        return messages[:limit]

    def _poll_once(self, subscription: int, limit: int) -> Steps[list[Message]]:
        first = self._next_id
        for _ in range(limit):
            self.outgoing += codec.encode_poll(self._take_id(), subscription)
        burst = _Burst(subscription, first, self._ask(codec.encode_ping))
        self._bursts.append(burst)
        yield from self._answer(burst.pong)
        if burst.reject is not None and not burst.messages:
            raise burst.reject
        return burst.messages

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _ask(self, encode: Callable[[int], bytes], covers: int = 0) -> _Reply:
        self.outgoing += encode(self._next_id)
        reply = _Reply(self._take_id(), covers)
        self._expected[reply.correlation_id] = reply
        return reply

    def _ask_for_confirmation(self) -> None:
        self._ask(codec.encode_ping)
        self._unasked = self._unasked_bytes = 0

    def _confirm_upto(self, correlation_id: int) -> None:
        """Everything published before this id is stored, or was refused."""
        while self._kept and (first := next(iter(self._kept))) < correlation_id:
            self._kept_bytes -= len(self._kept.pop(first))

    def _answer(self, reply: _Reply) -> Steps[None]:
        while not reply.done:
            if not (yield self._timeout):
                raise ReplyTimeout(f"no answer for {self._timeout} s")
        if reply.reject is not None:
            raise NackError(*reply.reject, reply.correlation_id)

    def _take(self, kind: int, correlation_id: int, payload: bytes) -> None:
        if kind == codec.PUBLISH:
            self._take_delivery(correlation_id, payload)
        elif kind == codec.NACK:
            self._take_nack(correlation_id, codec.parse_nack(payload))
        elif kind in (codec.ACK, codec.PONG) and correlation_id in self._expected:
            reply = self._finish(correlation_id)
            if kind == codec.ACK:
                reply.subscription = codec.parse_accepted(payload)
            else:
                self.unflushed -= reply.covers
                self._confirm_upto(correlation_id)
        else:
            raise ProtocolViolation(f"frame type 0x{kind:02x} with id {correlation_id} answers nothing")

    def _finish(self, correlation_id: int) -> _Reply:
        reply = self._expected.pop(correlation_id)
        reply.done = True
        if self._bursts and self._bursts[0].pong is reply:
            self._bursts.popleft()
        return reply

    def _take_delivery(self, correlation_id: int, payload: bytes) -> None:
        if not self._bursts:
            raise ProtocolViolation("a delivery without a POLL")
        burst = self._bursts[0]
        qos, topic, body = codec.parse_delivery(payload)
        tag = correlation_id if qos else None
        burst.messages.append(Message(topic.decode(), body, qos, burst.subscription, tag, self.connection))

    def _take_nack(self, correlation_id: int, reject: codec.Reject) -> None:
        error = NackError(*reject, correlation_id)
        if correlation_id in self._expected:
            self._finish(correlation_id).reject = reject
        elif self._bursts and correlation_id in self._bursts[0].polls:
            self._bursts[0].reject = error
        else:
            if correlation_id in self._confirming:
                self._confirming[correlation_id] = self.connection, error
            else:
                self._rejected.append(error)
            self._kept_bytes -= len(self._kept.pop(correlation_id, b""))


def _encoded(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic
