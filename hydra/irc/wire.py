"""One TCP connection to an IRC server: the `irc` package's, adapted for a leader.

The package connects, registers and reads messages. This class differs from it:

- A line is handed on unchanged before it is parsed. Bytes that are not UTF-8, such as a character split by a server at
  the 512th byte, become U+FFFD; the package would end the connection.
- A line that the package cannot parse is no event, and no error.
- An endless line is bounded.
- Lines are sent unchanged; the package refuses those of more than 510 bytes, which some servers take.
- Only the owner sends and closes: no PONG, QUIT or flush is sent without it.
- Passwords are not written to the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from irc.client import Event  # type: ignore[import-untyped]
from irc.client_aio import AioConnection, AioReactor, IrcProtocol  # type: ignore[import-untyped]
from irc.connection import AioFactory  # type: ignore[import-untyped]

from hydra.irc.sasl import BEGIN
from hydra.irc.settings import IrcServer, IrcUser
from wire.net.connection import kernel_buffer_size

logger = logging.getLogger("hydra.irc")

#: Bytes of a line that has no end yet. The longest line that servers send has 8,191 bytes of tags and 512 others.
MAX_LINE: Final = 16_384

#: Before the package's own handlers.
_FIRST: Final = -1000


class LineReceiver(Protocol):
    """The receiver of a server's lines."""

    def line(self, line: str) -> None:
        """A line, unchanged, without its end."""

    def event(self, event: Event) -> None:
        """The package's event of the line. A line may be no event, or several."""

    def fault(self, unit: str, error: Exception) -> None:
        """A line was given up for an unforeseen reason."""

    def too_long(self) -> None:
        """A line does not end."""

    def ended(self, error: Exception | None) -> None:
        """The connection is over. Not called after `Wire.abort`."""

    def drain(self) -> None:
        """The kernel has taken all lines; `Wire.choked` was true before."""


class _Lines(AioConnection.buffer_class):  # type: ignore[misc]
    errors = "replace"


class _Transport(IrcProtocol):  # type: ignore[misc]
    """Reports the transport's events, also before the package's `connect` has returned."""

    connection: Wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.closed(exc)

    def pause_writing(self) -> None:
        self.connection.choked = True

    def resume_writing(self) -> None:
        self.connection.choked = False
        self.connection.owner.drain()


class Wire(AioConnection):  # type: ignore[misc]
    """A connection that hands its owner lines and events. For one use."""

    buffer_class = _Lines
    protocol_class = _Transport

    def __init__(self, owner: LineReceiver) -> None:
        reactor = AioReactor(loop=asyncio.get_running_loop())
        reactor.add_global_handler("all_events", self._collect, _FIRST)
        super().__init__(reactor)
        self.owner = owner
        self.choked = False
        """Whether the kernel has yet to take written bytes."""
        self.transport: asyncio.Transport | None = None
        #: The line before all others.
        self._first: str | None = None
        self._events: list[Event] = []
        self._aborted = False

    async def register(self, server: IrcServer, user: IrcUser) -> None:
        """Connect, and send PASS, NICK and USER. Raises OSError or ValueError."""
        password = server.password
        if " " in password or password.startswith(":"):
            password = f":{password}"
        self._first = BEGIN if user.account is not None else None
        factory = AioFactory(ssl=server.tls)
        await self.connect(server.host, server.port, user.nick, password, user.username, user.realname, factory)

    @property
    def own_nick(self) -> str:
        """This client's nick, by the server's word."""
        return str(self.real_nickname)

    def take_nick(self, nick: str) -> None:
        """Ask for another nick."""
        self.send_raw(f"NICK {nick}")

    # Called by the protocol and the package.

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """The transport is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        if self._first is not None:
            self.send_raw(self._first)

    def closed(self, error: Exception | None) -> None:
        """The transport is gone."""
        if not self._aborted:
            self._aborted = True
            self.owner.ended(error)

    def process_data(self, new_data: bytes) -> None:
        """Bytes have come."""
        self.buffer.feed(new_data)
        for line in self.buffer:
            if self._aborted:
                return
            if line:
                self._read(line)
        if len(self.buffer) > MAX_LINE and not self._aborted:
            self.owner.too_long()

    def _read(self, line: str) -> None:
        """Hand a line on. What raises costs this line alone, or one event of it."""
        self._alone(self.owner.line, line)
        try:
            self._process_line(line)
        except Exception as error:  # the package does not say what it raises
            logger.debug("a line from IRC that the parser cannot read: %r", error)
        events, self._events = self._events, []
        for event in events:
            if not self._aborted:
                self._alone(self.owner.event, event)

    def _alone(self, take: Callable[[Any], None], what: Any) -> None:
        try:
            take(what)
        except Exception as error:
            self.owner.fault(f"IRC line {str(what)[:200]!r}", error)

    def _collect(self, connection: AioConnection, event: Event) -> str:
        if event.type != "all_raw_messages":
            self._events.append(event)
        return "NO MORE"  # the package's own handlers would answer PING

    def send_raw(self, string: str) -> None:
        """Write a line as it is, with its end."""
        if self.transport is not None and not self._aborted:
            self.transport.write(string.encode(errors="replace") + b"\r\n")

    # The end.

    @property
    def unsent(self) -> int:
        """Bytes that the server has not acknowledged."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size() + kernel_buffer_size(transport)

    def abort(self, farewell: str | None = None) -> None:
        """Close at once: nothing more is sent or read.

        `farewell` is sent before if all earlier lines have arrived and it needs no waiting. Otherwise the kernel's
        bytes are discarded too, so that they do not arrive minutes later when a network heals.
        """
        if self._aborted:
            return
        transport = self.transport
        if transport is not None:
            if self.unsent:
                # The close resets the socket, so that the kernel discards its bytes.
                reset = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                transport.get_extra_info("socket").setsockopt(*reset)
            elif farewell is not None:
                self.send_raw(farewell)
            transport.abort()
        self._aborted = True
