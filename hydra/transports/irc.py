"""Links over private messages on IRC (docs/protocols/hydra.md, "Transports").

A listener is a client with the nick that others dial; each dialled link is a client of its own, with a nick drawn for
it. What lines look like in messages is in `hydra/irc/pieces.py`. A link begins with the first message of somebody's
session; it ends with a message that says so, when the server says that the other side is gone, and when that is silent
for too long. The server vouches for who has sent a message: another client with the same nick is another neighbour.

None of this is the leader's connection, which speaks to people.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from hydra import clock
from hydra.irc.channels import fold
from hydra.irc.connection import IrcConnection, is_refusal, words
from hydra.irc.nicks import drawn_nick
from hydra.irc.pieces import NOBODY, Kind, Packer, Piece, Unpacker, parse_piece, unescape
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser
from hydra.transports.address import IrcAddress
from hydra.transports.base import Accept, Handler, TransportError, TransportOptions
from hydra.transports.secret import NONCE_SIZE, Proof, SecretError

if TYPE_CHECKING:
    from irc.client import Event, NickMask  # type: ignore[import-untyped]

logger = logging.getLogger("hydra.irc")

GONE: Final = frozenset({"401", "477", "531", "716"})
"""No such nick; and the nick, or the server, does not take private messages from this client."""

MAX_FAREWELLS: Final = 16
"""Messages that wait to tell somebody that there is no link; more are not sent."""

RECONNECT: Final = (1.0, 60.0)
"""Seconds before a listener connects again: at first, and at most."""


@dataclass(frozen=True, slots=True)
class IrcOptions:
    """What is the same for all links over IRC."""

    nick: str = "hydra"
    """What the nicks of dialling clients begin with."""
    password: str = ""
    tls: SSLContext | None = None
    times: IrcTimes = field(default_factory=IrcTimes)
    max_waiting: int = 64 * 1024
    """Bytes that may wait on one link to be sent at the pace that the server bears; then the link is closed."""
    max_links: int = 256
    """How many links a listener has at most."""


class IrcLink:
    """A link to one nick."""

    def __init__(self, post: _Post, nick: str, origin: str, opened: Accept) -> None:
        self.nick = nick
        self.mask: NickMask | None = None
        """The other side as the server knows it, once something has come from it."""
        self.peer: str | None = None
        """The other side's session, likewise."""
        self.queued = False
        """Whether it waits for its turn to send."""
        self.open = True
        self.packer = Packer(secrets.token_hex(4))
        self._unpacker = Unpacker()
        self.post = post
        self._origin = origin
        self._opened = opened
        self._handler: Handler | None = None
        self._proof: Proof | None = None
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str | None] = self._loop.create_future()
        """Done when the link may be used, or with the reason when it never will be."""
        self._heard = clock.now()
        self._idle_timer = self._loop.call_later(post.transport.idle, self._look)
        self._proof_timer: asyncio.TimerHandle | None = None

    @property
    def origin(self) -> str:
        """See `base.Link`: the other side's host as the server shows it, or the address that was dialled."""
        return self._origin

    @property
    def proving(self) -> bool:
        """Whether the other side has yet to prove that it knows the secret."""
        return self._proof is not None

    # What goes.

    def begin(self, *, dialled: bool) -> None:
        """Hand it to who is to have it, once the secret is proved, if there is one."""
        transport = self.post.transport
        if not transport.secret:
            self._introduce()
            return
        self._proof = Proof(transport.secret, dialled=dialled, nonce=secrets.token_bytes(NONCE_SIZE))
        self._proof_timer = self._loop.call_later(
            transport.proof_timeout,
            self.end,
            f"{self.nick} on IRC has not proved for {transport.proof_timeout:g} s that it knows the secret",
        )
        self.write(self._proof.greeting)

    def write(self, data: bytes) -> None:
        """See `base.Link`."""
        if not self.open:
            return
        self.packer.put(data)
        if self.packer.waiting > self.post.options.max_waiting:
            self._loop.call_soon(self.end, f"{self.nick} on IRC does not keep up")
        else:
            self.post.queue(self)

    # What comes.

    def meet(self, mask: NickMask, session: str) -> None:
        """The other side is known now."""
        self.mask, self.peer, self.packer.to = mask, session, session

    def is_for(self, mask: NickMask, piece: Piece) -> bool:
        """Whether a message belongs to this link. The first one makes the other side known."""
        if self.peer is None and piece.to == self.packer.session:
            self.meet(mask, piece.session)
        return piece.session == self.peer and piece.to in (self.packer.session, NOBODY)

    def take(self, piece: Piece) -> None:
        """A message has come."""
        self._heard = clock.now()
        data = self._unpacker.take(piece)
        if data and self._proof is not None:
            data = self._prove(self._proof, data)
        if data and self._handler is not None:
            self._handler.received(data)

    def _prove(self, proof: Proof, data: bytes) -> bytes:
        try:
            answer = proof.feed(data)
        except SecretError as error:
            self.end(f"{self.nick} on IRC has not proved that it knows the secret: {error}")
            return b""
        self.write(answer)
        if not proof.proved:
            return b""
        self._proof = None
        if self._proof_timer is not None:
            self._proof_timer.cancel()
        self._introduce()
        return proof.rest

    def _introduce(self) -> None:
        self._handler = self._opened(self)
        if not self.ready.done():
            self.ready.set_result(None)
        if self._handler is None:
            self.close()

    # The end.

    def close(self) -> None:
        """See `base.Link`."""
        self._over("closed", tell=True)

    def end(self, reason: str, *, tell: bool = True) -> None:
        """It is over, and not by `close`; `tell` the other side."""
        if self.open:
            self._over(reason, tell=tell)
            if self._handler is not None:
                self._handler.closed(reason)
            else:
                logger.info("%s: %s", self._origin, reason)

    def _over(self, reason: str, *, tell: bool) -> None:
        if not self.open:
            return
        self.open = False
        self._idle_timer.cancel()
        if self._proof_timer is not None:
            self._proof_timer.cancel()
        if not self.ready.done():
            self.ready.set_result(reason)
        self.post.remove(self, reason if tell else None)

    def _look(self) -> None:
        """See whether the other side was silent for too long."""
        idle = self.post.transport.idle
        if clock.now() >= self._heard + idle:
            self.end(f"{self.nick} on IRC is silent for {idle:g} s")
        else:
            self._idle_timer = clock.call_at(self._loop, self._heard + idle, self._look)


