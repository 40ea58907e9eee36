"""Limits of HTTP clients in daphne's process, checked where the bytes arrive.

daphne and Twisted read a body of any size before the application sees it, parse forms that no part of the site asks
for, and know no limit of connections. So daphne's factory is replaced by a subclass with a channel and a request of
its own. A connection that becomes a WebSocket leaves these limits: peerbus has its own.
"""

from __future__ import annotations

# First of all: it chooses the reactor.
import daphne.server  # type: ignore[import-untyped]  # isort: skip

from typing import Any, Final

from daphne.http_protocol import HTTPFactory, WebRequest  # type: ignore[import-untyped]
from django.conf import settings
from prometheus_client import Counter
from twisted.protocols.policies import ProtocolWrapper
from twisted.web import http

from wire.net.limits import ConnectionLimits

#: Seconds in which a client that was refused can read the answer.
LINGER: Final = 2.0
#: Bodies of the largest size that may be under way at the same time.
BODIES_AT_ONCE: Final = 16
REFUSALS: Final = {408: b"Request Timeout", 413: b"Content Too Large", 503: b"Service Unavailable"}

refused = Counter("fivewire_http_refused", "HTTP connections and requests that a limit has ended.", ["reason"])


class LimitedRequest(WebRequest):  # type: ignore[misc]
    """A request whose body is counted as it comes, and whose form is left to Django."""

    channel: LimitedChannel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._held = 0
        self._refused = False
        super().__init__(*args, **kwargs)
        self._parsePOSTFormSubmission = False  # Twisted's own parser takes twelve bytes for each of the body

    def gotLength(self, length: int | None) -> None:
        """The headers have come. One that says too much is refused before its body is read."""
        too_large = length is not None and length > settings.BROKER_HTTP_MAX_BODY
        super().gotLength(0 if too_large else length)
        if too_large:
            self._refuse(413, "body_too_large")

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body has come."""
        factory = self.channel.factory
        if self._refused:
            return
        if self._held + len(data) > settings.BROKER_HTTP_MAX_BODY:
            self._refuse(413, "body_too_large")
        elif factory.held + len(data) > BODIES_AT_ONCE * settings.BROKER_HTTP_MAX_BODY:
            self._refuse(503, "bodies_at_once")
        else:
            self._held += len(data)
            factory.held += len(data)
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """All has come."""
        if not self._refused:
            super().requestReceived(command, path, version)

    def process(self) -> Any:
        """Have the application answer."""
        channel = self.channel
        channel.arrived()
        result = super().process()
        if self.transport is None:  # it has become a WebSocket
            channel.leave()
            self._let_go()
        return result

    def finish(self) -> None:
        """The answer is complete."""
        self._let_go()
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        """The connection has ended before the answer was complete."""
        self._let_go()
        super().connectionLost(reason)

    def _refuse(self, status: int, reason: str) -> None:
        self._refused = True
        self._let_go()
        self.requestHeaders.removeHeader(b"Expect")  # or Twisted would ask for the body
        self.channel.refuse(status, reason)

    def _let_go(self) -> None:
        if self._held:
            self.channel.factory.held -= self._held
            self._held = 0


class LimitedChannel(http.HTTPChannel):
    """A connection that is counted, and on which a request has a total time to arrive."""

    factory: LimitedFactory
    transport: Any
    requestFactory = LimitedRequest

    def __init__(self, factory: LimitedFactory, host: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.factory = factory
        self._host: str | None = host
        self._deadline: Any = None
        self._abort: Any = None

    def dataReceived(self, data: bytes) -> None:
        """Bytes have come."""
        if self._deadline is None and not self._handlingRequest:
            self._begin_request()
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:
        """A request is answered; the next may have begun to come."""
        if self._dataBuffer:
            self._begin_request()
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any = None) -> None:
        """The connection has ended."""
        self.arrived()
        self.leave()
        if self._abort is not None and self._abort.active():
            self._abort.cancel()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def arrived(self) -> None:
        """The whole request is here."""
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None

    def leave(self) -> None:
        """The connection counts no more."""
        host, self._host = self._host, None
        if host is not None:
            self.factory.limits.release(host)

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error and end the connection; what still comes is thrown away meanwhile."""
        refused.labels(reason).inc()
        self.arrived()
        phrase = REFUSALS[status]
        self.transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b\n" % (status, phrase, len(phrase) + 1, phrase)
        )
        self.dataReceived = lambda data: None  # type: ignore[method-assign]
        self._networkProducer.unregisterProducer()
        if isinstance(self.transport, ProtocolWrapper):  # TLS
            self.transport.loseConnection()  # type: ignore[no-untyped-call]
        else:
            self.transport.loseWriteConnection()
        self._abort = self.factory.reactor.callLater(LINGER, self.transport.abortConnection)

    def _begin_request(self) -> None:
        self._deadline = self.factory.reactor.callLater(settings.BROKER_HTTP_REQUEST_TIMEOUT, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        self.refuse(408, "request_timeout")


class LimitedFactory(HTTPFactory):  # type: ignore[misc]
    """Makes the channels of one server. HTTP/1.1 only."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.limits = ConnectionLimits(
            settings.BROKER_HTTP_MAX_CONNECTIONS, settings.BROKER_HTTP_MAX_CONNECTIONS_PER_ADDRESS
        )
        #: Bytes of bodies under way.
        self.held = 0
        if server.http_timeout is None:
            server.http_timeout = settings.BROKER_HTTP_ANSWER_TIMEOUT

    def buildProtocol(self, addr: Any) -> LimitedChannel | None:
        """A channel; None, which closes the connection, when there are too many."""
        host = getattr(addr, "host", "")
        if (refusal := self.limits.acquire(host)) is not None:
            refused.labels(refusal.value).inc()
            return None
        channel = LimitedChannel(self, host)
        channel.timeOut = self.timeOut
        return channel

    def acceptableProtocols(self) -> list[bytes]:
        """For TLS."""
        return [b"http/1.1"]


def install() -> None:
    """Have daphne use all this. To be called before its server runs."""
    daphne.server.HTTPFactory = LimitedFactory
