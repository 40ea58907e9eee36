"""A link over a stream of bytes: the proof of the secret, then lines; bounded, and never waiting.

A transport gives it a `ByteCarrier`, calls `data_received` or `take` with bytes, and `lost` at the end.

    PROVING --proved, or there is no secret--> OPEN --closed by either side--> CLOSED
    PROVING --wrong, too late, closed--> CLOSED: the link was never opened
"""

from __future__ import annotations

import asyncio
import secrets
from enum import Enum, auto
from typing import Protocol

from hydra.transports.base import MAX_QUEUED, Accept, Handler, NothingSent, TransportError, TransportOptions
from hydra.transports.secret import NONCE_SIZE, Proof, SecretError


class ByteCarrier(Protocol):
    """The carrier of the bytes: an asyncio transport, or the like."""

    def write(self, data: bytes) -> None:
        """Send without waiting, or queue."""

    def get_write_buffer_size(self) -> int:
        """Bytes in the queue."""

    def close(self) -> None:
        """Send the queue, then close."""

    def abort(self) -> None:
        """Close at once."""


class StreamState(Enum):
    """The state of a link."""

    PROVING = auto()
    OPEN = auto()
    CLOSED = auto()


class StreamLink:
    """One link (see `TransportLink`). Call `start` when the channel is writable."""

    def __init__(
        self, channel: ByteCarrier, origin: str, options: TransportOptions, opened: Accept, *, dialled: bool
    ) -> None:
        self._channel = channel
        self.origin = origin
        self._options = options
        self._opened = opened
        self._dialled = dialled
        self._loop = asyncio.get_running_loop()
        self._handler: Handler | None = None
        self._proof: Proof | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = False
        self.state = StreamState.PROVING
        self.outcome: asyncio.Future[None] = self._loop.create_future()
        """Done when the link is open; a TransportError if it never will be."""
        if options.secret:
            self._proof = Proof(options.secret, dialled=dialled, nonce=secrets.token_bytes(NONCE_SIZE))

    def start(self) -> None:
        """Begin the proof, or without a secret open the link."""
        if self._proof is None:
            self._open()
            return
        timeout = self._options.proof_timeout
        late = f"it has not proved within {timeout:g} s that it knows the secret; it may have none"
        self._timer = self._loop.call_later(timeout, self.give_up, late)
        self._channel.write(self._proof.greeting)

    # For the node.

    def write(self, data: bytes) -> None:
        """Send lines. If more than `MAX_QUEUED` bytes would wait, the link is closed instead."""
        if self.state is not StreamState.OPEN:
            return
        if self._channel.get_write_buffer_size() + len(data) <= MAX_QUEUED:
            self._channel.write(data)
            return
        self.state = StreamState.CLOSED
        self._channel.abort()
        self._loop.call_soon(self._tell, "does not read")

    def close(self) -> None:
        """End the link; the handler is not called any more."""
        self._handler = None
        if self.state is not StreamState.OPEN:
            return
        self.state = StreamState.CLOSED
        if self._channel.get_write_buffer_size():
            self._channel.abort()  # a close would wait for the other side
        else:
            self._channel.close()

    # For the channel.

    def data_received(self, data: bytes) -> None:
        """Take bytes. An unforeseen error costs this link alone."""
        self._received = True
        try:
            self.take(data)
        except Exception as error:
            self._options.fault(f"link with {self.origin}", error)
            self.lost(f"a fault in what came over it: {type(error).__name__}")

    def take(self, data: bytes) -> None:
        """Take bytes; an unforeseen error is raised."""
        if self.state is StreamState.PROVING and self._proof is not None:
            data = self._prove(self._proof, data)
        if data and self.state is StreamState.OPEN and self._handler is not None:
            self._handler.received(data)

    def lost(self, reason: str) -> None:
        """The channel has ended."""
        if self.state is StreamState.PROVING and not self._received and not self._dialled:
            self._fail(NothingSent(reason))
        elif self.state is StreamState.PROVING:
            self.give_up(f"{reason} before it had proved that it knows the secret; it may know another")
        elif self.state is StreamState.OPEN:
            self.state = StreamState.CLOSED
            self._channel.abort()
            self._tell(reason)

    def give_up(self, reason: str) -> None:
        """Close a link that is not open yet."""
        if self.state is StreamState.PROVING:
            self._fail(TransportError(reason))

    def _fail(self, error: TransportError) -> None:
        self.state = StreamState.CLOSED
        self._stop_timer()
        if not self.outcome.done():  # it may have been cancelled
            self.outcome.set_exception(error)
            self.outcome.exception()  # retrieved, also if no task awaits it any more
        self._channel.abort()

    def _prove(self, proof: Proof, data: bytes) -> bytes:
        """Return the bytes after the proof."""
        try:
            answer = proof.feed(data)
        except SecretError as error:
            self.give_up(str(error))
            return b""
        if answer:
            self._channel.write(answer)
        if not proof.proved:
            return b""
        self._stop_timer()
        self._open()
        return proof.rest

    def _open(self) -> None:
        self.state = StreamState.OPEN
        handler: Handler | None = None
        try:
            handler = self._opened(self)
        finally:
            if not self.outcome.done():
                self.outcome.set_result(None)
            if handler is None:
                self.close()
        if self.state is StreamState.OPEN:  # it may have been closed at once
            self._handler = handler

    def _tell(self, reason: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed(reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
