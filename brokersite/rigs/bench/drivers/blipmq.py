"""BlipMQ, QoS 1: bursts of PUBLISHes with a PING behind; bursts of ACKs and POLLs with a PING behind."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokersite.rigs.bench.columns import WIDTH, Records, read_column, write_column
from brokersite.rigs.bench.drivers import FanoutDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint, Stream
from wire.blipmq import codec

#: POLLs in a burst, at least.
_FEWEST: Final = 4
#: Seconds to the next burst after one that brought nothing.
_PAUSE: Final = 0.0002
_PONG_SIZE: Final = codec.HEADER_SIZE
#: The error of a connection that fails after others.
_LIMITS: Final = (
    "Others of this run are open. A process of the broker takes BROKER_MAX_CONNECTIONS (10,000) in all,"
    " BROKER_MAX_CONNECTIONS_PER_ADDRESS (1,000) from one address, BROKER_MAX_CONNECTIONS_PER_KEY (2,000) with one key,"
    " and as many as it may have file descriptors (`ulimit -n`): start it with more of these than there are consumers"
    " and producers."
)
_ACK_SIZE: Final = codec.HEADER_SIZE + 8


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return codec.HEADER.pack(9 + len(payload), kind, correlation) + payload


@dataclass(frozen=True)
class BlipMQ(FanoutDriver):
    """A topic and its subscriptions; consumer i polls subscription i modulo their number."""

    endpoint: Endpoint
    key: str
    topic: str
    subscriptions: tuple[int, ...] = ()

    def producer(self, index: int) -> BlipProducer:
        return BlipProducer(self, index)

    def consumer(self, index: int) -> BlipConsumer:
        try:
            return BlipConsumer(self, self.subscriptions[index % len(self.subscriptions)])
        except BenchError as error:
            if not index:
                raise
            raise BenchError(f"{str(error).rstrip('.')}. {_LIMITS}") from error

    @property
    def message(self) -> bytes:
        """A PUBLISH, which is also what a delivery looks like but for the correlation id."""
        topic = self.topic.encode()
        return frame(codec.PUBLISH, 1, struct.pack(">BH", 1, len(topic)) + topic + bytes(8) + b"x" * (self.size - 8))


class BlipConnection(Stream):
    """A connection past HELLO and AUTH."""

    def __init__(self, driver: BlipMQ) -> None:
        super().__init__(driver.endpoint)
        key = driver.key.encode()
        try:
            self.call(codec.HELLO, b"\0\1")
            self.call(codec.AUTH, struct.pack(">H", len(key)) + key)
        except BenchError:
            self.close()
            raise

    def next_frame(self) -> tuple[int, bytes]:
        """The next frame's type and payload. Raises BenchError for a NACK."""
        while len(self.rest) < 4 or len(self.rest) < 4 + int.from_bytes(self.rest[:4]):
            self.read()
        data = self.take(4 + int.from_bytes(self.rest[:4]))
        kind, payload = data[4], data[codec.HEADER_SIZE:]
        if kind == codec.NACK:
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
        return int.from_bytes(self.call(codec.SUBSCRIBE, struct.pack(">H", len(name)) + name + b"\1"))


class BlipProducer(BlipConnection):
    """A PONG confirms the burst before its PING."""

    def __init__(self, driver: BlipMQ, index: int) -> None:
        super().__init__(driver)
        message = driver.message
        self._records = Records(message, len(message) - driver.size, driver.run, index)
        self._ping = frame(codec.PING, 2)
        self._bursts: list[int] = []
        self._pongs = 0

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count) + self._ping)
        self._bursts.append(first + count)

    def confirmed(self, wait: float) -> int:
        self.read_within(wait)
        while len(self.rest) >= _PONG_SIZE:
            self._pongs += self.next_frame()[0] == codec.PONG
        return self._bursts[self._pongs - 1] if self._pongs else 0


class _Burst(NamedTuple):
    """An answer that was read before: its deliveries' numbers, and the ACKs for them, without the subscription."""

    data: bytes
    numbers: bytes
    acks: bytes


