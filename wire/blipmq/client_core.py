"""The client's side of BlipMQ without I/O; docs/protocols/blipmq.md. `wire.client.protocol` says how it is driven."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from queues.backoff import Backoff, even
from wire.blipmq import codec
from wire.client.errors import ClientError, ProtocolViolation, ReplyTimeout
from wire.client.protocol import Steps

#: Waits between two POLLs of an empty subscription.
PAUSE: Final = Backoff(0.001, 0.1, even)

#: The first request id. Delivery tags count from 1, so that an answer always shows which of the two it names.
FIRST_REQUEST: Final = 1 << 63


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


class NackError(ClientError):
    """The broker refused a frame with a NACK. The connection stays usable."""

    def __init__(self, code: int, message: str, correlation_id: int) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        #: The return value of `publish` for the refused message, or the delivery tag for a refused `ack`.
        self.correlation_id = correlation_id
        #: Further refusals that the same `flush` found.
        self.others: tuple[NackError, ...] = ()


class _Reply:
    """The answer to one request, once it has come."""

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id
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
    """One connection's requests, their answers, and the deliveries between them."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds of silence after which an expected answer is given up."""
        self.outgoing = bytearray()
        self.unflushed = 0
        #: By subscription: what was fetched and not taken, and when it had come.
        self._left: dict[int, tuple[float, list[Message]]] = {}
        self._timeout = timeout
        self._decoder = codec.Decoder()
        self._next_id = FIRST_REQUEST
        self._expected: dict[int, _Reply] = {}
        self._bursts: deque[_Burst] = deque()
        self._rejected: list[NackError] = []

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation for what a broker never sends."""
        for kind, correlation_id, payload in self._decoder.feed(data):
            try:
                self._take(kind, correlation_id, payload)
            except codec.PayloadError as error:
                raise ProtocolViolation(error.message) from error
        if self._decoder.error is not None:
            raise ProtocolViolation(self._decoder.error)

    def handshake(self, key: str) -> Steps[None]:
        """HELLO and AUTH in one go."""
        hello = self._ask(codec.encode_hello)
        auth = self._ask(lambda correlation_id: codec.encode_auth(correlation_id, key))
        yield from self._answer(hello)
        yield from self._answer(auth)

    def publish(self, topic: str | bytes, body: bytes, qos: int) -> int:
        """Put a PUBLISH into `outgoing` and return its correlation id."""
        self.outgoing += codec.encode_publish(self._next_id, qos, _encoded(topic), body)
        self.unflushed += 1
        return self._take_id()

    def flush(self) -> Steps[None]:
        """PING; then raise what was refused before the PONG."""
        covered = self.unflushed
        yield from self._answer(self._ask(codec.encode_ping))
        self.unflushed -= covered
        if self._rejected:
            first, *others = self._rejected
            self._rejected = []
            first.others = tuple(others)
            raise first

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
        """Put ACKs into `outgoing`."""
        for message in messages:
            if message.tag is not None:
                self.outgoing += codec.encode_ack(message.tag, message.subscription)

    def leave(self, subscription: int, messages: list[Message], came: float) -> None:
        """Keep what the program has not taken for the next `poll`, unless that comes too late."""
        if messages:
            before, others = self._left.get(subscription, (came, []))
            self._left[subscription] = min(before, came), others + messages

    def _take_left(self, subscription: int, limit: int) -> list[Message]:
        came, messages = self._left.pop(subscription, (0.0, []))
        if time.monotonic() - came > STALE:
            messages = [message for message in messages if not message.qos]  # the others come again
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

    def _ask(self, encode: Callable[[int], bytes]) -> _Reply:
        self.outgoing += encode(self._next_id)
        reply = _Reply(self._take_id())
        self._expected[reply.correlation_id] = reply
        return reply

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
        burst.messages.append(Message(topic.decode(), body, qos, burst.subscription, tag))

    def _take_nack(self, correlation_id: int, reject: codec.Reject) -> None:
        error = NackError(*reject, correlation_id)
        if correlation_id in self._expected:
            self._finish(correlation_id).reject = reject
        elif self._bursts and correlation_id in self._bursts[0].polls:
            self._bursts[0].reject = error
        else:
            self._rejected.append(error)


def _encoded(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic
