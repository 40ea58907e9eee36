"""peerbus: signed letters from one peer to another over bare WebSocket frames, with `peers` requests as barriers."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from brokersite.rigs.bench.columns import DIGITS, Records, read_column, write_column
from brokersite.rigs.bench.drivers import RunDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint, Stream
from peers.codec import frames
from peers.codec.envelope import build
from peers.server.websocket_frames import LENGTH_16, MASKED, WHOLE_TEXT

_CLOSE, _PING, _PONG = 0x88, 0x89, 0x8A
_SIGNATURE: Final = b',"hmac":"'
_PEERS: Final = b'"type":"peers"'
_SECRET: Final = "benchmark-benchmark-benchmark-bench"
_KEY: Final = _SECRET.encode()
#: Bytes of the head of a frame from a server, of 126 bytes to 64 KiB.
_LONG_HEAD: Final = 4
_HANDSHAKE: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@dataclass(frozen=True)
class Peerbus(RunDriver):
    """Producer i sends to consumer i modulo their number; peers have names of the run's own."""

    endpoint: Endpoint
    path: str
    key: str
    name: str
    recipients: int = 1

    def producer(self, index: int) -> PeerProducer:
        return PeerProducer(self, index)

    def consumer(self, index: int) -> PeerConsumer:
        return PeerConsumer(self, self.recipient(index))

    def recipient(self, index: int) -> str:
        """The name of a consumer's peer."""
        return f"{self.name}-to-{index % self.recipients}"

    def sender(self, index: int) -> str:
        """The name of a producer's peer."""
        return f"{self.name}-from-{index}"


def websocket_frame(text: bytes) -> bytes:
    """A text message as a client sends it, masked with zeros."""
    size = len(text)
    if size < LENGTH_16:
        return bytes((WHOLE_TEXT, MASKED | size)) + bytes(4) + text
    if size < 1 << 16:
        return bytes((WHOLE_TEXT, MASKED | LENGTH_16)) + size.to_bytes(2) + bytes(4) + text
    return bytes((WHOLE_TEXT, MASKED | LENGTH_16 + 1)) + size.to_bytes(8) + bytes(4) + text


class Peer(Stream):
    """A registered peer."""

    def __init__(self, driver: Peerbus, name: str) -> None:
        super().__init__(driver.endpoint)
        self.send(_HANDSHAKE.format(path=driver.path, host=driver.endpoint).encode())
        while b"\r\n\r\n" not in self.rest:
            self.read()
        head = self.take(self.rest.index(b"\r\n\r\n") + 4)
        status = head.partition(b"\r\n")[0]
        if b" 101 " not in status:
            raise BenchError(f"{self.endpoint} does not serve peerbus: {status.decode(errors='replace')}")
        self.send(websocket_frame(frames.register_frame(driver.key, name)))
        while not (texts := self.texts(most=1)):
            self.read()
        if _PEERS not in texts[0]:
            raise BenchError(f"peerbus at {self.endpoint} says {texts[0][:200]!r} to a register.")

    def texts(self, most: int = 1 << 30) -> list[bytes]:
        """The whole text messages in what was read; pings are answered. Raises BenchError for a close."""
        rest, at = bytes(self.rest), 0
        found: list[bytes] = []
        end = len(rest)
        while end - at >= 2 and len(found) < most:
            kind, size = rest[at], rest[at + 1]
            start = at + 2
            if size >= LENGTH_16:
                width = 2 if size == LENGTH_16 else 8
                size = int.from_bytes(rest[start : start + width])
                start += width
            if start + size > end:
                break
            text = rest[start : start + size]
            at = start + size
            if kind == WHOLE_TEXT:
                found.append(text)
            elif kind == _PING:
                self.send(bytes((_PONG, MASKED | size)) + bytes(4) + text)
            elif kind == _CLOSE:
                code, reason = int.from_bytes(text[:2]), text[2:].decode(errors="replace")
                raise BenchError(f"peerbus at {self.endpoint} closes with {code}: {reason}")
        del self.rest[:at]
        return found


