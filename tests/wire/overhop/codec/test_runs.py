"""Runs: the same messages as `Decoder` reads, several at once, whatever the bytes and wherever reads are cut."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.wire.overhop.codec.test_decoder import frame
from tests.wire.overhop.strategies import NEARLY, PAYLOADS
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope
from wire.overhop.codec.encoder import VALUE_DEPTH, encode, encode_value
from wire.overhop.codec.names import Type
from wire.overhop.codec.runs import DoneRun, JobRun, Received, RunDecoder

JID = "orders:be544b35-112b-8f6e-8000-80000000{:04x}"


def job(value: Any, rid: str = "r", q: str = "orders") -> bytes:
    return encode(Type.ENQUEUE, rid, {"job_payload": value, "q": q})


def raw_job(value: bytes, rid: bytes = b"\xa1r", q: bytes = b"\xa6orders") -> bytes:
    """An ENQUEUE around any bytes."""
    body = b"\x84\xa1p\x82\xabjob_payload" + value + b"\xa1q" + q + b"\xa3rid" + rid + b"\xa1t\x0e\xa1v\x02"
    return frame(body)


def done(n: int, rid: str = "r") -> bytes:
    return encode(Type.DONE, rid, {"jid": JID.format(n)})


def messages(received: Iterable[Received]) -> list[OverhopEnvelope]:
    """The messages, one by one."""
    found: list[OverhopEnvelope] = []
    for each in received:
        found += [each] if isinstance(each, OverhopEnvelope) else each.envelopes()
    return found


def canonical(message: OverhopEnvelope) -> tuple[int, str, Any]:
    """A message with the bytes that its values are stored as: int and bool are equal, and their bytes are not."""
    return message.t, message.rid, {key: encode_value(value) for key, value in message.p.items()}


def assert_same(stream: bytes, cuts: Iterable[int] = ()) -> list[Received]:
    """Both decoders read the same, and stop at the same place; returns what was read in runs."""
    one, runs, received = Decoder(), RunDecoder(), list[Received]()
    plain: list[OverhopEnvelope] = []
    for start, stop in pairwise([0, *sorted(cuts), len(stream)]):
        plain += one.feed(stream[start:stop])
        received += runs.feed(stream[start:stop])
        assert (runs.error is None) == (one.error is None)
        assert runs.error is not None or runs.pending == one.pending
    assert [canonical(each) for each in messages(received)] == [canonical(each) for each in plain]
    for each in received:
        if isinstance(each, JobRun):
            values = [message.p["job_payload"] for message in each.envelopes()]
            assert each.payloads == [encode_value(value) for value in values]
    return received


def sizes(received: Iterable[Received]) -> list[int]:
    """The lengths of runs; 0 is a message by itself."""
    return [0 if isinstance(each, OverhopEnvelope) else len(each) for each in received]


def test_jobs_and_dones_are_runs_but_for_the_first_one() -> None:
    stream = b"".join(job({"n": n, "pad": "x" * n}) for n in range(50)) + b"".join(done(n) for n in range(30))
    first, jobs, other, dones = assert_same(stream)
    assert isinstance(first, OverhopEnvelope)
    assert isinstance(other, OverhopEnvelope)
    assert isinstance(jobs, JobRun)
    assert jobs.q == "orders"
    assert jobs.payloads == [encode_value({"n": n, "pad": "x" * n}) for n in range(1, 50)]
    assert dones == DoneRun([b"r"] * 29, [JID.format(n).encode() for n in range(1, 30)])


def test_request_ids_of_one_length_may_differ_in_a_run() -> None:
    rids = [f"{n:03}" for n in range(20)]
    received = assert_same(b"".join(job({"n": 1}, rid) for rid in rids) + b"".join(done(1, rid) for rid in rids))
    assert sizes(received) == [0, 19, 0, 19]
    assert [message.rid for message in messages(received)] == rids * 2


def test_a_longer_request_id_or_another_queue_begins_a_run_anew() -> None:
    alike = b"".join(job({"n": n}) for n in range(4))
    longer = b"".join(job({"n": n}, "a longer one, of more than thirty-one bytes") for n in range(4))
    other = b"".join(job({"n": n}, "r", "images") for n in range(4))
    assert sizes(assert_same(alike + longer + other + alike)) == [0, 3, 0, 3, 0, 3, 0, 3]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, {"c": 2, "b": "x"}]},
        {"text": "gr\u00fcn \U0001f600 \u0440\u0443\u0441"},
        "text",
        -5,
        [1, 2],
        {"b": b"\x00\xff"},
        {"n": -(2**63), "m": 2**63 - 1},
        {},
    ],
)
def test_payloads_of_any_kind_are_those_of_the_exact_way(value: Any) -> None:
    received = assert_same(job({"n": 0}) + b"".join(job(each) for each in ({"n": 1}, value, value, {"n": 2})))
    assert messages(received)[2].p["job_payload"] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys out of order", "82a16202a16101"),
        ("a key twice", "82a16101a16102"),
        ("a wide integer", "81a161cd0001"),
        ("a wide length", "81d90161c0"),
        ("sorted by bytes alone", "82a16101a2616202"),
    ],
)
def test_payloads_are_stored_in_their_one_form(name: str, value: str) -> None:
    plain = raw_job(bytes.fromhex("81a16101"))
    [first, *rest] = assert_same(plain * 2 + raw_job(bytes.fromhex(value)) * 2 + plain)
    assert isinstance(first, OverhopEnvelope)
    payloads = [payload for run in rest if isinstance(run, JobRun) for payload in run.payloads]
    again = encode_value(msgpack.unpackb(bytes.fromhex(value)))
    assert payloads == [bytes.fromhex("81a16101"), again, again, bytes.fromhex("81a16101")]


SPLIT = [
    ("the second ends the first", ["81a161", "0581a16206"]),
    ("the second is in the first", ["82a16101a162", "81a16303", "81a1640405"]),
    ("the first goes on", ["81a16101a162", "02"]),
    ("a value too many", ["81a1610102", "81a16101"]),
    ("nothing", ["81a16101", ""]),
    ("nil", ["81a16101", "c0"]),
    ("a float", ["81a16101", "81a161ca00000000"]),
    ("an integer as key", ["81a16101", "810102"]),
    ("a bin as key", ["81a16101", "81c4016101"]),
    ("a str that is no UTF-8", ["81a16101", "81a161a1ff"]),
    ("too deep", ["81a16101", "91" * VALUE_DEPTH + "90"]),
]


@pytest.mark.parametrize(("name", "values"), SPLIT)
def test_values_that_are_whole_only_together_are_refused_as_alone(name: str, values: list[str]) -> None:
    assert_same(raw_job(bytes.fromhex("81a16101")) * 2 + b"".join(raw_job(bytes.fromhex(value)) for value in values))


@pytest.mark.parametrize("rid", [b"\xa2\xc3\xbc", b"\xa2\xc3\x28", b"\xa2ab", b"\xa0", b"\xa3ab"])
def test_a_request_id_is_text(rid: bytes) -> None:
    assert_same(raw_job(b"\x81\xa1a\x01", b"\xa2zz") * 3 + raw_job(b"\x81\xa1a\x01", rid) * 2)


@pytest.mark.parametrize("jid", ["81", "ff" * 42, "c3bc" * 21, "61" * 41, "61" * 43])
def test_a_jid_is_text_of_its_length(jid: str) -> None:
    def frame_of(text: bytes) -> bytes:
        return frame(b"\x84\xa1p\x81\xa3jid\xd9\x2a" + text + b"\xa3rid\xa1r\xa1t\x14\xa1v\x02")

    assert_same(frame_of(b"a" * 42) * 3 + frame_of(bytes.fromhex(jid)) * 2 + frame_of(b"a" * 42))


def test_a_frame_over_the_limit_ends_a_run_and_the_stream() -> None:
    decoder = RunDecoder(100)
    small, large = job({"pad": "x"}), job({"pad": "x" * 100})
    assert sizes(decoder.feed(small * 3 + large + small)) == [0, 2]
    assert decoder.error is not None


def test_large_payloads_are_messages_of_their_own() -> None:
    small, large = job({"pad": "x"}), job({"pad": "x" * 40_000})
    assert sizes(assert_same(small * 2 + large * 2 + small)) == [0, 1, 0, 0, 1]


BYTES = st.one_of(NEARLY, st.binary(max_size=6), PAYLOADS.map(msgpack.packb), st.just(b"\x81\xa1a\x01"))


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(BYTES, max_size=6), st.lists(st.integers(0, 400), max_size=4))
@example([bytes.fromhex(value) for value in SPLIT[0][1]], [])
def test_any_values_are_read_as_one_by_one(values: list[bytes], cuts: list[int]) -> None:
    stream = raw_job(b"\x81\xa1a\x01") * 2 + b"".join(raw_job(value) for value in values)
    assert_same(stream, {min(cut, len(stream)) for cut in cuts})


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["r", "s", "10"]), PAYLOADS, st.integers(0, 3)), max_size=8),
    st.lists(st.integers(0, 800), max_size=6),
)
def test_any_jobs_and_dones_are_read_as_one_by_one(
    sent: list[tuple[bool, str, dict[str, Any], int]], cuts: list[int]
) -> None:
    stream = b"".join(
        (job(payload, rid) if is_job else done(n, rid)) * (n + 1) for is_job, rid, payload, n in sent
    )
    assert_same(stream, {min(cut, len(stream)) for cut in cuts})


#: Streams of messages that are alike, so many that they are cut and checked together.
MANY: dict[str, list[bytes]] = {
    "jobs": [job({"n": f"{n:04}", "of": 0x0301, "pad": "x" * 9}, "b") for n in range(120)],
    "jobs with texts that are not ASCII": [job({"n": f"{n:04}", "pad": "gr\u00fcn"}, "b") for n in range(60)],
    "DONEs": [done(n, "b") for n in range(120)],
    "DONEs with request ids": [done(n, f"{n:03}") for n in range(120)],
    "DONEs of two batches": [done(4000 + 2 * n, "b") for n in range(120)],
    "DONEs of jobs that were not pushed together": [done(n * 40_503 & 0xFFFF, "b") for n in range(120)],
    "jobs with request ids": [job({"n": f"{n:04}"}, f"{n // 20:03}") for n in range(120)],
    "jobs of two sizes": [job({"n": "x" * (n // 30 % 2)}, "b") for n in range(120)],
}


#: Those that are a run although their request ids differ.
NUMBERED = ["jobs with request ids", "DONEs with request ids"]


def twice(frames: list[bytes]) -> bytes:
    """The second half is recognized by what was learned from the first."""
    return b"".join(frames * 2)


@pytest.mark.parametrize("name", MANY)
def test_many_messages_that_are_alike_are_read_as_one_by_one(name: str) -> None:
    received = assert_same(twice(MANY[name]), [len(twice(MANY[name])) // 2])
    assert sum(sizes(received)) == 2 * len(MANY[name]) - 1


@pytest.mark.parametrize("name", [*NUMBERED, "jobs", "DONEs", "DONEs of jobs that were not pushed together"])
def test_many_messages_that_are_alike_are_one_run(name: str) -> None:
    decoder, frames = RunDecoder(), b"".join(MANY[name])
    decoder.feed(frames)
    assert sizes(decoder.feed(frames)) == [len(MANY[name])]
    long = b"".join(MANY[name] * 30)
    assert len(decoder.feed(long)) < 20  # four times as many each time
    assert len(decoder.feed(long)) == 1


@settings(max_examples=3 * settings().max_examples)
@given(
    st.sampled_from(sorted(MANY)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=2),
    st.lists(st.floats(0, 1), max_size=3),
)
def test_a_changed_byte_among_many_messages_that_are_alike_is_seen(
    name: str, changes: list[tuple[float, int]], cuts: list[float]
) -> None:
    stream = bytearray(twice(MANY[name]))
    for where, byte in changes:
        stream[int(where * (len(stream) - 1))] = byte
    assert_same(bytes(stream), {int(cut * len(stream)) for cut in cuts})


@given(
    st.sampled_from(sorted(MANY)),
    st.lists(st.tuples(st.integers(0, 239), st.integers(0, 4)), min_size=1, max_size=3),
    st.lists(st.floats(0, 1), max_size=3),
)
def test_other_messages_among_many_that_are_alike_are_seen(
    name: str, places: list[tuple[int, int]], cuts: list[float]
) -> None:
    others = [done(1), job({"n": "0001"}), job({"n": "0001", "of": 0x0302, "pad": "x" * 9}, "b"), raw_job(b"\x91\xcb"),
              encode(Type.PING, "b", {})]  # fmt: skip
    frames = MANY[name] * 2
    for at, which in places:
        frames.insert(min(at, len(frames)), others[which])
    stream = b"".join(frames)
    assert_same(stream, {int(cut * len(stream)) for cut in cuts})


def test_every_byte_of_a_payload_whose_shape_is_known_counts() -> None:
    """Each byte of a payload in turn gets each of some values that mean something else."""
    frames = MANY["jobs"][:20]
    size = len(frames[0])
    for at in range(len(b"....\x84\xa1p\x82\xabjob_payload"), size):
        for byte in b"\x00\x7f\x80\x90\xa0\xa2\xb0\xc0\xc1\xc2\xc4\xca\xcc\xcf\xd9\xff":
            changed = bytearray(frames[5])
            changed[at] = byte
            assert_same(b"".join([*frames, *frames[:5], bytes(changed), *frames[6:]]), [20 * size])
