"""The client's side of SSPQ without I/O; docs/protocols/sspq.md. `wire.client.protocol` says how it is driven."""

import math
import time
from enum import Enum, auto
from typing import NamedTuple

from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, TlsFailed
from wire.client.protocol import Steps
from wire.sspq import codec


class Message(NamedTuple):
    """A delivered message: confirm it once it is processed."""

    payload: bytes
    #: Redeliveries that remain; 255 for no limit, 0 for the last one and for a dead letter.
    retries: int


class Declined(ClientError):
    """NO_RECEIVE: the broker will not deliver now (paused, stopping, no dead letters). Ask again later."""


class SlotBusy(ClientError):
    """The slot is taken: confirm the message held, or go on with the kind of receive that waits."""


class NothingHeld(ClientError):
    """There is no message to confirm: receive one first."""


class _SlotState(Enum):
    IDLE = auto()
    WAITING = auto()
    HOLDING = auto()
    DECLINED = auto()


class ClientCore:
    """A connection's slot: a RECEIVE that waits, or the message that was delivered and is not confirmed.

    A RECEIVE that waits is sent again on the next connection. A message held goes back with its connection.
    """

    def __init__(self, max_payload: int) -> None:
        self.outgoing = bytearray()
        #: The message that was returned by `receive` and not confirmed yet.
        self.held: Message | None = None
        self._max_payload = max_payload
        self._decoder = codec.Decoder(max_payload)
        #: Sent since the last answer, which shows that all before it is stored.
        self._unanswered = 0
        #: Why as many as that may be lost.
        self._unsure: ConnectionLost | None = None
        self._returned = False  # the message held went back
        self._slot = _SlotState.IDLE
        self._dead = False
        self._arrived: Message | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation for what a broker never sends."""
        for kind, retries, payload in self._decoder.feed(data):
            if kind not in (codec.SEND, codec.NO_RECEIVE) or self._slot is not _SlotState.WAITING:
                raise ProtocolViolation(f"unexpected packet type 0x{kind:02x}")
            self._unanswered = 0
            if kind == codec.SEND:
                self._slot, self._arrived = _SlotState.HOLDING, Message(payload, retries)
            else:
                self._slot = _SlotState.DECLINED
        if self._decoder.error is not None:
            raise ProtocolViolation(self._decoder.error)

    def handshake(self) -> Steps[int]:
        """Nothing but the RECEIVE that waits; nothing is sent twice."""
        if self._slot is _SlotState.WAITING:
            self.outgoing += self._request_packet
        yield from ()
        return 0

    def lost(self, error: ClientError, final: bool) -> None:
        """The connection has ended: the broker has taken back what it delivered."""
        if final:
            return
        self.outgoing.clear()
        self._decoder = codec.Decoder(self._max_payload)
        if self._unanswered:
            unsure = f"{error}; {self._unanswered} messages sent may not be stored"
            self._unsure = error if isinstance(error, TlsFailed) else ConnectionLost(unsure)
            self._unanswered = 0
        if self.held is not None:
            self.held, self._slot, self._returned = None, _SlotState.IDLE, True
        elif self._arrived is not None:
            self._arrived, self._slot = None, _SlotState.WAITING

    def check(self) -> None:
        """Raise, once, that messages sent may be lost."""
        unsure, self._unsure = self._unsure, None
        if unsure is not None:
            raise unsure

    def send(self, payload: bytes, retries: int) -> None:
        """Put a SEND into `outgoing`."""
        self.outgoing += codec.encode_send(payload, retries)
        self._unanswered += 1

    def receive(self, dead: bool, timeout: float | None) -> Steps[Message | None]:
        """RECEIVE unless one waits already, and its answer; None when the time is over.

        Its answer shows that what was sent before is stored: raises ConnectionLost where it would not.
        """
        self.check()
        self._request(dead)
        return self._answer(timeout)

    def _answer(self, timeout: float | None) -> Steps[Message | None]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self._slot is _SlotState.WAITING:
            left = deadline - time.monotonic()
            if not (yield None if timeout is None else left) and left <= 0:
                return None
        if self._slot is _SlotState.DECLINED:
            self._slot = _SlotState.IDLE
            raise Declined("no dead letters here" if self._dead else "no message will come")
        self.held, self._arrived = self._arrived, None
        return self.held

    def confirm(self) -> None:
        """Put a CONFIRM into `outgoing`."""
        if self._returned:
            self._returned = False
            raise ConnectionLost("the message held went back with its connection: it comes again")
        if self.held is None:
            raise NothingHeld("there is no message to confirm")
        self.held = None
        self._slot = _SlotState.IDLE
        self.outgoing += codec.CONFIRM_PACKET

    def _request(self, dead: bool) -> None:
        if self.held is not None:
            raise SlotBusy("confirm the message that is held first")
        if self._slot is not _SlotState.IDLE and dead is not self._dead:
            raise SlotBusy("a receive of the other kind has been sent and cannot be taken back")
        if self._slot is _SlotState.IDLE:
            self._slot, self._dead, self._returned = _SlotState.WAITING, dead, False
            self.outgoing += self._request_packet

    @property
    def _request_packet(self) -> bytes:
        return codec.DEAD_RECEIVE_PACKET if self._dead else codec.RECEIVE_PACKET
