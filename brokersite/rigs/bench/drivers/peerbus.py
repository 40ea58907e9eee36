"""peerbus: signed letters from one peer to another over bare WebSocket frames, with `peers` requests as barriers."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from brokersite.rigs.bench.columns import DIGITS, numbers
from brokersite.rigs.bench.drivers import RunDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint, Stream
from peers.codec import frames
from peers.codec.envelope import build
from peers.server.websocket_frames import LENGTH_16, MASKED, WHOLE_TEXT

_CLOSE, _PING, _PONG = 0x88, 0x89, 0x8A
_KEY: Final = b'"delivery_key":"'
_SIGNATURE: Final = b',"hmac":"'
_PEERS: Final = b'"type":"peers"'
_SECRET: Final = "benchmark-benchmark-benchmark-bench"
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
        signed = letter[: letter.rindex(_SIGNATURE)] + b"}"
        self._before, self._after = signed.split(b"0" * DIGITS, 1)
        self._run, self._index = driver.run, index
        self._bursts: list[int] = []
        self._answers = 0
        super().__init__(driver, sender)

    def publish(self, first: int, count: int) -> None:
        digits = numbers(self._run, self._index, first, count).hex().encode()
        frames_out = []
        for at in range(0, len(digits), DIGITS):
            signed = b"%b%b%b" % (self._before, digits[at : at + DIGITS], self._after)
            signature = hmac.digest(_SECRET.encode(), signed, "sha256").hex().encode()
            frames_out.append(websocket_frame(b'%b%b%b"}' % (signed[:-1], _SIGNATURE, signature)))
        self.send(b"".join(frames_out) + websocket_frame(frames.peers_request()))
        self._bursts.append(first + count)

    def confirmed(self, wait: float) -> int:
        if self.read_within(wait):
            self._answers += sum(_PEERS in text for text in self.texts())
        return self._bursts[self._answers - 1] if self._answers else 0


class PeerConsumer(Peer):
    """Each letter is acknowledged by its key, which ends in its number."""

    def __init__(self, driver: Peerbus, name: str) -> None:
        super().__init__(driver, name)
        self._key_size = len(driver.name) + 1 + DIGITS

    def receive(self, wait: float) -> bytes | bytearray:
        if not self.read_within(wait) and not self.rest:
            return b""
        keys = []
        for text in self.texts():
            if (at := text.find(_KEY)) >= 0:
                start = at + len(_KEY)
                keys.append(text[start : start + self._key_size].decode())
        if keys:
            self.send(b"".join([websocket_frame(frames.ack_frame(key)) for key in keys]))
        return bytes.fromhex("".join([key[-DIGITS:] for key in keys]))

    def settle(self) -> None:
        self.send(websocket_frame(frames.peers_request()))
        while not any(_PEERS in text for text in self.texts()):
            self.read()