#: By length, the last answer that was read in this process: subscribers of a topic get the same bytes as a rule, and to
#: compare them costs a tenth of reading them.
_seen: dict[int, _Burst] = {}
_MAX_SEEN: Final = 100


class BlipConsumer(BlipConnection):
    """Each burst acknowledges the last one's messages; where it is alone, it grows and shrinks with what that brought.
    """

    def __init__(self, driver: BlipMQ, subscription: int) -> None:
        super().__init__(driver)
        self._size = driver.size
        self._stride = len(driver.message)
        number = subscription.to_bytes(8)
        self._poll, self._ping = frame(codec.POLL, 3, number), frame(codec.PING, 4)
        self._number = {place: byte for place, byte in enumerate(number) if byte}
        self._acks = b""
        self._burst = _FEWEST
        self._most = max(_FEWEST, driver.prefetch // 2)

    def receive(self, wait: float) -> bytes | bytearray:
        self.ask(self._burst)
        while (column := self.collect()) is None:
            pass
        self._burst = max(_FEWEST, min(2 * len(column) // WIDTH, self._most))
        if not column:
            time.sleep(min(wait, _PAUSE))
        return column

    def ask(self, count: int) -> None:
        self.send(self._acks + self._poll * min(count, self._most) + self._ping)
        self._acks = b""

    def collect(self) -> bytes | bytearray | None:
        """Up to the PONG."""
        self.read()
        burst = _seen.get(len(self.rest))
        if burst is None or burst.data != self.rest:
            if self.rest[4 :: self._stride].rstrip(bytes((codec.PONG,))).strip(bytes((codec.PUBLISH,))):
                self._leave_out_refusals()
            if len(self.rest) % self._stride != _PONG_SIZE or self.rest[-9] != codec.PONG:
                return None
            if len(_seen) >= _MAX_SEEN:
                _seen.clear()
            burst = _seen[len(self.rest)] = self._parse(bytes(self.rest))
        self.rest.clear()
        self._acks = self._addressed(burst)
        return burst.numbers

    def _parse(self, data: bytes) -> _Burst:
        count, stride = len(data) // self._stride, self._stride
        if not count:
            return _Burst(data, b"", b"")
        acks = bytearray(frame(codec.ACK, 0, bytes(8)) * count)
        write_column(acks, 5, _ACK_SIZE, read_column(data, 5, stride, count))
        return _Burst(data, bytes(read_column(data, stride - self._size, stride, count)), bytes(acks))

    def _addressed(self, burst: _Burst) -> bytes:
        """The ACKs of a burst, with this subscription."""
        acks = bytearray(burst.acks)
        for place, byte in self._number.items():
            acks[codec.HEADER_SIZE + place :: _ACK_SIZE] = bytes((byte,)) * (len(acks) // _ACK_SIZE)
        return bytes(acks)

    def settle(self) -> None:
        self.ask(0)
        while (column := self.collect()) is None:
            pass
        if column:
            raise BenchError("A message came without a POLL.")

    def _leave_out_refusals(self) -> None:
        """Take out of what was read each answer to a second acknowledgement: of a message that came twice, since the
        first delivery was not acknowledged in time, the first one settles it. Raises BenchError for other frames."""
        rest, at = self.rest, 0
        while len(rest) > at + 4:
            size = 4 + int.from_bytes(rest[at : at + 4])
            if rest[at + 4] == codec.NACK and len(rest) >= at + size:
                payload = rest[at + codec.HEADER_SIZE : at + size]
                if int.from_bytes(payload[:2]) != codec.UNKNOWN_DELIVERY.code:
                    raise self._refusal(payload)
                del rest[at : at + size]
            elif rest[at + 4] in (codec.NACK, codec.PONG) or (rest[at + 4] == codec.PUBLISH and size == self._stride):
                at += size
            else:
                kind = rest[at + 4]
                raise BenchError(f"BlipMQ at {self.endpoint} sent a frame of type {kind} and {size} bytes.")
