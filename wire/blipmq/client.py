"""BlipMQ v1 clients: `Client` blocks, `AsyncClient` is for asyncio. Both are thin over `ClientCore`.

    with Client("127.0.0.1", 5555, "dev-key") as client:
        subscription = client.subscribe("demo")
        client.publish("demo", b"hi")
        client.flush()                                  # returns once "hi" is durable
        message = client.poll(subscription, timeout=1)
        client.ack(message)                             # else it comes again after 100 ms

A subscription id outlives the connection: keep it and poll it after a restart to get what was missed.
"""

import math
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from wire.blipmq import codec
from wire.transports import AsyncLink, ClientError, Link, ProtocolViolation, ReplyTimeout, Steps, over_tls

SEND_AT: Final = 64 * 1024
"""Bytes of a batch of publishes that are sent in one go."""
SHORTEST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.1
"""Seconds between two POLLs of an empty subscription: doubled from the first up to the second."""

# Delivery tags count from 1. Ids of requests count from here, so that an answer always shows which it is.
FIRST_REQUEST: Final = 1 << 63


class Message(NamedTuple):
    """A delivered message; give it to `ack` once it is processed."""

    topic: str
    body: bytes
    qos: int
    subscription: int
    tag: int | None
    """The delivery tag, the same again if the message is redelivered; None with QoS 0, which needs no ack."""


class NackError(ClientError):
    """The broker refused a frame with a NACK. The connection stays usable."""

    def __init__(self, code: int, message: str, correlation_id: int) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.correlation_id = correlation_id
        """What `publish` returned for the refused message, or the delivery tag for a refused `ack`."""
        self.others: tuple[NackError, ...] = ()
        """Further refusals that the same `flush` found."""


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


class ClientCore:
    """The client's side of the protocol without I/O: `wire.cores` describes how it is driven."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds of silence after which an expected answer is given up."""
        self.outgoing = bytearray()
        self.unflushed = 0
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
            raise ProtocolViolation(str(self._decoder.error))

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
        pause = SHORTEST_PAUSE
        while True:
            messages = yield from self._poll_once(subscription, limit)
            left = deadline - time.monotonic()
            if messages or left <= 0:
                return messages
            yield min(pause, left)
            pause = min(2 * pause, LONGEST_PAUSE)

    def ack(self, messages: tuple[Message, ...]) -> None:
        """Put ACKs into `outgoing`."""
        for message in messages:
            if message.tag is not None:
                self.outgoing += codec.encode_ack(message.tag, message.subscription)

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
            raise ProtocolViolation("a delivery that no POLL asked for")
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


class Client:
    """A blocking connection to a BlipMQ v1 broker, for one thread at a time.

    Use it in a `with` statement, or call `close`. Every method may raise ConnectionLost, ReplyTimeout or
    ProtocolViolation; the connection is closed then: make a new Client and publish again what no `flush`
    has confirmed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        *,
        timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Connect and authenticate.

        `timeout`: seconds to connect, and of silence while an answer is due. `tls`: speak TLS, with a context
        such as `ssl.create_default_context()` makes; `server_hostname` is whom the broker's certificate must
        name if that is not `host`. Raises OSError when the broker cannot be reached, TlsFailed when it is not
        trusted or does not trust us, NackError 401 for a wrong key, 426 for a broker of another version.
        """
        self._core = ClientCore(timeout)
        self._link = Link(over_tls(self._core, tls, host, server_hostname), host, port, timeout)
        try:
            self._link.run(self._core.handshake(key))
        except BaseException:
            self._link.abort()
            raise

    def publish(self, topic: str | bytes, body: bytes, qos: int = 1) -> int:
        """Send a message at once. Call `flush` to know that it is durable.

        Returns the correlation id by which a NackError raised by `flush` names this message. Raises
        ValueError for a topic over 65535 bytes, FrameTooLarge for more than 16 MiB in all.
        """
        correlation_id = self._core.publish(topic, body, qos)
        self._link.send()
        return correlation_id

    def publish_many(self, topic: str | bytes, bodies: Iterable[bytes], qos: int = 1) -> list[int]:
        """Send messages together, which costs less than one by one. Call `flush` to know that they are durable.

        Returns their correlation ids. Raises as `publish` does; those before the one that raises are sent.
        """
        ids: list[int] = []
        try:
            for body in bodies:
                ids.append(self._core.publish(topic, body, qos))
                if len(self._core.outgoing) >= SEND_AT:
                    self._link.send()
        finally:
            self._link.send()
        return ids

    def flush(self) -> None:
        """Return once everything published before with QoS 1 is durable.

        Raises NackError if the broker refused any of it, or an `ack`: its `correlation_id` and those of its
        `others` say which; all else is durable.
        """
        self._link.run(self._core.flush())

    def subscribe(self, topic: str | bytes, qos: int = 1) -> int:
        """Make a subscription and return its id; it gets what is published from now on.

        Keep the id to `poll` with, also after reconnecting: every call makes a subscription of its own, and
        one that nobody polls any more goes on collecting messages. Raises NackError, 401 without the right.
        """
        return self._link.run(self._core.subscribe(topic, qos))

    def poll(self, subscription: int, timeout: float | None = 0) -> Message | None:
        """Return the next message, or None when there has been none for `timeout` seconds (None: wait on).

        `ack` it when it is processed, within the queue's ack time (100 ms by default), or it comes again.
        An unknown subscription is the same as an empty one.
        """
        messages = self._link.run(self._core.poll(subscription, 1, timeout))
        return messages[0] if messages else None

    def poll_many(self, subscription: int, limit: int, timeout: float | None = 0) -> list[Message]:
        """Return up to `limit` messages in one round trip, as `poll` does one; `ack` them all in time."""
        return self._link.run(self._core.poll(subscription, limit, timeout))

    def messages(self, subscription: int, timeout: float | None = None) -> Iterator[Message]:
        """Iterate over messages until there has been none for `timeout` seconds; `ack` each of them."""
        while (message := self.poll(subscription, timeout)) is not None:
            yield message

    def ack(self, *messages: Message) -> None:
        """Tell the broker at once that these are processed; do not process them again should they come back.

        A message of QoS 0 needs none, and is left out. If it was settled already the next `flush` raises
        NackError 404, with its tag as correlation id.
        """
        self._core.ack(messages)
        self._link.send()

    def close(self) -> None:
        """Flush what was published, as `flush` does, and disconnect."""
        try:
            if self._core.unflushed:
                self.flush()
        finally:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._link.abort()


