"""Overhop: pipelined ENQUEUEs; a worker whose credits are renewed with each read, DONEs made from the QUESTs' bytes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Final

from brokersite.rigs.bench.columns import DIGITS, Records, read_column
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import PATIENCE, Endpoint, Stream
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope, Type, encode

_OK: Final = encode(Type.OK, "b", {})
_PONG: Final = re.escape(b"\xa1t" + bytes((Type.PONG,)) + b"\xa1v\x02")
_QUEST_END: Final = b"\xa1t" + bytes((Type.QUEST,)) + b"\xa1v\x02"
_DIGITS: Final = b"0123456789abcdef"
#: Bytes of a job besides its padding.
_BARE: Final = 25
_UUID: Final = 36


@dataclass(frozen=True)
class Overhop:
    """A queue of jobs."""

    endpoint: Endpoint
    queue: str
    run: int
    size: int
    prefetch: int
    confirms: bool = True
    ordered: bool = True

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
    """A worker: QUESTs are found by their jid and number, and answered with DONE."""

    def __init__(self, driver: Overhop) -> None:
        super().__init__(driver)
        jid = f"{driver.queue}:{'x' * _UUID}"
        done = encode(Type.DONE, "b", {"jid": jid})
        self._before, self._after = done.split(jid.encode())
        length = encode(Type.DONE, "b", {"jid": jid})[self._before.rindex(b"jid") + 3 : len(self._before)]
        self._head = rb"\xa3jid%s(.{%d})\xabjob_payload\x82\xa1n\xb0(.{%d})" % (
            re.escape(length), len(jid), DIGITS,
        )  # fmt: skip
        self._quest: re.Pattern[bytes] | None = None
        self._sid = self.call(Type.SUBSCRIBE, {"q": driver.queue, "credits": driver.prefetch})["sid"]

    def receive(self, wait: float) -> bytes | bytearray:
        self.read_within(wait)
        rest = self.rest
        if self._quest is None and (self._learn()) is None:
            return b""
        assert self._quest is not None
        jids, digits, at, other = [], [], 0, 0
        for match in self._quest.finditer(rest):
            jids.append(match[1])
            digits.append(match[2])
            other += match.start() - at
            at = match.end()
        if other % len(_OK):
            self.decoded(bytes(rest))
        del rest[:at]
        while rest.startswith(_OK):
            del rest[: len(_OK)]
        if not jids:
            return b""
        done = self._before + (self._after + self._before).join(jids) + self._after
        self.send(done + encode(Type.CREDIT, "b", {"credits": len(jids), "sid": self._sid}))
        return bytes.fromhex(b"".join(digits).decode())

    def settle(self) -> None:
        self.send(encode(Type.PING, "p", {}))
        deadline = time.monotonic() + PATIENCE
        while not re.search(_PONG, self.rest):
            if time.monotonic() > deadline:
                raise BenchError(f"Overhop at {self.endpoint} does not answer PING.")
            self.read()
        self.decoded(bytes(self.rest))
        self.rest.clear()

    def _learn(self) -> re.Pattern[bytes] | None:
        """The pattern of a QUEST with all its bytes, from the first one; None until that has come."""
        rest = self.rest
        if (match := re.search(self._head, rest, re.DOTALL)) is None or (
            end := rest.find(_QUEST_END, match.end())
        ) < 0:
            self.decoded(bytes(rest))
            return None
        before = rest[: match.start()].rindex(b"\x84\xa1p\x87") - 4
        head = b".{%d}" % (match.start() - before)
        tail = b".{%d}" % (end + len(_QUEST_END) - match.end())
        self._quest = re.compile(head + self._head + tail, re.DOTALL)
        return self._quest
