"""Overhop against a running broker: what is wrong, and whether the connection ends silently, with an ERR, or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from tests.wire.broker import Broker
from tests.wire.overhop.codec.test_messages import EMPTY, OF_ANY_TYPE, OPTIONAL, SMALLEST
from tests.wire.overhop.peer import Peer, framed
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"
HELLO = encoder.encode(Type.HELLO, "a", {})
REQUESTS = [kind for kind in Type if Type.REGISTER < kind < Type.OK]

ENVELOPE = {"p": {}, "rid": "a", "t": 3, "v": 2}
PING: bytes = msgpack.packb(ENVELOPE)


def ping_with(value: bytes) -> bytes:
    """The body of a PING with an unknown field of this value."""
    return b"\x85\xa1x" + value + PING[1:]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ENVELOPE.items() if name != key}


FIRST_TIER: dict[str, bytes] = {
    "length 0": framed(b""),
    "length over the limit": b"\x00\x80\x00\x01",
    "length far over the limit": b"\xff\xff\xff\xff",
    "an array": framed(msgpack.packb([1])),
    "nil": framed(b"\xc0"),
    "text": framed(msgpack.packb("text")),
    "no MessagePack": framed(b"\xc1"),
    "half a map": framed(PING[:-1]),
    "bytes after the map": framed(PING + b"\xc0"),
    "two envelopes in a frame": framed(PING + PING),
    "an integer as a key": framed(b"\x85\x01\x01" + PING[1:]),
    "bin as a key": framed(b"\x85\xc4\x01x\x01" + PING[1:]),
    "a nested key that is no string": framed(ping_with(b"\x81\x01\x01")),
    "float 32": framed(ping_with(b"\xca\x3f\x80\x00\x00")),
    "float 64": framed(ping_with(b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00")),
    "an extension": framed(ping_with(b"\xd4\x01\x00")),
    "a timestamp extension": framed(ping_with(b"\xd6\xff\x00\x00\x00\x00")),
    "an integer over int64": framed(ping_with(b"\xcf\x80" + bytes(7))),
    "text that is no UTF-8": framed(ping_with(b"\xa1\xff")),
    "text with a surrogate": framed(ping_with(b"\xa3\xed\xa0\x80")),
    "no v": framed(msgpack.packb(without("v"))),
    "no t": framed(msgpack.packb(without("t"))),
    "no rid": framed(msgpack.packb(without("rid"))),
    "no p": framed(msgpack.packb(without("p"))),
    "v is 1": framed(msgpack.packb(ENVELOPE | {"v": 1})),
    "v is 3": framed(msgpack.packb(ENVELOPE | {"v": 3})),
    "v is text": framed(msgpack.packb(ENVELOPE | {"v": "2"})),
    "t is text": framed(msgpack.packb(ENVELOPE | {"t": "3"})),
    "t is a bool": framed(msgpack.packb(ENVELOPE | {"t": True})),
    "t is nil": framed(msgpack.packb(ENVELOPE | {"t": None})),
    "rid is empty": framed(msgpack.packb(ENVELOPE | {"rid": ""})),
    "rid is an integer": framed(msgpack.packb(ENVELOPE | {"rid": 1})),
    "rid is bin": framed(msgpack.packb(ENVELOPE | {"rid": b"a"})),
    "p is nil": framed(msgpack.packb(ENVELOPE | {"p": None})),
    "p is an array": framed(msgpack.packb(ENVELOPE | {"p": []})),
    "nested too deep": framed(ping_with(b"\x91" * 64 + b"\xc0")),
    "nested far too deep": framed(ping_with(b"\x91" * 1_000_000 + b"\xc0")),
    "an array that claims 4 billion elements": framed(ping_with(b"\xdd\xff\xff\xff\xff")),
    "a map that claims 4 billion pairs": framed(ping_with(b"\xdf\xff\xff\xff\xff")),
    "text that claims 4 GB": framed(ping_with(b"\xdb\xff\xff\xff\xff")),
    "bin that claims 4 GB": framed(ping_with(b"\xc6\xff\xff\xff\xff")),
    "millions of empty arrays": framed(ping_with(b"\xdd" + (2_000_000).to_bytes(4, "big") + b"\x90" * 2_000_000)),
}


@pytest.mark.parametrize("name", FIRST_TIER)
def test_bytes_that_are_no_overhop_end_a_connection_without_an_answer(broker: Broker, worker: Peer, name: str) -> None:
    with Peer(broker.overhop, register=False) as stranger:
        stranger.send(HELLO, FIRST_TIER[name])
        assert stranger.rest() == encoder.encode(Type.HI, "a", {})
    worker.send(encoder.encode(Type.PING, "before", {}), FIRST_TIER[name], encoder.encode(Type.PING, "after", {}))
    assert worker.read().rid == "before"
    worker.ended()


def test_every_allowed_envelope_is_accepted(worker: Peer) -> None:
    values: list[Any] = [None, True, 2**63 - 1, -(2**63), "ü", b"\xff", [[], {}], {"a": {"": 1}}]
    worker.send(framed(ping_with(msgpack.packb(values))))
    assert worker.read().rid == "a"
    worker.send(framed(ping_with(b"\x91" * 63 + b"\xc0")))
    assert worker.read().rid == "a"


def test_any_order_wide_integers_and_the_last_of_equal_keys_are_accepted(worker: Peer) -> None:
    wide = bytes.fromhex("df00000005 db00000001 76 cf0000000000000002 a174 05 a174 d30000000000000003")
    worker.send(framed(wide + bytes.fromhex("da0003 726964 d90161 a170 de0000")))
    message = worker.read()
    assert (message.t, message.rid) == (Type.PONG, "a")


# The second tier.


@pytest.mark.parametrize(
    "t", [0, -1, -(2**63), 25, 50, 99, 100, *(kind for kind in Type if kind >= Type.OK), 107, 2**63 - 1]
)
def test_a_type_that_is_no_request_ends_a_worker_with_an_error(worker: Peer, t: int) -> None:
    assert str(t) in worker.violation(t)


def _wrong_shapes() -> Iterator[Any]:
    for t in REQUESTS:
        for key, value in SMALLEST[t].items():
            others = {name: value for name, value in SMALLEST[t].items() if name != key}
            yield pytest.param(t, others, id=f"{t.name} without {key}")
            wrongs: list[Any] = [None, b"x", [], 7 if isinstance(value, str) else "7"]
            for wrong in wrongs:
                yield pytest.param(t, others | {key: wrong}, id=f"{t.name} {key}={wrong!r}")
        for key, value in OPTIONAL.get(t, {}).items():
            yield pytest.param(t, SMALLEST[t] | {key: None}, id=f"{t.name} {key}=nil")
            if key not in OF_ANY_TYPE:
                wrong = 7 if isinstance(value, str | dict) else "7"
                yield pytest.param(t, SMALLEST[t] | {key: wrong}, id=f"{t.name} {key}={wrong!r}")
        if t in EMPTY:
            yield pytest.param(t, {"x": 1}, id=f"{t.name} with something")
    yield pytest.param(Type.UNSUBSCRIBE, {"sid": "no uuid"}, id="UNSUBSCRIBE sid is no UUID")
    yield pytest.param(Type.CREDIT, {"sid": "no uuid", "credits": 1}, id="CREDIT sid is no UUID")
    yield pytest.param(Type.ENQUEUE, {"q": "q", "scheduled_at": "soon"}, id="ENQUEUE scheduled soon")
    yield pytest.param(
        Type.ADDQUEUE, {"name": "q", "config": {"allow_job_overrides": None}}, id="ADDQUEUE overrides=nil"
    )
    yield pytest.param(Type.ADDQUEUE, {"name": "q", "config": {"concurrency_limit": 0}}, id="ADDQUEUE limit=0")


@pytest.mark.parametrize(("t", "p"), list(_wrong_shapes()))
def test_a_wrong_shape_ends_a_worker_with_an_error(worker: Peer, t: Type, p: dict[str, Any]) -> None:
    worker.violation(t, p)


def test_answers_to_what_came_before_a_violation_are_still_sent(worker: Peer, queue: str) -> None:
    rids = [worker.request(Type.GQUEUE, q=queue), worker.request(Type.ENQUEUE, q=queue), worker.request(Type.LQUEUES)]
    worker.send(encoder.encode(200, "wrong", {}))
    assert [worker.read().rid for _ in range(4)] == [*rids, "wrong"]
    worker.ended()


def test_answers_to_what_came_before_broken_bytes_are_still_sent(worker: Peer, queue: str) -> None:
    rids = [worker.request(Type.GQUEUE, q=queue), worker.request(Type.ENQUEUE, q=queue), worker.request(Type.LQUEUES)]
    worker.send(framed(b"\xc1"))
    assert [worker.read().rid for _ in range(3)] == rids
    worker.ended()


# The third tier: the connection goes on. Codes that need a state of things stand with the tests of that.

UNKNOWN_JOB = f"nowhere:{SID}"
THIRD_TIER: list[tuple[Type, dict[str, Any], Code]] = [
    *((t, {"q": "nowhere"}, Code.QUEUE_NOT_FOUND) for t in (Type.SUBSCRIBE, Type.RMQUEUE, Type.PAUSE, Type.RESUME)),
    *((t, {"q": "nowhere"}, Code.QUEUE_NOT_FOUND) for t in (Type.ENQUEUE, Type.QSTATS)),
    (Type.LSJOB, {"q": "nowhere", "status": "new"}, Code.QUEUE_NOT_FOUND),
    (Type.SUBSCRIBE, {"q": "a\0b"}, Code.QUEUE_NOT_FOUND),
    (Type.UNSUBSCRIBE, {"sid": SID}, Code.SUBSCRIPTION_NOT_FOUND),
    (Type.CREDIT, {"sid": SID, "credits": 1}, Code.SUBSCRIPTION_NOT_FOUND),
    (Type.CREDIT, {"sid": SID, "credits": 0}, Code.INVALID_CREDITS),
    (Type.CREDIT, {"sid": SID, "credits": -1}, Code.INVALID_CREDITS),
    (Type.CREDIT, {"sid": SID, "credits": 2**32}, Code.INVALID_CREDITS),
    (Type.SUBSCRIBE, {"q": "nowhere", "credits": -1}, Code.INVALID_CREDITS),
    (Type.SUBSCRIBE, {"q": "nowhere", "credits": 2**32}, Code.INVALID_CREDITS),
    *((Type.ADDQUEUE, {"name": name}, Code.INVALID_QUEUE_NAME)
      for name in ("", "_mine", "-a", "a b", "a:b", "é", "x" * 256)),
    (Type.ENQUEUE, {"q": "nowhere", "max_attempts": 0}, Code.INVALID_MAX_ATTEMPTS),
    (Type.ENQUEUE, {"q": "nowhere", "max_attempts": 40_000}, Code.INVALID_MAX_ATTEMPTS),
    (Type.ENQUEUE, {"q": "nowhere", "retry_interval_ms": 0}, Code.INVALID_RETRY_INTERVAL_MS),
    (Type.FAIL, {"jid": UNKNOWN_JOB, "retry_in_ms": -1}, Code.INVALID_RETRY_INTERVAL_MS),
    *((t, {"jid": jid}, Code.INVALID_JOB_ID) for t in (Type.JOB, Type.RMJOB, Type.ACK, Type.DONE, Type.FAIL, Type.BEAT)
      for jid in ("", "nowhere", f":{SID}", "nowhere:1", f"nowhere:{SID}x")),
    (Type.LOG, {"jid": "nowhere", "line": "x"}, Code.INVALID_JOB_ID),
    *((t, {"jid": UNKNOWN_JOB}, Code.JOB_NOT_FOUND) for t in (Type.RMJOB, Type.ACK, Type.DONE, Type.FAIL, Type.BEAT)),
    (Type.LOG, {"jid": UNKNOWN_JOB, "line": "x"}, Code.JOB_NOT_FOUND),
    (Type.LSJOB, {"q": "nowhere", "status": "lost"}, Code.INVALID_JOB_STATUS_FILTER),
    (Type.LSJOB, {"q": "nowhere", "status": "new", "page_size": 0}, Code.INVALID_PAGE_SIZE),
    (Type.LSJOB, {"q": "nowhere", "status": "new", "page_size": 101}, Code.INVALID_PAGE_SIZE),
    (Type.LSJOB, {"q": "nowhere", "status": "new", "page": 0}, Code.INVALID_PAGE),
    (Type.LSJOB, {"q": "nowhere", "status": "new", "page": 2**31}, Code.INVALID_PAGE),
]  # fmt: skip


@pytest.mark.parametrize(("t", "p", "code"), THIRD_TIER)
def test_a_value_that_cannot_be_is_refused_and_the_connection_goes_on(
    worker: Peer, t: Type, p: dict[str, Any], code: Code
) -> None:
    assert worker.refused(t, p) is code


def test_unknown_keys_are_ignored(worker: Peer, queue: str) -> None:
    assert worker.ask(Type.GQUEUE, q=queue, unknown=None)["name"] == queue
    assert worker.ask(Type.ENQUEUE, q=queue, unknown=[1])["jid"].startswith(queue)
