"""The client's side of peerbus without I/O: frames to send, messages received, confirmations.

A client connects and calls `connected`, sends everything in `outgoing` in its order, hands what arrives to `received`,
and calls `disconnected` when the connection has ended. Then, unless there is an `error`, it connects again:
unconfirmed envelopes are sent once more, which the broker recognizes by their ids.

Nothing answers an envelope. But the answer to a `peers` request leaves the broker only when everything sent before it
is stored: so the core asks now and then by itself, and drops the envelopes that the answer confirms.
"""

from collections import Counter, deque
from enum import Enum, auto
from typing import Any, Final

from peers.codec import frames, signing
from peers.codec.envelope import Envelope, build, encode
from peers.codec.frames import Deliver, Peers
from peers.dedupe import Dedupe
from peers.errors import Rejected, TakenOver, rejected
from wire.client.errors import ClientError, ProtocolViolation

#: After so many envelopes or bytes the broker is asked to confirm them.
CONFIRM_COUNT: Final = 256
CONFIRM_BYTES: Final = 1 << 20
#: With so many envelopes or bytes unconfirmed a client sends no more for now.
UNCONFIRMED_COUNT: Final = 4096
UNCONFIRMED_BYTES: Final = 16 << 20

#: The reason in `dropped` of an envelope that does not verify.
FORGED: Final = "signature does not verify"
#: Close codes of rejections that would come again.
PERMANENT: Final = frozenset((1003, 1007, 1008))


class Message:
    """A message for the host, to be acknowledged when it is consumed."""

    __slots__ = ("envelope", "key")

    def __init__(self, key: str, envelope: Envelope) -> None:
        #: The delivery key, by which it is acknowledged.
        self.key = key
        #: All of it, as it was signed.
        self.envelope = envelope

    @property
    def id(self) -> str:
        """The sender's id for it."""
        return self.envelope.id

    @property
    def sender(self) -> str:
        """The sender as it names itself; true if the signature is verified and all that have the secret are trusted."""
        return self.envelope.sender

    @property
    def is_broadcast(self) -> bool:
        """Whether it was sent to all connected peers."""
        return self.envelope.is_broadcast

    @property
    def body(self) -> Any:
        """The decoded body, decoded anew each time."""
        return self.envelope.body

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.sender!r}>"


class Answer:
    """The answer to a `peers` request, once it has come."""

    def __init__(self, upto: int) -> None:
        #: The answer confirms the first so many envelopes of this client.
        self.upto = upto
        #: The connected peers; None as long as there is no answer.
        self.names: list[str] | None = None

    @property
    def done(self) -> bool:
        """Whether it is answered."""
        return self.names is not None


class Phase(Enum):
    """The state of the client."""

    OFFLINE = auto()
    #: The register is on its way; `peers` means yes, a close means no.
    REGISTERING = auto()
    ESTABLISHED = auto()


