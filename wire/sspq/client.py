"""SSPQ clients: `Client` blocks, `AsyncClient` is for asyncio. Both are thin over `ClientCore`.

    with Client("127.0.0.1", 8888) as client:
        client.send(b"hello")
        for message in client.messages():     # confirms each when its loop body has come to its end
            print(message.payload)

A connection has one slot: a message must be confirmed before the next is asked for. Closing the connection
with a message unconfirmed gives it back.
"""

import math
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from enum import Enum, auto
from types import TracebackType
from typing import Final, NamedTuple, Self

from wire.sspq import codec
from wire.transports import AsyncLink, ClientError, Link, ProtocolViolation, Steps, over_tls

DEFAULT_PORT: Final = 8888
DEFAULT_RETRIES: Final = 3


class Message(NamedTuple):
    """A delivered message: confirm it once it is processed."""

    payload: bytes
    retries: int
    """Redeliveries that remain; 255 for no limit, 0 for the last one and for a dead letter."""


class Declined(ClientError):
    """NO_RECEIVE: the broker will not deliver now (paused, stopping, no dead letters). Ask again later."""


class SlotBusy(ClientError):
    """The slot is taken: confirm the message held, or go on with the kind of receive that waits."""


class NothingHeld(ClientError):
    """There is no message to confirm: receive one first."""


class _Slot(Enum):
    IDLE = auto()
    WAITING = auto()
    HOLDING = auto()
    DECLINED = auto()