class PeerProducer(Peer):
    """The answer to a `peers` request confirms the letters before it."""

    def __init__(self, driver: Peerbus, index: int) -> None:
        sender, to = driver.sender(index), driver.recipient(index)
        body = b'"' + b"x" * max(0, driver.size - 2) + b'"'
        first = f"{driver.name}-{'0' * DIGITS}"
        letter = build(sender=sender, to=to, body=body, secret=_SECRET, source="bench", id=first).text
        frame = websocket_frame(letter)
        signed = letter[: letter.rindex(_SIGNATURE)] + b"}"
        before, self._after = signed.split(b"0" * DIGITS)
        self._signed = hmac.new(_KEY, before, "sha256")  # as far as all letters are alike
        self._number = len(frame) - len(letter) + len(before)
        self._records = Records(frame, self._number, driver.run, index, digits=True)
        self._signature = frame.rindex(_SIGNATURE) + len(_SIGNATURE)
        self._request = websocket_frame(frames.peers_request())
        self._bursts: list[int] = []
        self._answers = 0
        super().__init__(driver, sender)

    def publish(self, first: int, count: int) -> None:
        letters = self._records.take(first, count)
        size = self._records.stride
        digits = read_column(letters, self._number, size, count, DIGITS)
        signatures = [self._sign(digits[at : at + DIGITS]) for at in range(0, DIGITS * count, DIGITS)]
        write_column(letters, self._signature, size, "".join(signatures).encode(), len(signatures[0]))
        self.send(letters + self._request)
        self._bursts.append(first + count)

    def _sign(self, digits: bytearray) -> str:
        signature = self._signed.copy()
        signature.update(digits + self._after)
        return signature.hexdigest()

    def confirmed(self, wait: float) -> int:
        if self.read_within(wait):
            self._answers += sum(_PEERS in text for text in self.texts())
        return self._bursts[self._answers - 1] if self._answers else 0


class PeerConsumer(Peer):
    """Each letter is acknowledged by its key, which ends in its number. Frames of one length are read as columns."""

    def __init__(self, driver: Peerbus, name: str) -> None:
        super().__init__(driver, name)
        key = f"{driver.name}-{'0' * DIGITS}"
        self._ack = websocket_frame(frames.ack_frame(key))
        self._head = frames.deliver_frame(key, b"").partition(b"0" * DIGITS)[0]
        self._acks = bytearray()

    def receive(self, wait: float) -> bytes | bytearray:
        self.read_within(wait)
        digits = bytearray()
        while some := self._take_alike() or self._take_one():
            digits += some
        if digits:
            count = len(digits) // DIGITS
            if len(self._acks) != count * len(self._ack):
                self._acks = bytearray(self._ack * count)
            write_column(self._acks, self._ack.index(b"0" * DIGITS), len(self._ack), digits, DIGITS)
            self.send(self._acks)
        return bytes.fromhex(digits.decode())

    def _take_alike(self) -> bytes | bytearray:
        """The digits of the letters that the bytes read begin with, as long as their frames are of one length."""
        rest, start = self.rest, _LONG_HEAD + len(self._head)
        if len(rest) < start or rest[1] != LENGTH_16 or not rest.startswith(self._head, _LONG_HEAD):
            return b""
        size = _LONG_HEAD + int.from_bytes(rest[2:_LONG_HEAD])
        count = len(rest) // size
        if not count or read_column(rest, 0, size, count, _LONG_HEAD) != rest[:_LONG_HEAD] * count:
            return b""
        digits = read_column(rest, start, size, count, DIGITS)
        del rest[: count * size]
        return digits

    def _take_one(self) -> bytes:
        """The digits of the next letter."""
        while texts := self.texts(most=1):
            if texts[0].startswith(self._head):
                return texts[0][len(self._head) : len(self._head) + DIGITS]
        return b""

    def settle(self) -> None:
        self.send(websocket_frame(frames.peers_request()))
        while not any(_PEERS in text for text in self.texts()):
            self.read()