class _Post:
    """A client on an IRC server, and the links that it carries."""

    def __init__(self, address: IrcAddress, user: IrcUser, options: TransportOptions, irc: IrcOptions) -> None:
        self.options = irc
        self.transport = options
        self.links: dict[str, IrcLink] = {}
        """By the other side's nick, folded."""
        self._address = address
        self._turns: deque[IrcLink] = deque()
        self._farewells: deque[str] = deque(maxlen=MAX_FAREWELLS)
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection = IrcConnection(
            IrcServer(address.host, address.port, irc.tls, irc.password),
            user,
            replace(irc.times, connect=options.connect_timeout),
            on_connected=self._connected,
            on_line=lambda line: None,
            on_lost=self._lost,
            on_event=self._event,
            more=self._more,
        )

    async def start(self) -> None:
        """Be on IRC. Raises TransportError."""
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

    # What goes.

    def queue(self, link: IrcLink) -> None:
        """A link has something to say."""
        if not link.queued:
            link.queued = True
            self._turns.append(link)
        self.connection.wake()

    def _more(self) -> str | None:
        """Let the links speak in turns."""
        while self._turns:
            link = self._turns.popleft()
            text = link.packer.take() if link.open else None
            if text is not None:
                self._turns.append(link)
                return f"PRIVMSG {link.nick} :{text}"
            link.queued = False
        return self._farewells.popleft() if self._farewells else None

    def farewell(self, nick: str, text: str) -> None:
        """Tell somebody that there is no link, if that is possible."""
        self._farewells.append(f"PRIVMSG {nick} :{text}")
        self.connection.wake()

    def add(self, link: IrcLink, *, dialled: bool) -> None:
        """A link begins."""
        self.links[fold(link.nick)] = link
        link.begin(dialled=dialled)

    def remove(self, link: IrcLink, farewell: str | None) -> None:
        """A link is over."""
        if self.links.get(fold(link.nick)) is link:
            del self.links[fold(link.nick)]
        if farewell is not None:
            self.farewell(link.nick, link.packer.bye(farewell))
        self.emptied()

    # What comes.

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
                link.end(f"no private messages to {link.nick} on IRC: {words(event)}", tell=False)

    def _piece(self, mask: NickMask, piece: Piece) -> None:
        link = self.links.get(fold(mask.nick))
        if link is not None and link.mask not in (None, mask):
            link.end(f"another client has the nick {link.nick} now", tell=False)
            link = None
        if piece.kind is Kind.BYE:
            if link is not None and (piece.to == link.packer.session or piece.session == link.peer):
                link.end(f"{link.nick} on IRC has ended the link: {_reason(piece)}", tell=False)
        elif link is not None and link.is_for(mask, piece):
            link.take(piece)
        else:
            self.unknown(mask, piece, link)

    def unknown(self, mask: NickMask, piece: Piece, link: IrcLink | None) -> None:
        """Somebody says something of which no link is known; or another session of a neighbour does."""
        self.dismiss(mask, piece, "there is no such link")

    def dismiss(self, mask: NickMask, piece: Piece, reason: str) -> None:
        """Tell somebody that its session has no link here."""
        if piece.session != NOBODY:
            self.farewell(mask.nick, str(Piece(NOBODY, piece.session, 0, Kind.BYE, reason)))

    # What is different between those who dial and those who listen.

    def lost(self, reason: str) -> None:
        """The connection is lost, and all links with it."""

    def emptied(self) -> None:
        """A link was removed."""


