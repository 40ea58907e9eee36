"""Overhop: clients that send what no client should. Only they may notice."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.unharmed import Neighbour, drawn, exchange
from tests.hostile.values import INTEGERS, TIMES, integers, octets, texts
from tests.waiting import PATIENCE
from tests.wire.broker import Broker
from wire.overhop.client import Client
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Type

GREETING = encoder.encode(Type.HELLO, "a", {}) + encoder.encode(Type.REGISTER, "b", {})
UUID = "0" * 8 + "-0000-0000-0000-" + "0" * 12

NAMES = st.sampled_from(("hostile", "_system", "_peer/bob", "_subscription/1/", "sspq", ""))
TIMESTAMPS = st.sampled_from((
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-01-01T00:00:60Z", "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z", "0001-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "-001-01-01T00:00:00Z",
))  # fmt: skip
JIDS = st.builds(lambda queue, uuid: f"{queue}:{uuid}", NAMES | texts(300), st.sampled_from((UUID, "f" * 32, "x")))
ANYTHING = st.one_of(
    texts(), octets(), integers(), st.none(), st.booleans(), NAMES, TIMESTAMPS, JIDS, st.just([]), st.just({}),
    st.lists(integers(), max_size=3), st.dictionaries(texts(300), integers(), max_size=3),
)  # fmt: skip
#: For each key of a payload, values that nearly fit.
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "q": NAMES | texts(300), "name": NAMES | texts(300), "sid": st.just(UUID) | texts(64), "jid": JIDS,
    "credits": integers(), "max_attempts": integers(), "retry_interval_ms": integers(), "retry_in_ms": integers(),
    "page": integers(), "page_size": integers(), "priority": integers(), "scheduled_at": TIMESTAMPS,
    "key": texts(300), "status": st.sampled_from(("new", "waiting", "delayed", "completed", "failed", "active", "")),
    "error": texts(), "line": texts(), "reason": texts(), "result": ANYTHING, "job_payload": ANYTHING,
    "config": st.fixed_dictionaries({"concurrency_limit": integers() | st.none(), "allow_job_overrides": ANYTHING}),
}  # fmt: skip
PAYLOADS = st.fixed_dictionaries({}, optional=FITTING) | st.dictionaries(
    st.sampled_from(tuple(FITTING)), ANYTHING, max_size=4
)


@st.composite
def sessions(draw: st.DrawFn) -> bytes:
    """The bytes that a client sends on one connection."""
    sent = [draw(st.sampled_from((GREETING, GREETING, GREETING, b"")))]
    for _ in range(draw(st.integers(0, 6))):
        envelope = {"v": 2, "t": draw(st.integers(1, 24) | integers()), "rid": draw(texts(300)), "p": draw(PAYLOADS)}
        message = framed(msgpack.packb(envelope))
        sent.append(message * (min(draw(TIMES), 300) if len(message) < 2000 else 1))
    return b"".join(sent) + draw(st.just(b"") | octets(1000))


def asked(t: int, **p: Any) -> bytes:
    """A request."""
    return encoder.encode(t, "r", p)


def framed(body: bytes) -> bytes:
    """A body behind its length."""
    return len(body).to_bytes(4, "big") + body


#: Inputs that once did harm, or might.
CASES = {
    "ADDQUEUE of every extreme limit": b"".join(
        asked(Type.ADDQUEUE, name=f"limit{n}", config={"concurrency_limit": value})
        for n, value in enumerate(v for v in INTEGERS if 1 <= v < 2**31)
    ),
    "every request about a queue of 1 MB": b"".join(
        asked(t, q="q" * 1_000_000, status="new")
        for t in (Type.GQUEUE, Type.RMQUEUE, Type.PAUSE, Type.QSTATS, Type.LSJOB)
    ),
    "every request about a queue of NULs": b"".join(
        asked(t, q="\0", status="new") for t in (Type.GQUEUE, Type.RMQUEUE, Type.PAUSE, Type.QSTATS, Type.LSJOB)
    ),
    "ENQUEUE at the ends of the calendar": asked(Type.ADDQUEUE, name="calendar") + b"".join(
        asked(Type.ENQUEUE, q="calendar", scheduled_at=moment)
        for moment in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T14:00:00+14:00")
    ),
    "ENQUEUE before the beginning of the calendar": asked(
        Type.ENQUEUE, q="hostile", scheduled_at="0001-01-01T00:00:00+14:00"
    ),
    "ENQUEUE after the end of the calendar": asked(
        Type.ENQUEUE, q="hostile", scheduled_at="9999-12-31T23:59:59-14:00"
    ),
    "ENQUEUE with a key of 255 characters of four bytes": (
        asked(Type.ADDQUEUE, name="keyed") + asked(Type.ENQUEUE, q="keyed", key="😀" * 255) * 100
    ),
    "ENQUEUE, QUEST, FAIL at once with the most of everything": (
        asked(Type.ADDQUEUE, name="most")
        + asked(Type.ENQUEUE, q="most", max_attempts=32767, retry_interval_ms=2**31 - 1, priority=100)
        + asked(Type.SUBSCRIBE, q="most", credits=2**32 - 1)
    ),
    "CREDIT beyond what credits can be": (
        asked(Type.ADDQUEUE, name="credits") + asked(Type.SUBSCRIBE, q="credits", credits=2**32 - 1)
        + asked(Type.SUBSCRIBE, q="credits", credits=2**32)
    ),
    "LSJOB of the last page": asked(Type.LSJOB, q="sspq", status="completed", page=2**31 - 1, page_size=100),
    "50 JOBs that never were": asked(Type.JOB, jid=f"sspq:{UUID}") * 50,
    "5000 ACKs of jobs that never were": asked(Type.ACK, jid=f"sspq:{UUID}") * 5000,
    "a request id of 1 MB": encoder.encode(Type.PING, "é" * 500_000, {}),
    "a request id that is a surrogate": framed(b"\x84\xa1v\x02\xa1t\x03\xa3rid\xa3\xed\xa0\x80\xa1p\x80"),
    "integers outside int64": framed(msgpack.packb({"v": 2, "t": 2**64 - 1, "rid": "r", "p": {}})),
    "a length that is only claimed": b"\x00\x80\x00\x00\x84",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_harms_nothing_else(broker: Broker, name: str) -> None:
    exchange(broker.overhop, GREETING + CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_before_registration_harms_nothing_else(broker: Broker, name: str) -> None:
    exchange(broker.overhop, CASES[name])


#: Results of jobs, and texts of their workers.
RESULTS: list[Any] = [
    "\0", "a\0b", {"a\0b": ["\0"]}, b"\0\xff", -(2**63), 2**63 - 1, 0, "\uffff" * 100_000,
    "\0" * (1 << 20), [[]] * 50_000,
]  # fmt: skip


def test_what_a_worker_says_of_a_job_is_kept_or_costs_that_attempt(broker: Broker) -> None:
    with Client(*broker.overhop) as client:
        client.create_queue("answers")
        client.subscribe("answers", credits=1000)
        for value in RESULTS:
            text = value if isinstance(value, str) else repr(value)[:3000]
            jids = [client.enqueue("answers", value, max_attempts=1) for _ in range(2)]
            for jid in jids:
                assert client.next_quest(PATIENCE) is not None
                client.log(jid, text)
            client.done(jids[0], value)
            client.fail(jids[1], text)
            done, failed = map(client.job, jids)
            assert done is not None
            assert failed is not None
            assert (done.status, done.result, failed.status) == ("completed", value, "failed")
        assert client.next_quest(0) is None  # none is given again


@drawn
@given(sessions())
def test_a_drawn_session_harms_nothing_else(broker: Broker, neighbour: Neighbour, data: bytes) -> None:
    exchange(broker.overhop, data)
    neighbour.served()