class AsyncClient:
    """The same for asyncio: `async with AsyncClient(host, port, key) as client`.

    Several tasks may use one connection; what they ask is carried out one after the other, so that a task
    that polls with a timeout keeps the others waiting: give it a connection of its own. A cancelled poll
    leaves its message to be redelivered.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        *,
        timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Nothing happens yet: `connect`, or enter the context. Arguments as for `Client`."""
        self._address = host, port
        self._key = key
        self._core = ClientCore(timeout)
        self._link = AsyncLink(over_tls(self._core, tls, host, server_hostname), timeout)

    async def connect(self) -> None:
        """Connect and authenticate; call `close` in the end. Raises as `Client()` does."""
        await self._link.connect(*self._address)
        try:
            await self._link.run(self._core.handshake(self._key))
        except BaseException:
            self._link.abort()
            raise

    async def publish(self, topic: str | bytes, body: bytes, qos: int = 1) -> int:
        """Send a message at once. Call `flush` to know that it is durable (see `Client.publish`)."""
        correlation_id = self._core.publish(topic, body, qos)
        await self._link.send()
        return correlation_id

    async def publish_many(self, topic: str | bytes, bodies: Iterable[bytes], qos: int = 1) -> list[int]:
        """Send messages together, which costs less than one by one (see `Client.publish_many`)."""
        ids: list[int] = []
        try:
            for body in bodies:
                ids.append(self._core.publish(topic, body, qos))
                if len(self._core.outgoing) >= SEND_AT:
                    await self._link.send()
        finally:
            await self._link.send()
        return ids

    async def flush(self) -> None:
        """Return once everything published before with QoS 1 is durable; NackError as `Client.flush`."""
        await self._link.run(self._core.flush())

    async def subscribe(self, topic: str | bytes, qos: int = 1) -> int:
        """Make a subscription and return its id: keep it, as said at `Client.subscribe`."""
        return await self._link.run(self._core.subscribe(topic, qos))

    async def poll(self, subscription: int, timeout: float | None = 0) -> Message | None:
        """Return the next message, to be acked in time, or None when the time is over (None: wait on)."""
        messages = await self._link.run(self._core.poll(subscription, 1, timeout))
        return messages[0] if messages else None

    async def poll_many(self, subscription: int, limit: int, timeout: float | None = 0) -> list[Message]:
        """Return up to `limit` messages in one round trip; `ack` them all in time."""
        return await self._link.run(self._core.poll(subscription, limit, timeout))

    async def messages(self, subscription: int, timeout: float | None = None) -> AsyncIterator[Message]:
        """Iterate over messages until there has been none for `timeout` seconds; `ack` each of them."""
        while (message := await self.poll(subscription, timeout)) is not None:
            yield message

    async def ack(self, *messages: Message) -> None:
        """Tell the broker at once that these are processed, as `Client.ack`."""
        self._core.ack(messages)
        await self._link.send()

    async def close(self) -> None:
        """Flush what was published, as `flush` does, and disconnect."""
        try:
            if self._core.unflushed:
                await self.flush()
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self._link.abort()
