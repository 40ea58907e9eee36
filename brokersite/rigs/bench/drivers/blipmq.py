"""BlipMQ, QoS 1: bursts of PUBLISHes with a PING behind; bursts of ACKs and POLLs with a PING behind."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Final

from brokersite.rigs.bench.columns import Records, read_column, write_column
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint, Stream
from wire.blipmq.codec import (
    ACK,
    AUTH,
    HEADER,
    HEADER_SIZE,
    HELLO,
    NACK,
    PING,
    POLL,
    PONG,
    PUBLISH,
    SUBSCRIBE,
    UNKNOWN_DELIVERY,
)

#: POLLs in a burst, at least.
_FEWEST: Final = 4
#: Seconds to the next burst after one that brought nothing.
_PAUSE: Final = 0.0002
_PONG_SIZE: Final = HEADER_SIZE


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return HEADER.pack(9 + len(payload), kind, correlation) + payload


@dataclass(frozen=True)
class BlipMQ:
    """A topic and its subscriptions; consumer i polls subscription i modulo their number."""

    endpoint: Endpoint
    key: str
    topic: str
    run: int
    size: int
    prefetch: int
    subscriptions: tuple[int, ...] = ()
    confirms: bool = True
    ordered: bool = True

    def producer(self, index: int) -> BlipProducer:
        return BlipProducer(self, index)

    def consumer(self, index: int) -> BlipConsumer:
        return BlipConsumer(self, self.subscriptions[index % len(self.subscriptions)])

    @property
    def message(self) -> bytes:
        """A PUBLISH, which is also what a delivery looks like but for the correlation id."""
        topic = self.topic.encode()
        return frame(PUBLISH, 1, struct.pack(">BH", 1, len(topic)) + topic + bytes(8) + b"x" * (self.size - 8))


class BlipConnection(Stream):
    """A connection past HELLO and AUTH."""

    def __init__(self, driver: BlipMQ) -> None:
        super().__init__(driver.endpoint)
        key = driver.key.encode()
        self.call(HELLO, b"\0\1")
        self.call(AUTH, struct.pack(">H", len(key)) + key)

    def fileno(self) -> int:
        return self.socket.fileno()

    def next_frame(self) -> tuple[int, bytes]:
        """The next frame's type and payload. Raises BenchError for a NACK."""
        while len(self.rest) < 4 or len(self.rest) < 4 + int.from_bytes(self.rest[:4]):
            self.read()
        data = self.take(4 + int.from_bytes(self.rest[:4]))
        kind, payload = data[4], data[HEADER_SIZE:]
        if kind == NACK:
            raise self._refusal(payload)
        return kind, payload

    def _refusal(self, payload: bytes | bytearray) -> BenchError:
        """The error that a NACK's payload tells."""
        code, size = struct.unpack_from(">HH", payload)
        return BenchError(f"BlipMQ at {self.endpoint} answers {code}: {payload[4 : 4 + size].decode(errors='replace')}")

    def call(self, kind: int, payload: bytes) -> bytes:
        """Send a request; the payload of its answer."""
        self.send(frame(kind, 1, payload))
        return self.next_frame()[1]

    def subscribe(self, topic: str) -> int:
        """A new subscription, QoS 1."""
        name = topic.encode()
        return int.from_bytes(self.call(SUBSCRIBE, struct.pack(">H", len(name)) + name + b"\1"))


class BlipProducer(BlipConnection):
    """A PONG confirms the burst before its PING."""

    def __init__(self, driver: BlipMQ, index: int) -> None:
        super().__init__(driver)
        message = driver.message
        self._records = Records(message, len(message) - driver.size, driver.run, index)
        self._ping = frame(PING, 2)
        self._bursts: list[int] = []
        self._pongs = 0

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count) + self._ping)
        self._bursts.append(first + count)

    def confirmed(self, wait: float) -> int:
        self.read_within(wait)
        while len(self.rest) >= _PONG_SIZE:
            self._pongs += self.next_frame()[0] == PONG
        return self._bursts[self._pongs - 1] if self._pongs else 0


class BlipConsumer(BlipConnection):
    """Each burst acknowledges the last one's messages; it grows and shrinks with what that has brought."""

    def __init__(self, driver: BlipMQ, subscription: int) -> None:
        super().__init__(driver)
        self._size = driver.size
        self._stride = len(driver.message)
        number = subscription.to_bytes(8)
        self._ack, self._poll, self._ping = frame(ACK, 0, number), frame(POLL, 3, number), frame(PING, 4)
        self._acks = b""
        self._burst = _FEWEST
        self._most = max(_FEWEST, driver.prefetch // 2)

    def receive(self, wait: float) -> bytes | bytearray:
        self.send(self._acks + self._poll * self._burst + self._ping)
        data, count = self._until_pong()
        self._acks = b""
        self._burst = max(_FEWEST, min(2 * count, self._most))
        if not count:
            time.sleep(min(wait, _PAUSE))
            return b""
        acks = bytearray(self._ack * count)
        write_column(acks, 5, len(self._ack), read_column(data, 5, self._stride, count))
        self._acks = bytes(acks)
        return read_column(data, self._stride - self._size, self._stride, count)

    def settle(self) -> None:
        self.send(self._acks + self._ping)
        self._acks = b""
        if self._until_pong()[1]:
            raise BenchError("A message came without a POLL.")

    def _until_pong(self) -> tuple[bytearray, int]:
        """Deliveries up to the PONG: their bytes, and how many."""
        rest, stride = self.rest, self._stride
        while len(rest) % stride != _PONG_SIZE or rest[-9] != PONG:
            self.read()
            if rest[4::stride].rstrip(bytes((PONG,))).strip(bytes((PUBLISH,))):
                self._leave_out_refusals()
        self.rest = bytearray()
        return rest, len(rest) // stride

    def _leave_out_refusals(self) -> None:
        """Take out of what was read each answer to a second acknowledgement: of a message that came twice, since the
        first delivery was not acknowledged in time, the first one settles it. Raises BenchError for other frames."""
        rest, at = self.rest, 0
        while len(rest) > at + 4:
            size = 4 + int.from_bytes(rest[at : at + 4])
            if rest[at + 4] == NACK and len(rest) >= at + size:
                if int.from_bytes(rest[at + HEADER_SIZE : at + HEADER_SIZE + 2]) != UNKNOWN_DELIVERY.code:
                    raise self._refusal(rest[at + HEADER_SIZE : at + size])
                del rest[at : at + size]
            elif rest[at + 4] in (NACK, PONG) or (rest[at + 4] == PUBLISH and size == self._stride):
                at += size
            else:
                kind = rest[at + 4]
                raise BenchError(f"BlipMQ at {self.endpoint} sent a frame of type {kind} and {size} bytes.")