class _Dialler(_Post):
    """A client for one link."""

    def emptied(self) -> None:
        self.connection.leave("the link is closed")


class IrcListener(_Post):
    """A client that others dial."""

    def __init__(
        self, address: IrcAddress, user: IrcUser, options: TransportOptions, irc: IrcOptions, accept: Accept
    ) -> None:
        super().__init__(address, user, options, irc)
        self._accept: Accept | None = accept
        self._rng = Random()
        self._wait = RECONNECT[0]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """See `base.Listener`."""
        return str(self._address)

    async def close(self) -> None:
        """See `base.Listener`. The client leaves IRC with its last link."""
        self._accept = None
        if self._timer is not None:
            self._timer.cancel()
        for link in [link for link in self.links.values() if link.proving]:
            link.end("the listener is closed")
        self.emptied()

    def emptied(self) -> None:
        if self._accept is None and not self.links:
            self.connection.leave("stopped")

    def unknown(self, mask: NickMask, piece: Piece, link: IrcLink | None) -> None:
        if piece.number or piece.to != NOBODY or piece.session == NOBODY:
            super().unknown(mask, piece, link)
            return
        if link is not None:
            link.end(f"{link.nick} on IRC begins anew", tell=False)
        if self._accept is None or len(self.links) >= self.options.max_links:
            self.dismiss(mask, piece, "no more links are accepted")
            return
        link = IrcLink(self, mask.nick, mask.host or mask.nick, self._accept)
        link.meet(mask, piece.session)
        self.add(link, dialled=False)
        if link.open:
            link.take(piece)

    def _connected(self) -> None:
        self._wait = RECONNECT[0]
        super()._connected()

    def _event(self, event: Event) -> None:
        super()._event(event)
        if event.type == "nick" and fold(self.connection.nick) != fold(self._address.nick):
            # Services rename who does not own a nick. Nobody finds a listener that is called something else.
            reason = f"the server calls this client {self.connection.nick} now"
            self.connection.leave(reason)
            self._lost(reason)

    def lost(self, reason: str) -> None:
        if self._accept is None:
            return
        seconds = self._wait * self._rng.uniform(0.5, 1.5)
        self._wait = min(self._wait * 2, RECONNECT[1])
        logger.warning("%s: %s; connecting again in %.1f s", self._address, reason, seconds)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.connection.connect)


def _reason(piece: Piece) -> str:
    try:
        return unescape(piece.text).decode(errors="replace")
    except ValueError:
        return "no reason that can be read"


async def listen_irc(
    address: IrcAddress, options: TransportOptions, accept: Accept, irc: IrcOptions | None = None
) -> IrcListener:
    """Be on IRC with the nick of the address, and accept links. Raises TransportError.

    When the connection is lost later, all links are over, and it connects again by itself.
    """
    user = IrcUser(address.nick, other_nicks=False)
    listener = IrcListener(address, user, options, irc or IrcOptions(times=options.irc), accept)
    await listener.start()
    return listener


async def dial_irc(
    address: IrcAddress, options: TransportOptions, opened: Accept, irc: IrcOptions | None = None
) -> None:
    """Open a link to the nick of the address. Raises TransportError.

    Without a secret, whether somebody has that nick, and listens, shows only when something is sent.
    """
    irc = irc or IrcOptions(times=options.irc)
    dialler = _Dialler(address, IrcUser(drawn_nick(irc.nick, Random())), options, irc)
    await dialler.start()
    link = IrcLink(dialler, address.nick, str(address), opened)
    dialler.add(link, dialled=True)
    try:
        reason = await link.ready
    except BaseException:
        link.close()
        raise
    if reason is not None:
        raise TransportError(f"{address}: {reason}")