class ClientCore:
    """The client's side of the protocol without I/O: `wire.cores` describes how it is driven."""

    def __init__(self, max_payload: int) -> None:
        self.outgoing = bytearray()
        self.held: Message | None = None
        """The message that was returned by `receive` and not confirmed yet."""
        self._decoder = codec.Decoder(max_payload)
        self._slot = _Slot.IDLE
        self._dead = False
        self._arrived: Message | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation for what a broker never sends."""
        for kind, retries, payload in self._decoder.feed(data):
            if kind not in (codec.SEND, codec.NO_RECEIVE) or self._slot is not _Slot.WAITING:
                raise ProtocolViolation(f"packet type 0x{kind:02x} that nothing asked for")
            if kind == codec.SEND:
                self._slot, self._arrived = _Slot.HOLDING, Message(payload, retries)
            else:
                self._slot = _Slot.DECLINED
        if self._decoder.error is not None:
            raise ProtocolViolation(str(self._decoder.error))

    def send(self, payload: bytes, retries: int) -> None:
        """Put a SEND into `outgoing`."""
        self.outgoing += codec.encode_send(payload, retries)

    def receive(self, dead: bool, timeout: float | None) -> Steps[Message | None]:
        """RECEIVE unless one waits already, and its answer; None when the time is over."""
        self._request(dead)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self._slot is _Slot.WAITING:
            left = deadline - time.monotonic()
            if not (yield None if timeout is None else left) and left <= 0:
                return None
        if self._slot is _Slot.DECLINED:
            self._slot = _Slot.IDLE
            raise Declined("no dead letters here" if dead else "no message will come")
        self.held, self._arrived = self._arrived, None
        return self.held

    def confirm(self) -> None:
        """Put a CONFIRM into `outgoing`."""
        if self.held is None:
            raise NothingHeld("there is no message to confirm")
        self.held = None
        self._slot = _Slot.IDLE
        self.outgoing += codec.CONFIRM_PACKET

    def _request(self, dead: bool) -> None:
        if self.held is not None:
            raise SlotBusy("confirm the message that is held first")
        if self._slot is not _Slot.IDLE and dead is not self._dead:
            raise SlotBusy("a receive of the other kind has been sent and cannot be taken back")
        if self._slot is _Slot.IDLE:
            self._slot, self._dead = _Slot.WAITING, dead
            self.outgoing += codec.DEAD_RECEIVE_PACKET if dead else codec.RECEIVE_PACKET


class Client:
    """A blocking connection to an SSPQ queue, for one thread at a time.

    Use it in a `with` statement, or call `close`. Every method may raise ConnectionLost, ReplyTimeout or
    ProtocolViolation; the connection is closed then, a message held is given back, and what was sent since
    the last answer to a receive may or may not have been taken.
    """

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        timeout: float = 30.0,
        max_payload: int = codec.MAX_PAYLOAD,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Connect, or raise OSError; TlsFailed, which is one too, when the broker is not trusted.

        `timeout`: seconds to connect and to hand bytes to the broker. `max_payload`: bytes of the largest
        message that is accepted; a larger one raises ProtocolViolation. `tls`: speak TLS, with a context such
        as `ssl.create_default_context()` makes; `server_hostname` is whom the broker's certificate must name
        if that is not `host`. A broker that does not trust our certificate may say so as late as at the first
        `receive` or `close`, which raise TlsFailed then: what was sent before is refused too.
        """
        self._core = ClientCore(max_payload)
        self._link = Link(over_tls(self._core, tls, host, server_hostname), host, port, timeout)

    def send(self, payload: bytes, retries: int = DEFAULT_RETRIES) -> None:
        """Send a message that may be redelivered `retries` times; 255 is without limit.

        Nothing is answered. It is known to be durable when a `receive` called later on this connection has
        returned a message. Raises ValueError for retries outside 0..255.
        """
        self._core.send(payload, retries)
        self._link.send()

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; process it and `confirm`, or close the connection to give it back.

        None when none has come within `timeout` seconds (None: wait without limit). The request stands then,
        and cannot be taken back: call `receive` again, or close. Raises Declined when the broker refuses,
        SlotBusy while a message is unconfirmed.
        """
        return self._link.run(self._core.receive(False, timeout))

    def dead_receive(self, timeout: float | None = None) -> Message | None:
        """The same for the dead letters; an unconfirmed one is always put back."""
        return self._link.run(self._core.receive(True, timeout))

    def confirm(self) -> None:
        """Remove the message held from the queue; then the next can be received. Raises NothingHeld."""
        self._core.confirm()
        self._link.send()

    def messages(self, timeout: float | None = None, *, dead: bool = False) -> Iterator[Message]:
        """Iterate over messages, confirming each after its loop body, until none comes for `timeout` seconds.

        A body that leaves the loop (break, return, an exception) leaves its message unconfirmed: `confirm`
        it before, or close the connection to give it back.
        """
        while (message := self._link.run(self._core.receive(dead, timeout))) is not None:
            yield message
            if self._core.held is message:
                self._core.confirm()  # goes out in one packet with the next receive

    def close(self) -> None:
        """Disconnect when the broker has taken everything sent; a message held goes back."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio: `async with AsyncClient(host, port) as client`.

    `send` may be called by any task at any time, also while another waits in `receive`.
    """

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        timeout: float = 30.0,
        max_payload: int = codec.MAX_PAYLOAD,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Nothing happens yet: `connect`, or enter the context. Arguments as for `Client`."""
        self._address = host, port
        self._core = ClientCore(max_payload)
        self._link = AsyncLink(over_tls(self._core, tls, host, server_hostname), timeout)

    async def connect(self) -> None:
        """Connect, or raise OSError; call `close` in the end."""
        await self._link.connect(*self._address)

    async def send(self, payload: bytes, retries: int = DEFAULT_RETRIES) -> None:
        """Send a message that may be redelivered `retries` times; nothing is answered (see `Client.send`)."""
        self._core.send(payload, retries)
        await self._link.send()

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, to be confirmed, or None when the time is over (see `Client.receive`)."""
        return await self._link.run(self._core.receive(False, timeout))

    async def dead_receive(self, timeout: float | None = None) -> Message | None:
        """The same for the dead letters; an unconfirmed one is always put back."""
        return await self._link.run(self._core.receive(True, timeout))

    async def confirm(self) -> None:
        """Remove the message held from the queue; then the next can be received. Raises NothingHeld."""
        self._core.confirm()
        await self._link.send()

    async def messages(self, timeout: float | None = None, *, dead: bool = False) -> AsyncIterator[Message]:
        """Iterate over messages, confirming each after its loop body, as `Client.messages` does."""
        while (message := await self._link.run(self._core.receive(dead, timeout))) is not None:
            yield message
            if self._core.held is message:
                self._core.confirm()  # goes out in one packet with the next receive

    async def close(self) -> None:
        """Disconnect when the broker has taken everything sent; a message held goes back."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
