"""Links over private messages on IRC (docs/protocols/hydra.md, "Transports").

A listener is an IRC client with the nick that other nodes dial; each dialled link has a client of its own, with a drawn
nick. `hydra.irc.pieces` packs lines into messages. A link begins with a session's first message; it ends with a message
that says so, when the server reports that the other side is gone, or by silence. The server vouches for a message's
sender: another client with the same nick is another neighbour.

    PROVING --proved, or without a secret--> OPEN --closed by either side, gone or silent--> closed

The leader's connection, which speaks to people, is another one (`hydra.irc.connection`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from dataclasses import replace
from random import Random
from typing import Final

from irc.client import Event, NickMask  # type: ignore[import-untyped]

from hydra import clock
from hydra.irc.casemapping import fold
from hydra.irc.connection import IrcConnection, IrcHandlers
from hydra.irc.events import event_text, is_refusal
from hydra.irc.nicks import drawn_nick
from hydra.irc.pieces import UNKNOWN, Piece, PieceKind, PiecePacker, PieceUnpacker, parse_piece, unescape
from hydra.irc.settings import IrcServer, IrcUser
from hydra.transports.address import IrcAddress
from hydra.transports.base import Accept, TransportError, TransportOptions
from hydra.transports.stream import StreamLink, StreamState
from queues.backoff import Backoff

logger = logging.getLogger("hydra.irc")

#: Bytes that may wait on one link for the server's pace; then the link is closed.
MAX_WAITING: Final = 64 * 1024
#: Links of one listener.
MAX_LINKS: Final = 256
#: No such nick; and the nick, or the server, does not take private messages from this client.
GONE: Final = frozenset({"401", "477", "531", "716"})
#: Waiting messages that tell other clients that there is no link; more are not sent.
MAX_FAREWELLS: Final = 16
#: Seconds before a listener connects again: at first, and at most.
RECONNECT: Final = Backoff(1.0, 60.0)


class IrcLink:
    """Carries a link to one nick (`hydra.transports.stream.ByteCarrier`), by an IRC client: its own if the link was
    dialled, the listener's if it was accepted."""

    def __init__(self, client: IrcClient, nick: str, origin: str, opened: Accept, *, dialled: bool) -> None:
        self.nick = nick
        self.mask: NickMask | None = None
        """The other side's mask by the server's word, once a message has come from it."""
        self.peer: str | None = None
        """The other side's session, once known."""
        self.open = True
        self.packer = PiecePacker(secrets.token_hex(4))
        self.client = client
        self._unpacker = PieceUnpacker()
        self._loop = asyncio.get_running_loop()
        self._heard = clock.now()
        self._idle_timer = self._loop.call_later(client.transport.idle, self._look)
        self.link = StreamLink(self, origin, client.transport, opened, dialled=dialled)
        self.link.outcome.add_done_callback(self._report)

    # To the other side.

    def write(self, data: bytes) -> None:
        """Send lines in turns with other links; more than `MAX_WAITING` bytes end the link."""
        self.packer.put(data)
        if self.packer.waiting > MAX_WAITING:
            self._loop.call_soon(self.end, f"{self.nick} on IRC does not keep up")
        else:
            self.client.queue(self)

    def get_write_buffer_size(self) -> int:
        """Nothing that would have to be dropped: what waits is bounded by `write`."""
        return 0

    # From the other side.

    def meet(self, mask: NickMask, session: str) -> None:
        """Know the other side."""
        self.mask, self.peer = mask, session
        self.packer.address(session)

    def is_for(self, mask: NickMask, piece: Piece) -> bool:
        """Whether a message belongs to this link; the first one makes the other side known."""
        if self.peer is None and piece.to == self.packer.session:
            self.meet(mask, piece.session)
        return piece.session == self.peer and piece.to in (self.packer.session, UNKNOWN)

    def take(self, piece: Piece) -> None:
        """Take a message."""
        self._heard = clock.now()
        if data := self._unpacker.take(piece):
            self.link.take(data)

    # The end.

    def close(self) -> None:
        """End at once; the other side is told why its proof was not accepted."""
        outcome = self.link.outcome
        error = outcome.exception() if outcome.done() and not outcome.cancelled() else None
        self._over("closed" if error is None else str(error))

    abort = close

    def end(self, reason: str, *, tell: bool = True) -> None:
        """End the link and call its handler; `tell`: send the other side the reason."""
        if self.open:
            self._over(reason if tell else None)
            self.link.give_up(reason)
            self.link.lost(reason)

    def _over(self, farewell: str | None) -> None:
        if self.open:
            self.open = False
            self._idle_timer.cancel()
            self.client.remove(self, farewell)

    def _report(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            logger.info("%s: %s", self.link.origin, error)

    def _look(self) -> None:
        """End the link after the other side's silence."""
        idle = self.client.transport.idle
        if clock.now() >= self._heard + idle:
            self.end(f"{self.nick} on IRC is silent for {idle:g} s")
        else:
            self._idle_timer = clock.call_at(self._loop, self._heard + idle, self._look)


class IrcClient:
    """A client on an IRC server, and the links that it carries."""

    def __init__(self, address: IrcAddress, user: IrcUser, options: TransportOptions) -> None:
        self.transport = options
        self.links: dict[str, IrcLink] = {}
        """By the other side's folded nick."""
        self._address = address
        self._turns: dict[IrcLink, None] = {}
        self._farewells: deque[str] = deque(maxlen=MAX_FAREWELLS)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection = IrcConnection(
            IrcServer(address.host, address.port),
            user,
            IrcHandlers(
                on_connected=self._connected,
                on_line=lambda line: None,
                on_lost=self._lost,
                on_event=self._event,
                more=self._more,
                on_fault=options.fault,
            ),
            replace(options.irc, connect=options.connect_timeout),
        )

    async def start(self) -> None:
        """Connect and join IRC. Raises TransportError."""
        self.connection.connect()
        try:
            await self._started
        except BaseException:
            self.connection.leave("stopped")
            raise

    def _connected(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _lost(self, reason: str) -> None:
        if not self._started.done():
            self._started.set_exception(TransportError(f"{self._address}: {reason}"))
            return
        self._turns.clear()
        self._farewells.clear()
        for link in list(self.links.values()):
            link.end(reason, tell=False)
        self.lost(reason)

    # To the server.

    def queue(self, link: IrcLink) -> None:
        """A link has messages to send."""
        self._turns.setdefault(link)
        self.connection.drain()

    def _more(self) -> str | None:
        """The next message; links send in turns."""
        while self._turns:
            link = next(iter(self._turns))
            del self._turns[link]
            if link.open and (text := link.packer.take()) is not None:
                self._turns[link] = None
                return f"PRIVMSG {link.nick} :{text}"
        return self._farewells.popleft() if self._farewells else None

    def farewell(self, nick: str, text: str) -> None:
        """Tell another client that it has no link here, if that is possible."""
        self._farewells.append(f"PRIVMSG {nick} :{text}")
        self.connection.drain()

    def add(self, link: IrcLink) -> None:
        """Begin a link."""
        self.links[fold(link.nick)] = link
        link.link.start()

    def remove(self, link: IrcLink, farewell: str | None) -> None:
        """End a link; the other side gets the farewell, if there is one."""
        if self.links.get(fold(link.nick)) is link:
            del self.links[fold(link.nick)]
        if farewell is not None:
            self.farewell(link.nick, link.packer.bye(farewell))
        self.emptied()

    # From the server.

    def _event(self, event: Event) -> None:
        match event.type:
            case "privmsg":
                piece = parse_piece(event.arguments[0])
                if piece is not None and event.source is not None:
                    self._piece(event.source, piece)
            case "quit" | "part" | "nick":
                link = self.links.get(fold(getattr(event.source, "nick", "")))
                if link is not None:
                    link.end(f"{link.nick} has left IRC", tell=False)
            case _ if is_refusal(event) and event.type.code in GONE:
                self._gone(event)

    def _gone(self, event: Event) -> None:
        for word in (event.target or "", *event.arguments):
            link = self.links.get(fold(word))
            if link is not None:
                link.end(f"no private messages to {link.nick} on IRC: {event_text(event)}", tell=False)

    def _piece(self, mask: NickMask, piece: Piece) -> None:
        link = self.links.get(fold(mask.nick))
        if link is not None and link.mask not in (None, mask):
            link.end(f"another client has the nick {link.nick} now", tell=False)
            link = None
        if piece.kind is PieceKind.BYE:
            if link is not None and (piece.to == link.packer.session or piece.session == link.peer):
                link.end(f"{link.nick} on IRC has ended the link: {_reason(piece)}", tell=False)
        elif link is not None and link.is_for(mask, piece):
            link.take(piece)
        else:
            self.unknown(mask, piece, link)

    def unknown(self, mask: NickMask, piece: Piece, link: IrcLink | None) -> None:
        """Handle a message of no known link; `link`: the sender has one with another session."""
        self.dismiss(mask, piece, "there is no such link")

    def dismiss(self, mask: NickMask, piece: Piece, reason: str) -> None:
        """Tell another client that its session has no link here."""
        if piece.session != UNKNOWN:
            self.farewell(mask.nick, str(Piece(UNKNOWN, piece.session, 0, PieceKind.BYE, reason)))

    # For subclasses.

    def lost(self, reason: str) -> None:
        """The connection is lost, and all links with it."""

    def emptied(self) -> None:
        """A link was removed."""


class _IrcDialler(IrcClient):
    """A client for one link."""

    def emptied(self) -> None:
        self.connection.leave("the link is closed")


class IrcListener(IrcClient):
    """A client that other nodes dial."""

    def __init__(self, address: IrcAddress, options: TransportOptions, accept: Accept) -> None:
        super().__init__(address, IrcUser(address.nick, other_nicks=False), options)
        self.address = str(address)
        self._accept: Accept | None = accept
        self._delays = RECONNECT.delays()
        self._timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """See `LinkListener`. The client leaves IRC with its last link."""
        self._accept = None
        if self._timer is not None:
            self._timer.cancel()
        for link in [link for link in self.links.values() if link.link.state is StreamState.PROVING]:
            link.end("the listener is closed")
        self.emptied()

    def emptied(self) -> None:
        if self._accept is None and not self.links:
            self.connection.leave("stopped")

    def unknown(self, mask: NickMask, piece: Piece, link: IrcLink | None) -> None:
        if piece.number or piece.to != UNKNOWN or piece.session == UNKNOWN:
            super().unknown(mask, piece, link)
            return
        if link is not None:
            link.end(f"{link.nick} on IRC begins anew", tell=False)
        if self._accept is None or len(self.links) >= MAX_LINKS:
            self.dismiss(mask, piece, "no more links are accepted")
            return
        link = IrcLink(self, mask.nick, mask.host or mask.nick, self._accept, dialled=False)
        link.meet(mask, piece.session)
        self.add(link)
        if link.open:
            link.take(piece)

    def _connected(self) -> None:
        self._delays = RECONNECT.delays()
        super()._connected()

    def _event(self, event: Event) -> None:
        super()._event(event)
        if event.type == "nick" and fold(self.connection.nick) != fold(self._address.nick):
            # Services rename clients that do not own their nick. No node finds a listener with another nick.
            reason = f"the server calls this client {self.connection.nick} now"
            self.connection.leave(reason)
            self._lost(reason)

    def lost(self, reason: str) -> None:
        if self._accept is None:
            return
        seconds = next(self._delays)
        logger.warning("%s: %s; connecting again in %.1f s", self._address, reason, seconds)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.connection.connect)


def _reason(piece: Piece) -> str:
    try:
        return unescape(piece.text).decode(errors="replace")
    except ValueError:
        return "unreadable"


async def listen_irc(address: IrcAddress, options: TransportOptions, accept: Accept) -> IrcListener:
    """Connect with the nick of the address, and accept links. Raises TransportError.

    After a lost connection, which ends all links, it reconnects by itself.
    """
    listener = IrcListener(address, options, accept)
    await listener.start()
    return listener


async def dial_irc(address: IrcAddress, options: TransportOptions, opened: Accept) -> None:
    """Open a link to the nick of the address. Raises TransportError.

    Without a secret, only a sent message shows whether a client has that nick and listens.
    """
    dialler = _IrcDialler(address, IrcUser(drawn_nick("hydra", Random())), options)
    await dialler.start()
    link = IrcLink(dialler, address.nick, str(address), opened, dialled=True)
    dialler.add(link)
    try:
        await link.link.outcome
    except TransportError as error:
        raise TransportError(f"{address}: {error}") from error
    except BaseException:
        link.end("closed")
        raise