class ClientCore:
    """A peer's conversation with its broker, over any number of connections."""

    def __init__(self, token: str, name: str, secret: str | bytes | None, dedupe_size: int) -> None:
        """Without a secret nothing is signed or verified. Raises WeakSecret, ValueError for a cache below 1."""
        self.name = name
        self.phase = Phase.OFFLINE
        #: Frames to be sent; the sender of one removes it.
        self.outgoing: deque[bytes] = deque()
        #: Messages for the host.
        self.inbox: deque[Message] = deque()
        #: Frames that were not handed over nor acknowledged, by reason.
        self.dropped: Counter[str] = Counter()
        #: The error after which this client must not connect again.
        self.error: ClientError | None = None
        self._token = token
        self._secret = None if secret is None else signing.key_of(secret)
        self._consumed = Dedupe(dedupe_size)
        self._unacked: dict[str, Message] = {}  # by id: in the inbox, or in the host's hands
        self._answers: deque[Answer] = deque()
        self._unconfirmed: deque[bytes] = deque()
        self._unconfirmed_bytes = 0
        self._confirmed = 0  # envelopes of this client that are stored, the unconfirmed ones come after them
        self._asked_upto = 0
        self._unasked_bytes = 0

    # The connection

    def connected(self) -> None:
        """There is a connection: send the frames of `outgoing`, and nothing else before `established`."""
        self.phase = Phase.REGISTERING
        self.outgoing.append(frames.register_frame(self._token, self.name))

    @property
    def established(self) -> bool:
        """Whether the broker has registered us on this connection."""
        return self.phase is Phase.ESTABLISHED

    def disconnected(self, code: int | None, reason: str) -> Rejected | None:
        """The connection has ended, with a close frame unless `code` is None.

        Return how the broker has rejected us, if it has. `error` is set when connecting again would not help.
        """
        registering, self.phase = self.phase is Phase.REGISTERING, Phase.OFFLINE
        self.outgoing.clear()
        if code is not None and reason == frames.TAKEN_OVER.reason:
            self.error = TakenOver(reason)
        if not registering or code is None:
            return None
        rejection = rejected(code, reason)
        if code in PERMANENT:
            self.error = rejection
        return rejection

    def received(self, text: bytes) -> None:
        """A text message has arrived. Raises ProtocolViolation if it cannot be the answer to our register."""
        frame = frames.parse_pushed(text)
        if self.phase is Phase.REGISTERING:
            if not isinstance(frame, Peers):
                raise ProtocolViolation("the register was answered with something else than peers")
            self.phase = Phase.ESTABLISHED
            self.outgoing.extend(self._unconfirmed)
            self.outgoing.extend(frames.peers_request() for _ in self._answers)
        elif isinstance(frame, Peers):
            self._answer(frame.names)
        elif isinstance(frame, Deliver):
            self._deliver(frame)
        else:
            self.dropped[frame.reason] += 1

    # Sending

    def write(self, to: str, body: Any, id: str | None, source: str) -> Envelope:
        """Make an envelope and sign it. Raises InvalidEnvelope, MessageTooLarge."""
        return build(sender=self.name, to=to, body=encode(body), secret=self._secret, source=source, id=id)

    def send(self, envelope: Envelope) -> None:
        """Send an envelope, on the next connection if there is none, and again until it is confirmed."""
        size = len(envelope.text)
        self._unconfirmed.append(envelope.text)
        self._unconfirmed_bytes += size
        self._unasked_bytes += size
        if self.established:
            self.outgoing.append(envelope.text)
        if self._sent - self._asked_upto >= CONFIRM_COUNT or self._unasked_bytes >= CONFIRM_BYTES:
            self.ask()

    def ask(self) -> Answer:
        """Ask for the connected peers, and so for a confirmation of everything sent."""
        answer = Answer(self._sent)
        self._answers.append(answer)
        self._asked_upto = self._sent
        self._unasked_bytes = 0
        if self.established:
            self.outgoing.append(frames.peers_request())
        return answer

    @property
    def unconfirmed(self) -> int:
        """Envelopes that were sent, or are to be, and are not confirmed."""
        return len(self._unconfirmed)

    @property
    def congested(self) -> bool:
        """Whether to send nothing more until something is confirmed."""
        return self.unconfirmed >= UNCONFIRMED_COUNT or self._unconfirmed_bytes >= UNCONFIRMED_BYTES

    @property
    def awaits_answer(self) -> bool:
        """Whether a request is not answered yet."""
        return bool(self._answers)

    @property
    def _sent(self) -> int:
        return self._confirmed + len(self._unconfirmed)

    def _answer(self, names: list[str]) -> None:
        if not self._answers:
            self.dropped["peers without a request"] += 1
            return
        answer = self._answers.popleft()
        while self._confirmed < answer.upto:
            self._unconfirmed_bytes -= len(self._unconfirmed.popleft())
            self._confirmed += 1
        answer.names = names

    # Receiving

    def _deliver(self, frame: Deliver) -> None:
        id = frame.envelope.id
        if self._secret is not None and not signing.verify(frame.envelope.text, self._secret):
            self.dropped[FORGED] += 1
        elif id in self._unacked:
            pass  # it came before the connection was lost, and is acknowledged when it is consumed
        elif self._consumed.seen(id):
            self.outgoing.append(frames.ack_frame(frame.key))
        else:
            message = Message(frame.key, frame.envelope)
            self._unacked[id] = message
            self.inbox.append(message)

    def ack(self, message: Message) -> None:
        """The host has consumed a message. Without a connection it is acknowledged when it comes again."""
        if self._unacked.get(message.id) is message:
            del self._unacked[message.id]
            self._consumed.add(message.id)
            if self.established:
                self.outgoing.append(frames.ack_frame(message.key))

    def release(self, message: Message) -> None:
        """The host has not consumed a message, and will not: it comes again after the next disconnect."""
        if self._unacked.get(message.id) is message:
            del self._unacked[message.id]
