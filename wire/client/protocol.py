"""The interface of every client's protocol core, and TLS around any of them. No I/O.

A core puts bytes to be sent into `outgoing` and takes what arrives through `receive_data`. Its operations are
generators: one yields how many seconds it can wait for something to arrive (None: without limit), after everything
in `outgoing` has been sent, and is resumed with True when something has arrived, False when the time is over. Its
return value is the operation's result. `wire.client.drivers` carries operations out.
"""

import contextlib
import ssl
from collections.abc import Generator
from typing import Final, Protocol, TypeVar

from wire.client.errors import ConnectionLost, ReplyTimeout, TlsFailed

T = TypeVar("T")
Steps = Generator[float | None, bool, T]

#: Bytes that are read from a socket at once.
READ_SIZE: Final = 256 * 1024


class ClientProtocol(Protocol):
    """A protocol's client side without I/O."""

    @property
    def outgoing(self) -> bytearray:
        """Bytes to be sent; the driver that sends them removes them."""

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation if they cannot be, ConnectionLost if they end it."""


class TlsCore:
    """A core inside TLS. Carry out `handshake` first; `finish` says that nothing more will be sent."""

    def __init__(self, core: ClientProtocol, context: ssl.SSLContext, server_hostname: str) -> None:
        self._core = core
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=server_hostname)
        self._established = False
        self._accepted = False  # the broker has gone on after the handshake; in TLS 1.3 it may still refuse us then
        self._finished = False
        self._outgoing = bytearray()

    @property
    def outgoing(self) -> bytearray:
        """Bytes to be sent, with everything in them that the inner core has."""
        if self._established and not self._finished:
            plain = self._core.outgoing
            with contextlib.suppress(ssl.SSLWantReadError):  # the broker renegotiates: the rest leaves afterwards
                while plain:
                    del plain[: self._tls.write(plain)]
        self._outgoing += self._leaving.read()
        return self._outgoing

    def handshake(self, timeout: float) -> Steps[None]:
        """Agree on TLS. `outgoing` may hold the last part of it afterwards, which must be sent too."""
        self.receive_data(b"")
        while not self._established:
            if not (yield timeout):
                raise ReplyTimeout(f"no answer in the TLS handshake for {timeout} s")

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived. Besides what the inner core raises: TlsFailed, ConnectionLost at the end."""
        self._arrived.write(data)
        try:
            if self._established:
                self._read()
                self._accepted = True
            else:
                self._tls.do_handshake()
                self._established = True
                self._accepted = self._tls.version() != "TLSv1.3"
                self._read()
        except ssl.SSLWantReadError:
            pass  # the handshake goes on
        except ssl.SSLError as error:
            self._finished = True
            raise TlsFailed(_explanation(error)) from error

    def _read(self) -> None:
        try:
            while plain := self._tls.read(READ_SIZE):
                self._core.receive_data(plain)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLZeroReturnError:
            pass
        raise ConnectionLost("the broker closed the connection")

    def ended(self, why: str) -> ConnectionLost:
        """Return the error for an end of stream without TLS's own end: a refusal is not always put in words."""
        if self._accepted:
            return ConnectionLost(why)
        when = "after" if self._established else "within"
        return TlsFailed(f"{why} {when} the TLS handshake: does it speak TLS there, and accept our certificate?")

    def finish(self) -> None:
        """Put TLS's own end of stream behind all else in `outgoing`; the broker answers it with its own."""
        self._outgoing = self.outgoing
        self._finished = True
        with contextlib.suppress(ssl.SSLError):  # it waits for the broker's end, or has failed before
            self._tls.unwrap()


def over_tls(
    core: ClientProtocol, context: ssl.SSLContext | None, host: str, server_hostname: str | None
) -> ClientProtocol:
    """Return a core that speaks TLS if a context is given, else the same one.

    The certificate must be good for `server_hostname`, or for `host` without one, if the context checks it. Raises
    ValueError for a name without a context.
    """
    if context is not None:
        return TlsCore(core, context, host if server_hostname is None else server_hostname)
    if server_hostname is not None:
        raise ValueError("server_hostname means something only together with tls")
    return core


def _explanation(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message.rstrip('.')}"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason:
        return f"the broker refuses this TLS connection: {reason.partition('alert ')[2]}"
    return f"no TLS with the broker: {reason}"
