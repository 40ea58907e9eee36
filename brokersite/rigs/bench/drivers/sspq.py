"""SSPQ: pipelined SENDs; many connections that each take one message at a time, driven by one process."""

from __future__ import annotations

import selectors
from dataclasses import dataclass
from typing import Final

from brokersite.rigs.bench.columns import WIDTH, Records
from brokersite.rigs.bench.drivers import RunDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint, Stream
from wire.sspq.codec import HEADER_SIZE, PacketType, encode

#: Connections of a consumer, at most.
MAX_CONNECTIONS: Final = 50
_RETRIES: Final = 3
_RECEIVE: Final = encode(PacketType.RECEIVE)
_NEXT: Final = encode(PacketType.CONFIRM) + _RECEIVE


@dataclass(frozen=True)
class Sspq(RunDriver):
    """The queue that a listener serves. SENDs are not answered: nothing says when one is stored."""

    endpoint: Endpoint
    confirms = False
    ordered = False  # over its many connections

    def producer(self, index: int) -> SspqProducer:
        return SspqProducer(self, index)

    def consumer(self, index: int) -> SspqConsumer:
        return SspqConsumer(self)


class SspqProducer(Stream):
    """A producer whose messages count as confirmed once they are sent."""

    def __init__(self, driver: Sspq, index: int) -> None:
        super().__init__(driver.endpoint)
        frame = encode(PacketType.SEND, _RETRIES, bytes(WIDTH) + b"x" * (driver.size - WIDTH))
        self._records = Records(frame, HEADER_SIZE, driver.run, index)
        self._sent = 0

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count))
        self._sent = first + count

    def confirmed(self, wait: float) -> int:
        return self._sent


class SspqConsumer:
    """All its connections; CONFIRM and the next RECEIVE go together."""

    def __init__(self, driver: Sspq) -> None:
        self._run = driver.run.to_bytes(2)
        self._whole = HEADER_SIZE + driver.size
        self._selector = selectors.DefaultSelector()
        self._streams = [Stream(driver.endpoint) for _ in range(min(driver.prefetch, MAX_CONNECTIONS))]
        for stream in self._streams:
            self._selector.register(stream.socket, selectors.EVENT_READ, stream)
            stream.send(_RECEIVE)

    def receive(self, wait: float) -> bytes | bytearray:
        numbers = []
        for key, _ in self._selector.select(wait):
            stream: Stream = key.data
            stream.read()
            rest = stream.rest
            if len(rest) < self._whole:
                continue
            if len(rest) > self._whole or not rest.startswith(self._run, HEADER_SIZE):
                raise BenchError(
                    f"SSPQ at {stream.endpoint} gave a message that is not the benchmark's: its queue is used by"
                    " others. The message is returned to it."
                )
            numbers.append(bytes(rest[HEADER_SIZE : HEADER_SIZE + WIDTH]))
            rest.clear()
            stream.send(_NEXT)
        return b"".join(numbers)

    def settle(self) -> None:
        """CONFIRM is not answered."""

    def close(self) -> None:
        self._selector.close()
        for stream in self._streams:
            stream.close()
