"""The SSPQ client. `wire.sspq.client` has the blocking one and the one for asyncio, with the same methods.

    async with AsyncClient("127.0.0.1", 8888) as client:
        await client.send(b"hello")
        async for message in client.messages():     # confirms each when its loop body has come to its end
            print(message.payload)

A connection has one slot: a message must be confirmed before the next is asked for. Closing the connection with a
message unconfirmed gives it back. A lost connection is made again; `wire.client.reconnecting` says what a program is
told about it.
"""

import ssl
from collections.abc import AsyncIterator
from typing import Final, Self

from wire.client.links import AsyncLink
from wire.client.reconnecting import OnEvent, Reconnect
from wire.sspq import codec

# sync: from wire.sspq.client_async import AsyncClient
from wire.sspq.client_core import ClientCore, Declined, Message, NothingHeld, SlotBusy

__all__ = [
    # sync: "AsyncClient",
    "AsyncClient",
    "Declined",
    "Message",
    "NothingHeld",
    "SlotBusy",
]

DEFAULT_PORT: Final = 8888
DEFAULT_RETRIES: Final = 3


class AsyncClient:
    """A client of an SSPQ queue. Use it in `async with`, or call `close`.

    A lost connection is made again, after 0.1 to 5 seconds with jitter: the next call waits for it, and receiving goes
    on. What was lost is raised once as ConnectionLost, and then the client goes on: by the next call that messages sent
    since the last answer to a receive may or may not have been taken (nothing is sent twice), by `confirm` that the
    message held has gone back and comes again.

    `timeout`: seconds to connect and to hand bytes to the broker. `reconnect`: a `queues.backoff.Backoff` for other
    waits; with False a lost connection is final, and every method raises ConnectionLost, ReplyTimeout or
    ProtocolViolation. `on_event` is called with each `wire.client.reconnecting.Event`. `max_payload`: bytes of the
    largest message that is accepted; a larger one raises ProtocolViolation. `tls`: speak TLS, with a context such as
    `ssl.create_default_context()` makes; `server_hostname` is the name that the broker's certificate must have if it
    is not `host`. A broker that does not trust our certificate may say so as late as at the first `receive` or
    `close`, which raise TlsFailed then: what was sent before is refused too.
    """

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        timeout: float = 30.0,
        reconnect: Reconnect = True,
        on_event: OnEvent | None = None,
        max_payload: int = codec.MAX_PAYLOAD,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        # sync: """Connect, or raise OSError (TlsFailed is one). The client is for one thread at a time.
        # sync:
        # sync: It connects again in a call.
        # sync: """
        """Make a client that is not connected yet: call `connect`, or enter the context.

        Any task may call `send` at any time, also while another waits in `receive`. It connects again in the
        background.
        """  # async only
        self._core = ClientCore(max_payload)
        self._link = AsyncLink(
            self._core, host, port,
            timeout=timeout, tls=tls, server_hostname=server_hostname, reconnect=reconnect, on_event=on_event,
        )  # fmt: skip
        # sync: self._link.connect()

    async def connect(self) -> None:  # async only
        """Connect, once, or raise OSError (TlsFailed is one); call `close` in the end."""
        await self._link.connect()

    async def send(self, payload: bytes, retries: int = DEFAULT_RETRIES) -> None:
        """Send a message that may be redelivered `retries` times; 255 is without limit.

        Nothing is answered. It is known to be durable when a `receive` called later on this connection has returned a
        message. Raises ValueError for retries outside 0..255; ConnectionLost if messages may have been lost: if the
        connection was lost before, this one is not sent.
        """
        await self._link.ready()
        self._core.check()
        await self._link.send(lambda: self._core.send(payload, retries))
        self._core.check()

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; process it and `confirm`, or close the connection to give it back.

        None when none has come within `timeout` seconds (None: wait without limit). The request stands then, and
        cannot be taken back: call `receive` again, or close. Raises Declined when the broker refuses, SlotBusy while a
        message is unconfirmed.
        """
        return await self._link.run_for(timeout, lambda left: self._core.receive(False, left))

    async def dead_receive(self, timeout: float | None = None) -> Message | None:
        """Return the next dead letter, as `receive` returns a message; an unconfirmed one is always put back."""
        return await self._link.run_for(timeout, lambda left: self._core.receive(True, left))

    async def confirm(self) -> None:
        """Remove the message held from the queue; then the next can be received.

        Raises NothingHeld, or ConnectionLost if the message has gone back with its connection: it comes again.
        """
        await self._link.send(self._core.confirm)

    async def messages(self, timeout: float | None = None, *, dead: bool = False) -> AsyncIterator[Message]:
        """Iterate over messages, confirming each after its loop body, until none comes for `timeout` seconds.

        A body that leaves the loop (break, return, an exception) leaves its message unconfirmed: `confirm` it before,
        or close the connection to give it back.
        """
        receive = self.dead_receive if dead else self.receive
        while (message := await receive(timeout)) is not None:
            yield message
            if self._core.held is message:
                self._core.confirm()  # goes out in one packet with the next receive

    async def close(self) -> None:
        """Disconnect when the broker has taken everything sent; a message held goes back.

        Raises ConnectionLost if messages sent may have been lost.
        """
        await self._link.close()
        self._core.check()

    async def __aenter__(self) -> Self:
        await self.connect()  # async only
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
        else:
            await self._link.close()
