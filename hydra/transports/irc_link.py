"""A link over private messages on IRC (docs/protocols/hydra.md, "Private messages").

    PROVING --proved, or without a secret--> OPEN --closed by either side, gone or silent--> closed

An IRC client, the link's `Carrier`, carries it: its own for a dialled link, the listener's for an accepted one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final, Protocol

from irc.client import NickMask  # type: ignore[import-untyped]

from hydra import clock
from hydra.irc.connection import IrcConnection
from hydra.irc.pieces import UNKNOWN, Piece, PiecePacker, PieceUnpacker
from hydra.transports.base import Accept, Handler, TransportOptions
from hydra.transports.secret import NONCE_SIZE, Proof, SecretError

logger = logging.getLogger("hydra.irc")


#: Bytes that may wait on one link for the server's pace; then the link is closed.
MAX_WAITING: Final = 64 * 1024


class Carrier(Protocol):
    """The IRC client that carries a link."""

    connection: IrcConnection

    @property
    def transport(self) -> TransportOptions:
        """The options of all links."""

    def queue(self, link: IrcLink) -> None:
        """A link has messages to send."""

    def remove(self, link: IrcLink, farewell: str | None) -> None:
        """A link has ended; the other side gets the farewell, if there is one."""


class IrcLink:
    """A link to one nick."""

    def __init__(self, carrier: Carrier, nick: str, origin: str, opened: Accept) -> None:
        self.nick = nick
        self.mask: NickMask | None = None
        """The other side's mask by the server's word, once a message has come from it."""
        self.peer: str | None = None
        """The other side's session, once known."""
        self.queued = False
        """Whether it waits for its turn to send."""
        self.open = True
        self.packer = PiecePacker(secrets.token_hex(4))
        self._unpacker = PieceUnpacker()
        self.carrier = carrier
        self.origin = origin
        self._opened = opened
        self._handler: Handler | None = None
        self._proof: Proof | None = None
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str | None] = self._loop.create_future()
        """Done when the link is open; a result other than None is the reason why it never will be."""
        self._heard = clock.now()
        self._idle_timer = self._loop.call_later(carrier.transport.idle, self._look)
        self._proof_timer: asyncio.TimerHandle | None = None

    @property
    def proving(self) -> bool:
        """Whether the other side has yet to prove that it knows the secret."""
        return self._proof is not None

    # To the other side.

    def take_turn(self) -> bool:
        """Wait for a turn to send; False if it waits already."""
        queued, self.queued = self.queued, True
        return not queued

    def end_turns(self) -> None:
        """Wait for no turn: there is nothing to send."""
        self.queued = False

    def begin(self, *, dialled: bool) -> None:
        """Open the link, after the proof of the secret if there is one."""
        transport = self.carrier.transport
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
        """See `TransportLink`."""
        if not self.open:
            return
        self.packer.put(data)
        if self.packer.waiting > MAX_WAITING:
            self._loop.call_soon(self.end, f"{self.nick} on IRC does not keep up")
        else:
            self.carrier.queue(self)

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
        """See `TransportLink`."""
        self._over("closed", tell=True)

    def end(self, reason: str, *, tell: bool = True) -> None:
        """End the link and call its handler; `tell`: send the other side the reason."""
        if self.open:
            self._over(reason, tell=tell)
            if self._handler is not None:
                self._handler.closed(reason)
            else:
                logger.info("%s: %s", self.origin, reason)

    def _over(self, reason: str, *, tell: bool) -> None:
        if not self.open:
            return
        self.open = False
        self._idle_timer.cancel()
        if self._proof_timer is not None:
            self._proof_timer.cancel()
        if not self.ready.done():
            self.ready.set_result(reason)
        self.carrier.remove(self, reason if tell else None)

    def _look(self) -> None:
        """End the link after the other side's silence."""
        idle = self.carrier.transport.idle
        if clock.now() >= self._heard + idle:
            self.end(f"{self.nick} on IRC is silent for {idle:g} s")
        else:
            self._idle_timer = clock.call_at(self._loop, self._heard + idle, self._look)
