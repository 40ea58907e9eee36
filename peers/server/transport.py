"""The interface between a peerbus session and its WebSocket: a transport that sends, a receiver of what arrives.

Two transports implement it: :class:`peers.server.consumer.ChannelsTransport`, over Channels under any ASGI server, and
:class:`peers.server.daphne_transport.DaphneTransport`, over the socket of a connection that daphne serves.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from peers.codec.frames import Rejection

logger = logging.getLogger("peers")

#: The close of a connection whose session has raised an exception.
INTERNAL_ERROR: Final = Rejection(1011, "internal error")
#: Seconds that a client has to read the close frame and answer it, before the connection is dropped.
LINGER: Final = 60.0
#: Seconds that clients have to answer the close frame when the server stops.
GOODBYE: Final = 2.0


class SessionReceiver(Protocol):
    """The session's side of a connection; the transport calls it from the event loop, one call at a time.

    An exception out of any method closes this connection with 1011 and affects no other.
    """

    def failed(self, event: str) -> None:
        """Log and count the exception being handled, which this method of the receiver has raised.

        The transport then closes the connection.
        """

    def texts_received(self, texts: Sequence[bytes]) -> None:
        """Whole text messages, one at least, in their order: valid UTF-8, at most 1 MiB each. Those behind one at which
        the receiver closes the connection mean nothing. Never called after :meth:`Transport.close`."""

    def binary_received(self) -> None:
        """A binary message; it has no meaning in peerbus, so its content is not given."""

    def drained(self) -> None:
        """Nothing (or little) of what was sent is waiting for the socket any more.

        Called whenever `unsent` has come back to 0 that was not when :meth:`Transport.send` returned.
        """

    def connection_lost(self) -> None:
        """The end of the connection, whatever its cause. Called once, and nothing is called after it.

        It comes soon after a close from either side, but not inside :meth:`Transport.close`; a client that does not
        read may delay the end of the TCP connection, but not this.
        """


class Transport(Protocol):
    """The connection's side: what a session may do. The connection is open when the session is made."""

    @property
    def unsent(self) -> int:
        """Bytes given to :meth:`send` that the socket has not taken yet; 0 when all has left. May be an upper bound."""

    def send(self, texts: Sequence[bytes]) -> None:
        """Send each of `texts`, which are UTF-8, as one text message, in one write; nothing once it is closed."""

    def close(self, code: int, reason: str) -> None:
        """Send a close frame with exactly this code and reason, and end the connection. The first call counts."""

    def pause_reading(self) -> None:
        """Take nothing more from the socket; what has been read already may still arrive. Idempotent."""

    def resume_reading(self) -> None:
        """Read again. Idempotent."""


class SessionFactory(Protocol):
    """Makes the session of a connection; a class will do whose constructor takes these."""

    def __call__(self, transport: Transport, scope: Mapping[str, Any], /) -> SessionReceiver: ...


class ServedTransport(Transport):
    """A transport that isolates its receiver: an exception there ends its own connection only."""

    def __init__(self) -> None:
        self._receiver: SessionReceiver | None = None

    def open(self, make_receiver: Callable[[Transport], SessionReceiver]) -> None:
        """Begin: the connection is accepted."""
        try:
            self._receiver = make_receiver(self)
        except Exception:
            logger.exception("a session could not be made; its connection is closed")
            self.close(*INTERNAL_ERROR)

    def end(self) -> None:
        """The connection has ended: tell the receiver. Idempotent."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver.connection_lost()
            except Exception:
                logger.exception("a session failed in connection_lost")

    @abstractmethod
    async def closed(self) -> None:
        """Return when the close frame has left and, where the transport sees it, the client has answered."""

    def _tell(self, event: str, *arguments: Sequence[bytes]) -> None:
        """Call a method of the receiver, if there is still one."""
        if self._receiver is not None:
            try:
                getattr(self._receiver, event)(*arguments)
            except Exception:
                self._failed(event)

    def _failed(self, event: str) -> None:
        try:
            if self._receiver is not None:
                self._receiver.failed(event)
        except Exception:
            logger.exception("a session that had failed in %s failed again; its connection is closed", event)
        self.close(*INTERNAL_ERROR)
