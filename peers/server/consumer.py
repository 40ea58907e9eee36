"""The Channels consumer of peerbus: gives each WebSocket a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from channels.consumer import AsyncConsumer

from peers.server.asgi import AsgiTransport, Receive, Receiver, Send, ServedTransport, Transport


class SessionFactory(Protocol):
    """Makes the session of a connection; a class will do whose constructor takes these."""

    def __call__(self, transport: Transport, scope: Mapping[str, Any], /) -> Receiver: ...


TRANSPORT = "fivewire.transport"
"""Key of the connect event under which a server with more than ASGI gives its transport (`peers.server.daphne`)."""


class PeerbusConsumer(AsyncConsumer):
    """Serves one connection. Channels' own dispatch, a task or two for each message, is too slow for a broker."""

    session_factory: ClassVar[SessionFactory]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve the connection until it has ended, or the server cancels this."""
        connect = await receive()
        transport: ServedTransport = connect.get(TRANSPORT) or AsgiTransport()
        make_session = type(self).session_factory  # from the class, so that it may be a plain function too
        await transport.serve(lambda served: make_session(served, scope), receive, send)
