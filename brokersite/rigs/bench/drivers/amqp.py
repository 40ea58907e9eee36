"""AMQP 0-9-1, for RabbitMQ: persistent messages with publisher confirms; each read acknowledged with one `multiple`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from brokersite.rigs.bench.columns import Records, read_column
from brokersite.rigs.bench.drivers import FanoutDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Login, Stream

_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER: Final = struct.pack(">HH", 60, 60)
_ACK: Final = 60, 80
_FRAME_MAX: Final = 131072
_TAG: Final = "c"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A whole frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, group: int, number: int, payload: bytes = b"") -> bytes:
    """A frame with a method."""
    return frame(_METHOD, channel, struct.pack(">HH", group, number) + payload)


def short(text: str) -> bytes:
    """A short string."""
    data = text.encode()
    return bytes((len(data),)) + data


def long(data: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(data)) + data


@dataclass(frozen=True)
class Amqp(FanoutDriver):
    """Quorum queues; with an exchange each of them gets every message, and consumer i reads queue i."""

    login: Login
    queues: tuple[str, ...]
    exchange: str

    def producer(self, index: int) -> AmqpProducer:
        return AmqpProducer(self, index)

    def consumer(self, index: int) -> AmqpConsumer:
        return AmqpConsumer(self, self.queues[index % len(self.queues)])

    @property
    def message(self) -> bytes:
        """A publish of a persistent message: method, header and body frames."""
        key = "" if self.exchange else self.queues[0]
        routed = method(1, 60, 40, b"\0\0" + short(self.exchange) + short(key) + b"\0")
        header = struct.pack(">HHQHB", 60, 0, self.size, 0x1000, 2)
        return routed + frame(_HEADER, 1, header) + frame(_BODY, 1, bytes(8) + b"x" * (self.size - 8))


class AmqpConnection(Stream):
    """A connection with channel 1 open."""

    def __init__(self, login: Login) -> None:
        super().__init__(login.endpoint)
        self.send(b"AMQP\0\0\x09\x01")
        self.expect(10, 10)
        credentials = long(b"\0%b\0%b" % ((login.user or "guest").encode(), (login.password or "guest").encode()))
        self.send(method(0, 10, 11, long(b"") + short("PLAIN") + credentials + short("en_US")))
        self.expect(10, 30)
        self.send(method(0, 10, 31, struct.pack(">HIH", 2047, _FRAME_MAX, 0)))  # no heartbeats
        self.call(0, 10, 40, short(login.vhost) + short("") + b"\0")
        self.call(1, 20, 10, short(""))

    def next_frame(self) -> tuple[int, bytes]:
        """The next frame's kind and payload."""
        while len(self.rest) < 7:
            self.read()
        data = self.take(8 + int.from_bytes(self.rest[3:7]))
        return data[0], data[7:-1]

    def expect(self, group: int, number: int) -> bytes:
        """Read up to this method; its arguments. Raises BenchError when the server closes."""
        while True:
            kind, payload = self.next_frame()
            if kind == _METHOD:
                got = struct.unpack_from(">HH", payload)
                if got == (group, number):
                    return payload[4:]
                if got in ((10, 50), (20, 40)):
                    text = payload[7 : 7 + payload[6]].decode(errors="replace")
                    raise BenchError(f"RabbitMQ at {self.endpoint} closes: {text}")

    def call(self, channel: int, group: int, number: int, payload: bytes = b"") -> bytes:
        """A method whose answer is the next number."""
        self.send(method(channel, group, number, payload))
        return self.expect(group, number + 1)

    def declare(self, queue: str) -> None:
        """Make a quorum queue."""
        table = short("x-queue-type") + b"S" + long(b"quorum")
        self.call(1, 50, 10, b"\0\0" + short(queue) + b"\2" + long(table))

    def fan_out(self, exchange: str, queues: tuple[str, ...]) -> None:
        """Make a fanout exchange that leads to these queues."""
        self.call(1, 40, 10, b"\0\0" + short(exchange) + short("fanout") + b"\2" + long(b""))
        for queue in queues:
            self.call(1, 50, 20, b"\0\0" + short(queue) + short(exchange) + short("") + b"\0" + long(b""))

    def delete(self, queues: tuple[str, ...], exchange: str) -> None:
        """Delete queues and an exchange."""
        for queue in queues:
            self.call(1, 50, 40, b"\0\0" + short(queue) + b"\0")
        if exchange:
            self.call(1, 40, 20, b"\0\0" + short(exchange) + b"\0")


class AmqpProducer(AmqpConnection):
    """Confirms come one by one or for all up to a tag, and not always in order."""

    def __init__(self, driver: Amqp, index: int) -> None:
        super().__init__(driver.login)
        self.call(1, 85, 10, b"\0")
        message = driver.message
        self._records = Records(message, len(message) - 1 - driver.size, driver.run, index)
        self._low = 0
        self._ahead: set[int] = set()

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count))

    def confirmed(self, wait: float) -> int:
        self.read_within(wait)
        rest, at = self.rest, 0
        while len(rest) - at >= 21:
            _, _, size, group, number, tag, multiple = struct.unpack_from(">BHIHHQ?", rest, at)
            if (group, number) != _ACK:
                self.expect(*_ACK)  # says why the server closes
                raise BenchError(f"RabbitMQ at {self.endpoint} gives method {group}.{number} instead of a confirm.")
            if multiple:
                self._low = max(self._low, tag)
                self._ahead = {one for one in self._ahead if one > self._low}
            else:
                self._ahead.add(tag)
            while self._low + 1 in self._ahead:
                self._low += 1
                self._ahead.remove(self._low)
            at += size + 8
        del rest[:at]
        return self._low


class AmqpConsumer(AmqpConnection):
    """Deliveries of one length."""

    def __init__(self, driver: Amqp, queue: str) -> None:
        super().__init__(driver.login)
        self._queue, self._size, self._stride = queue, driver.size, 0
        self.call(1, 60, 10, struct.pack(">IHB", 0, driver.prefetch, 0))
        self.call(1, 60, 20, b"\0\0" + short(queue) + short(_TAG) + b"\0" + long(b""))

    def receive(self, wait: float) -> bytes | bytearray:
        self.read_within(wait)
        rest = self.rest
        stride = self._stride = self._stride or self._measure()
        count = len(rest) // stride if stride else 0
        if not count:
            return b""
        if read_column(rest, 7, stride, count, 4) != _DELIVER * count:
            raise BenchError(f"RabbitMQ at {self.endpoint} gave other frames among deliveries.")
        last = (count - 1) * stride + 11 + len(short(_TAG))
        tag = int.from_bytes(rest[last : last + 8])
        column = read_column(rest, stride - 1 - self._size, stride, count)
        del rest[: count * stride]
        self.send(method(1, *_ACK, struct.pack(">QB", tag, 1)))
        return column

    def ask(self, count: int) -> None:
        """It is pushed to."""

    def collect(self) -> bytes | bytearray | None:
        return self.receive(0.0)

    def settle(self) -> None:
        """A passive declare, which the queue answers after it has taken the acknowledgements."""
        self.send(method(1, 50, 10, b"\0\0" + short(self._queue) + b"\1" + long(b"")))
        self.expect(50, 11)

    def _measure(self) -> int:
        """The length of the delivery that was read first; 0 until it is whole."""
        rest, at = self.rest, 0
        for _ in range(3):
            if len(rest) < at + 7:
                return 0
            at += 8 + int.from_bytes(rest[at + 3 : at + 7])
        return at
