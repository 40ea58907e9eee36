"""Overhop: pipelined ENQUEUEs; a worker whose credits are renewed with each read, DONEs made of the QUESTs' bytes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Final

from brokersite.rigs.bench.columns import DIGITS, WIDTH, Records, read_column
from brokersite.rigs.bench.drivers import RunDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import TIMEOUT, Endpoint, Stream
from wire.overhop.codec.columns import AlikeTexts, write_frames
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope
from wire.overhop.codec.encoder import encode
from wire.overhop.codec.names import Type

_OK: Final = encode(Type.OK, "b", {})
_PONG: Final = re.escape(b"\xa1t" + bytes((Type.PONG,)) + b"\xa1v\x02")
_QUEST_END: Final = b"\xa1t" + bytes((Type.QUEST,)) + b"\xa1v\x02"
_DIGITS: Final = b"0123456789abcdef"
#: Bytes of a job besides its padding.
_BARE: Final = 25
_UUID: Final = 36
#: The last characters of a jid, in which those of a batch differ.
_VARIED: Final = 3
#: The bytes before the digits of a job's number.
_NUMBER: Final = b"\xa1n\xb0"


@dataclass(frozen=True)
class Overhop(RunDriver):
    """A queue of jobs."""

    endpoint: Endpoint
    queue: str

    def producer(self, index: int) -> JobProducer:
        return JobProducer(self, index)

    def consumer(self, index: int) -> JobConsumer:
        return JobConsumer(self)


class OverhopConnection(Stream):
    """A registered connection."""

    def __init__(self, driver: Overhop) -> None:
        super().__init__(driver.endpoint)
        self.call(Type.HELLO, {})
        self.call(Type.REGISTER, {})

    def call(self, kind: Type, payload: dict[str, Any]) -> dict[str, Any]:
        """Send a request; the payload of its answer."""
        self.send(encode(kind, "b", payload))
        while len(self.rest) < 4 or len(self.rest) < 4 + int.from_bytes(self.rest[:4]):
            self.read()
        return self.decoded(self.take(4 + int.from_bytes(self.rest[:4])))[0].p

    def decoded(self, data: bytes) -> list[OverhopEnvelope]:
        """The whole envelopes that bytes begin with. Raises BenchError for an ERR."""
        found = Decoder.for_client().feed(data)
        for envelope in found:
            if envelope.t == Type.ERR:
                raise BenchError(f"Overhop at {self.endpoint} answers {envelope.p['code']}: {envelope.p['msg']}")
        return found


class JobProducer(OverhopConnection):
    """Each ENQUEUE is answered when it is durable; all answers have one length."""

    def __init__(self, driver: Overhop, index: int) -> None:
        super().__init__(driver)
        job = {"n": _DIGITS.decode(), "pad": "x" * max(0, driver.size - _BARE)}
        frame = encode(Type.ENQUEUE, "b", {"job_payload": job, "q": driver.queue})
        self._records = Records(frame, frame.index(_DIGITS), driver.run, index, digits=True)
        self._confirmed = 0

    def publish(self, first: int, count: int) -> None:
        self.send(self._records.take(first, count))

    def confirmed(self, wait: float) -> int:
        self.read_within(wait)
        rest = self.rest
        if len(rest) > 4 and len(rest) >= (stride := 4 + int.from_bytes(rest[:4])):
            count = len(rest) // stride
            if read_column(rest, 0, stride, count, 4) != rest[:4] * count or rest[stride - 4] != Type.OK:
                self.decoded(bytes(rest))
                raise BenchError(f"Overhop at {self.endpoint} gave answers of several kinds to ENQUEUE.")
            del rest[: count * stride]
            self._confirmed += count
        return self._confirmed


class JobConsumer(OverhopConnection):
    """A worker: QUESTs of one length are read as columns, and answered with DONEs made of these."""

    def __init__(self, driver: Overhop) -> None:
        super().__init__(driver)
        jid = f"{driver.queue}:{'x' * _UUID}"
        self._before, self._after = encode(Type.DONE, "b", {"jid": jid}).split(jid.encode())
        self._jid_size = len(jid)
        self._sid = self.call(Type.SUBSCRIBE, {"q": driver.queue, "credits": driver.prefetch})["sid"]

    def receive(self, wait: float) -> bytes | bytearray:
        self.read_within(wait)
        rest, at = self.rest, 0
        numbers = bytearray()
        done: list[bytes | bytearray] = []
        while len(rest) >= at + 4 and len(rest) >= at + (size := 4 + int.from_bytes(rest[at : at + 4])):
            count = _count_alike(rest, at, size, 3)
            if rest.startswith(_OK, at) and rest[at : at + count * size] == _OK * count:
                pass
            elif rest.startswith(_QUEST_END, at + size - len(_QUEST_END)):
                count = self._do(at, size, count, done, numbers)
            else:
                count = 1
                self.decoded(bytes(rest[at : at + size]))
            at += count * size
        del rest[:at]
        if done:
            credits = len(numbers) // WIDTH
            done.append(encode(Type.CREDIT, "b", {"credits": credits, "sid": self._sid}))
            self.send(b"".join(done))
        return numbers

    def _do(self, at: int, size: int, count: int, done: list[bytes | bytearray], numbers: bytearray) -> int:
        """Do the first of so many jobs whose jids differ in their last digits only; returns how many these are."""
        rest = self.rest
        quest = bytes(rest[at : at + size])
        jid = quest.index(b"\xa3jid") + len(b"\xa3jid\xd9.")
        end = jid + self._jid_size
        count = min(count, _count_alike(rest, at, size, end - _VARIED - 1))
        stop = at + count * size
        columns = {place - jid: bytes(rest[at + place : stop : size]) for place in range(end - _VARIED, end)}
        jids = AlikeTexts(quest[jid : end - _VARIED] + bytes(_VARIED), columns, count)
        done.append(write_frames((self._before, jids, self._after), count))
        number = quest.index(_NUMBER, end) + len(_NUMBER)
        numbers += bytes.fromhex(read_column(rest, at + number, size, count, DIGITS).decode())
        return count

    def settle(self) -> None:
        self.send(encode(Type.PING, "p", {}))
        deadline = time.monotonic() + TIMEOUT
        while not re.search(_PONG, self.rest):
            if time.monotonic() > deadline:
                raise BenchError(f"Overhop at {self.endpoint} does not answer PING.")
            self.read()
        self.decoded(bytes(self.rest))
        self.rest.clear()


def _count_alike(data: bytearray, at: int, size: int, place: int) -> int:
    """How many whole frames of this size, from the one at `at` on, have its byte in this place."""
    column = data[at + place : at + (len(data) - at) // size * size : size]
    return len(column) - len(column.lstrip(column[:1]))
