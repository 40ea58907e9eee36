# Generated from client_async.py by .ci/async_to_sync.py: change that, and run `make generate`.
"""The SSPQ client. `wire.sspq.client` has the blocking one and the one for asyncio, with the same methods.

    with Client("127.0.0.1", 8888) as client:
        client.send(b"hello")
        for message in client.messages():     # confirms each when its loop body has come to its end
            print(message.payload)

A connection has one slot: a message must be confirmed before the next is asked for. Closing the connection with a
message unconfirmed gives it back.
"""

import ssl
from collections.abc import Iterator
from typing import Final, Self

from wire.client.drivers import ClientDriver
from wire.client.protocol import over_tls
from wire.sspq import codec
from wire.sspq.client_async import AsyncClient
from wire.sspq.client_core import ClientCore, Declined, Message, NothingHeld, SlotBusy

__all__ = [
    "AsyncClient",
    "Client",
    "Declined",
    "Message",
    "NothingHeld",
    "SlotBusy",
]

DEFAULT_PORT: Final = 8888
DEFAULT_RETRIES: Final = 3


class Client:
    """A connection to an SSPQ queue. Use it in `with`, or call `close`.

    Every method may raise ConnectionLost, ReplyTimeout or ProtocolViolation; the connection is closed then, a message
    held is given back, and what was sent since the last answer to a receive may or may not have been taken.

    `timeout`: seconds to connect and to hand bytes to the broker. `max_payload`: bytes of the largest message that is
    accepted; a larger one raises ProtocolViolation. `tls`: speak TLS, with a context such as
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
        max_payload: int = codec.MAX_PAYLOAD,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Connect, or raise OSError (TlsFailed is one). The client is for one thread at a time."""
        self._core = ClientCore(max_payload)
        self._driver = ClientDriver(over_tls(self._core, tls, host, server_hostname), timeout)
        self._driver.connect(host, port)

    def send(self, payload: bytes, retries: int = DEFAULT_RETRIES) -> None:
        """Send a message that may be redelivered `retries` times; 255 is without limit.

        Nothing is answered. It is known to be durable when a `receive` called later on this connection has returned a
        message. Raises ValueError for retries outside 0..255.
        """
        self._core.send(payload, retries)
        self._driver.send()

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; process it and `confirm`, or close the connection to give it back.

        None when none has come within `timeout` seconds (None: wait without limit). The request stands then, and
        cannot be taken back: call `receive` again, or close. Raises Declined when the broker refuses, SlotBusy while a
        message is unconfirmed.
        """
        return self._driver.run(self._core.receive(False, timeout))

    def dead_receive(self, timeout: float | None = None) -> Message | None:
        """Return the next dead letter, as `receive` returns a message; an unconfirmed one is always put back."""
        return self._driver.run(self._core.receive(True, timeout))

    def confirm(self) -> None:
        """Remove the message held from the queue; then the next can be received. Raises NothingHeld."""
        self._core.confirm()
        self._driver.send()

    def messages(self, timeout: float | None = None, *, dead: bool = False) -> Iterator[Message]:
        """Iterate over messages, confirming each after its loop body, until none comes for `timeout` seconds.

        A body that leaves the loop (break, return, an exception) leaves its message unconfirmed: `confirm` it before,
        or close the connection to give it back.
        """
        while (message := self._driver.run(self._core.receive(dead, timeout))) is not None:
            yield message
            if self._core.held is message:
                self._core.confirm()  # goes out in one packet with the next receive

    def close(self) -> None:
        """Disconnect when the broker has taken everything sent; a message held goes back."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
