"""Overhop bytes: the published vectors, every rule of the first tier, any chunking, any garbage."""

import gc
import json
import math
import tracemalloc
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.overhop.reference import Refused, read
from tests.wire.overhop.strategies import INT64, NEARLY, PAYLOADS, RIDS, VALUES
from wire.overhop.codec import decoder as codec
from wire.overhop.codec import encoder
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope
from wire.overhop.codec.encoder import Unencodable, encode
from wire.overhop.codec.msgpack_check import MAX_DEPTH, MAX_ELEMENTS, CodecError, check, is_plain
from wire.overhop.codec.names import Code, Type

VECTORS = json.loads((Path(__file__).parents[3] / "vectors.json").read_text())["overhop"]

ENCODED: list[tuple[str, bytes, OverhopEnvelope]] = [
    (VECTORS["HELLO rid-1"], encode(Type.HELLO, "rid-1", {}), OverhopEnvelope(1, "rid-1", {})),
    (VECTORS["HI rid-1"], encode(Type.HI, "rid-1", {}), OverhopEnvelope(103, "rid-1", {})),
    (VECTORS["REGISTER r2"], encode(Type.REGISTER, "r2", {}), OverhopEnvelope(2, "r2", {})),
    (VECTORS["PING rid-ping"], encode(Type.PING, "rid-ping", {}), OverhopEnvelope(3, "rid-ping", {})),
    (
        VECTORS["ERR rid-e PROTOCOL_VIOLATION 'bad sequence'"],
        encoder.err("rid-e", Code.PROTOCOL_VIOLATION, "bad sequence"),
        OverhopEnvelope(102, "rid-e", {"code": "PROTOCOL_VIOLATION", "msg": "bad sequence"}),
    ),
]
REFUSED = {
    VECTORS["zero length: close"]: "frame length is 0, not 1 to 8388608",
    VECTORS["8 MiB + 1 header: close"]: "frame length is 8388609, not 1 to 8388608",
}
HELLO = encoder.encode(Type.HELLO, "a", {})
HELLO_MESSAGE = OverhopEnvelope(1, "a", {})
ENVELOPE = {"p": {}, "rid": "a", "t": 1, "v": 2}


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def error_of(data: bytes) -> str | None:
    """The decoder's error for `data`. A good frame before it must have been read, and none after it."""
    decoder = Decoder()
    assert decoder.feed(HELLO + data + HELLO)[:1] == [HELLO_MESSAGE]
    if decoder.error is not None:
        assert decoder.feed(HELLO) == []
        assert not decoder.pending
    return decoder.error


def test_every_vector_is_covered() -> None:
    assert {vector for vector, _, _ in ENCODED} | set(REFUSED) == set(VECTORS.values())


@pytest.mark.parametrize(("vector", "encoded", "message"), ENCODED)
def test_the_published_bytes_are_written_and_read(vector: str, encoded: bytes, message: OverhopEnvelope) -> None:
    assert encoded.hex() == vector
    assert Decoder().feed(bytes.fromhex(vector)) == [message]


@pytest.mark.parametrize("vector", REFUSED)
def test_a_wrong_length_is_refused_from_the_header_alone(vector: str) -> None:
    decoder = Decoder()
    assert decoder.feed(HELLO + bytes.fromhex(vector)) == [HELLO_MESSAGE]
    assert (decoder.error, bool(decoder.pending)) == (REFUSED[vector], False)
    assert decoder.feed(HELLO) == []


def test_the_limit_is_the_largest_length_that_is_accepted() -> None:
    body = HELLO[4:]
    assert Decoder(len(body)).feed(HELLO) == [HELLO_MESSAGE]
    decoder = Decoder(len(body) - 1)
    assert decoder.feed(HELLO) == []
    assert decoder.error == f"frame length is {len(body)}, not 1 to {len(body) - 1}"


# The envelope.

BAD_ENVELOPES: list[tuple[Any, str]] = [
    ([], "the envelope is not a map but list"),
    (None, "the envelope is not a map but NoneType"),
    (7, "the envelope is not a map but int"),
    ("text", "the envelope is not a map but str"),
    *(({k: v for k, v in ENVELOPE.items() if k != key}, f"the envelope has no {key!r}") for key in ENVELOPE),
    (ENVELOPE | {"v": "2"}, "'v' is str, not int"),
    (ENVELOPE | {"v": True}, "'v' is bool, not int"),
    (ENVELOPE | {"v": None}, "'v' is NoneType, not int"),
    (ENVELOPE | {"v": 1}, "protocol version is 1, not 2"),
    (ENVELOPE | {"v": 3}, "protocol version is 3, not 2"),
    (ENVELOPE | {"t": "1"}, "'t' is str, not int"),
    (ENVELOPE | {"t": True}, "'t' is bool, not int"),
    (ENVELOPE | {"rid": 7}, "'rid' is int, not str"),
    (ENVELOPE | {"rid": b"a"}, "'rid' is bytes, not str"),
    (ENVELOPE | {"rid": ""}, "the request id is empty"),
    (ENVELOPE | {"p": None}, "'p' is NoneType, not dict"),
    (ENVELOPE | {"p": []}, "'p' is list, not dict"),
]


@pytest.mark.parametrize(("envelope", "error"), BAD_ENVELOPES)
def test_a_wrong_envelope_ends_the_stream(envelope: Any, error: str) -> None:
    assert error_of(frame(msgpack.packb(envelope))) == error


def test_unknown_fields_any_order_and_wide_integers_are_accepted() -> None:
    body = msgpack.packb({"x": [1, {"y": b"z"}], "v": 2, "t": -7, "rid": "ü", "p": {"b": 1, "a": 2**63 - 1}})
    assert Decoder().feed(frame(body)) == [OverhopEnvelope(-7, "ü", {"b": 1, "a": 2**63 - 1})]
    wide = bytes.fromhex("df00000004 db00000001 76 cf0000000000000002 a174 d30000000000000001")
    wide += bytes.fromhex("da0003 726964 d90161 a170 de0000")
    assert Decoder().feed(frame(wide)) == [OverhopEnvelope(1, "a", {})]


def test_the_last_of_equal_keys_counts() -> None:
    body = bytes.fromhex("85 a174 01 a17603 a17080 a3726964a161 a17602")
    assert Decoder().feed(frame(body)) == [HELLO_MESSAGE]


# Values.


def with_value(value: str, key: str = "a178") -> bytes:
    """A frame with these bytes, in hexadecimal, in its payload."""
    return frame(bytes.fromhex("84 a17081" + key + value + "a3726964a161 a17401 a17602"))


BAD_VALUES = {
    "a 32-bit float": (with_value("ca3f800000"), "floats are not allowed"),
    "a 64-bit float": (with_value("cb3ff0000000000000"), "floats are not allowed"),
    "fixext 1": (with_value("d40100"), "extension values are not allowed"),
    "fixext 16": (with_value("d801" + 16 * "00"), "extension values are not allowed"),
    "ext 8": (with_value("c7010100"), "extension values are not allowed"),
    "ext 16": (with_value("c800010100"), "extension values are not allowed"),
    "ext 32": (with_value("c9000000010100"), "extension values are not allowed"),
    "a timestamp": (with_value("d6ff00000000"), "extension values are not allowed"),
    "2**63": (with_value("cf8000000000000000"), "an integer is over 2**63 - 1"),
    "2**64 - 1": (with_value("cfffffffffffffffff"), "an integer is over 2**63 - 1"),
    "a bin key": (with_value("c0", key="c40178"), "a map has a key that is not a string"),
    "an array that claims too much": (
        with_value("dcffff"),
        "a container claims more elements than there are bytes",
    ),
    "half a value": (frame(HELLO[4:-1]), "not MessagePack as Overhop has it"),
    "half a value behind a bin": (frame(with_value("c400")[4:-1]), "ends inside a value"),
    "half a length": (frame(bytes.fromhex("dd00")), "a container claims more elements than there are bytes"),
    "half a uint64": (frame(bytes.fromhex("cf")), "ends inside a value"),
    "half a float": (frame(bytes.fromhex("ca")), "floats are not allowed"),
    "bytes after the map": (frame(HELLO[4:] + b"\xc0"), "not MessagePack as Overhop has it"),
    "bytes after the map, bin in it": (frame(with_value("c400")[4:] + b"\xc0"), "1 bytes after the value"),
    "no UTF-8": (with_value("a1ff"), "not MessagePack as Overhop has it"),
    "a surrogate": (with_value("a3eda080"), "not MessagePack as Overhop has it"),
    "no UTF-8 behind a bin": (with_value("92c400a1ff"), "not MessagePack as Overhop has it"),
    "0xc1": (with_value("c1"), "not MessagePack as Overhop has it"),
    "0xc1 behind a bin": (with_value("92c400c1"), "byte 0xc1 begins no MessagePack value"),
    **{
        f"a key {key}": (with_value("c0", key=key), "not MessagePack as Overhop has it")
        for key in ("01", "ff", "c0", "c2", "90", "80", "cc80", "d3ffffffffffffffff")
    },
    "an integer key behind a bin": (with_value("c400", key="01"), "a map has a key that is not a string"),
    "an array as a key": (with_value("c0", key="dc0000"), "a map has a key that is not a string"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_value_overhop_does_not_have_ends_the_stream(name: str) -> None:
    data, error = BAD_VALUES[name]
    assert (error_of(data) or "").startswith(error)


@pytest.mark.parametrize("ignored", ["cb3ff0000000000000", "81c000", "d40100", "cfffffffffffffffff"])
def test_unknown_fields_are_validated_too(ignored: str) -> None:
    body = bytes.fromhex("85 a178" + ignored + "a17080 a3726964a161 a17401 a17602")
    assert error_of(frame(body)) is not None


@pytest.mark.parametrize("value", ["c4027878", "c50001ff", "c600000000", "cf7fffffffffffffff", "d38000000000000000"])
def test_bin_and_the_whole_of_int64_are_accepted(value: str) -> None:
    (message,) = Decoder().feed(with_value(value))
    assert message.p == {"x": read(bytes.fromhex(value))}


# Bombs.


def nested(depth: int, head: str = "91") -> bytes:
    return with_value(head * (depth - 1) + "c0")


@pytest.mark.parametrize("head", ["91", "81a161", "dc0001", "dd00000001", "de0001a0", "df00000001a0"])
def test_containers_nest_as_deep_as_allowed_and_no_deeper(head: str) -> None:
    inside = MAX_DEPTH - 2  # in the payload, in the envelope
    assert error_of(nested(inside + 1, head)) is None
    assert error_of(nested(inside + 2, head)) == f"containers are nested deeper than {MAX_DEPTH}"


@pytest.mark.parametrize("empty", ["90", "80", "dc0000"])
def test_an_empty_container_is_as_deep_as_any(empty: str) -> None:
    assert error_of(with_value("91" * (MAX_DEPTH - 3) + empty)) is None
    assert error_of(with_value("91" * (MAX_DEPTH - 2) + empty)) == f"containers are nested deeper than {MAX_DEPTH}"


def test_a_frame_has_as_many_elements_as_allowed_and_no_more() -> None:
    around = 10  # the envelope, its four keys and three plain values, the payload, and the key in it
    most = MAX_ELEMENTS - around - 1
    assert error_of(with_value(f"dd{most:08x}" + "c0" * most)) is None
    more = most + 1
    assert error_of(with_value(f"dd{more:08x}" + "c0" * more)) == f"more than {MAX_ELEMENTS} elements"


def test_a_client_may_read_more_and_deeper_than_a_broker() -> None:
    data = with_value("91" * (MAX_DEPTH - 2) + "c0") + with_value(f"dd{MAX_ELEMENTS:08x}" + "c0" * MAX_ELEMENTS)
    decoder = Decoder.for_client()
    assert len(decoder.feed(data)) == 2
    assert decoder.error is None


BOMBS = {
    "arrays in arrays": "91" * 1_000_000,
    "maps in maps": "81a0" * 1_000_000,
    "one array of 2**32 - 1": "ddffffffff",
    "one map of 2**32 - 1": "dfffffffff",
    "arrays that each claim half a million": "dd0007a120" * 200_000,
    "arrays that each claim 65535": "dcffff" * 300_000,
    "maps that each claim 65535": "deffffa0" * 200_000,
    "a million empty arrays": "dd000f4240" + "90" * 1_000_000,
    "a million empty maps": "dd000f4240" + "80" * 1_000_000,
    "many arrays of fifteen": "dd00100000" + ("9f" + "90" * 15) * 65_536,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_anything_is_allocated_for_it(name: str) -> None:
    data = with_value(BOMBS[name])
    decoder = Decoder()
    gc.collect()
    tracemalloc.start()
    try:
        assert decoder.feed(data) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.error is not None
    assert peak < len(data) + 200_000  # the frame itself is cut out once


# Chunks.


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_messages_arrive_whole_in_pieces_of_any_size(size: int) -> None:
    payload = {"job_payload": {"pad": "x" * 500}, "q": "name"}
    data = b"".join(encode(Type.ENQUEUE, f"r{n}", payload) for n in range(20))
    decoder = Decoder()
    messages: list[OverhopEnvelope] = []
    for at in range(0, len(data), size):
        messages += decoder.feed(data[at : at + size])
    assert messages == [OverhopEnvelope(14, f"r{n}", payload) for n in range(20)]
    assert (decoder.error, bool(decoder.pending)) == (None, False)


def test_the_largest_frame_is_read_in_small_pieces() -> None:
    room = codec.MAX_ENVELOPE - len(encode(14, "r", {"x": b"12345" * 20_000})) + 100_000 + 4
    data = encode(14, "r", {"x": b"x" * room})
    assert len(data) == codec.MAX_ENVELOPE + 4
    decoder = Decoder()
    messages: list[OverhopEnvelope] = []
    for at in range(0, len(data), 13):
        messages += decoder.feed(data[at : at + 13])
    assert messages == [OverhopEnvelope(14, "r", {"x": b"x" * room})]


def test_pending_says_whether_a_frame_is_cut_off() -> None:
    decoder = Decoder()
    seen = []
    for byte in HELLO:
        decoder.feed(bytes((byte,)))
        seen.append(bool(decoder.pending))
    assert seen == [True] * (len(HELLO) - 1) + [False]


@given(st.lists(st.tuples(INT64, RIDS, PAYLOADS), max_size=4), st.data())
def test_any_chunking_gives_the_same_messages(sent: list[tuple[int, str, dict[str, Any]]], data: st.DataObject) -> None:
    stream = b"".join(encode(*message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    received: list[OverhopEnvelope] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:stop])
    assert [tuple(message) for message in received] == sent
    assert decoder.error is None


@given(st.lists(st.binary(max_size=60) | NEARLY.map(frame), max_size=5))
def test_garbage_is_refused_or_read_and_nothing_else_happens(chunks: list[bytes]) -> None:
    decoder = Decoder(1000)
    for chunk in chunks:
        before = decoder.error
        messages = decoder.feed(chunk)
        assert all(isinstance(message, OverhopEnvelope) for message in messages)
        assert before is None or (not messages and decoder.error == before)


# The fast way and the exact way.


def accepted(data: bytes) -> bool:
    try:
        read(data)
    except Refused:
        return False
    return True


@settings(max_examples=10 * settings().max_examples)
@given(NEARLY | VALUES.map(msgpack.packb) | st.tuples(VALUES.map(msgpack.packb), st.binary(max_size=3)).map(b"".join))
def test_both_ways_accept_exactly_what_a_plain_reader_accepts(data: bytes) -> None:
    try:
        check(data)
        exact = True
        msgpack.unpackb(data)
    except ValueError:
        exact = False
    assert exact == accepted(data)
    if is_plain(data, MAX_DEPTH):
        try:
            msgpack.unpackb(data)
            plain = True
        except ValueError:
            plain = False
        assert plain == exact


@given(NEARLY)
def test_a_value_is_decoded_as_a_plain_reader_does_or_refused(data: bytes) -> None:
    if accepted(data):
        assert codec.decode_value(data) == read(data)
    else:
        with pytest.raises(CodecError):
            codec.decode_value(data)


# Writing.


def sorted_everywhere(value: Any) -> Any:
    if isinstance(value, dict):
        assert list(value) == sorted(value)
        return {key: sorted_everywhere(item) for key, item in value.items()}
    return [sorted_everywhere(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_a_value_comes_back_with_its_maps_sorted(value: Any) -> None:
    data = encoder.encode_value(value)
    assert sorted_everywhere(codec.decode_value(data)) == value
    assert encoder.encode_value(codec.decode_value(data)) == data


def test_equal_values_give_equal_bytes() -> None:
    assert encoder.encode_value({"b": [{"d": 1, "c": 2}], "a": 0}) == bytes.fromhex("82a16100a1629182a16302a16401")
    assert encoder.encode_value({"a": 0, "b": ({"c": 2, "d": 1},)}) == bytes.fromhex("82a16100a1629182a16302a16401")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *[(127, "7f"), (128, "cc80"), (256, "cd0100"), (65536, "ce00010000"), (2**63 - 1, "cf7fffffffffffffff")],
        *[(-32, "e0"), (-33, "d0df"), (-129, "d1ff7f"), (-32769, "d2ffff7fff"), (-(2**63), "d38000000000000000")],
        *[(b"\0", "c40100"), (bytearray(b"a"), "c40161"), (memoryview(b"b"), "c40162")],
        *[(Type.OK, "65"), (True, "c3"), (None, "c0")],
    ],
)
def test_integers_are_as_short_as_they_go_and_bytes_are_bin(value: object, written: str) -> None:
    assert encoder.encode_value(value).hex() == written


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize("value", [Colour.RED, {Colour.RED: Colour.RED}])
def test_an_enumeration_is_written_as_its_value(value: object) -> None:
    assert codec.decode_value(encoder.encode_value(value)) in ("red", {"red": "red"})


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)

UNENCODABLE: list[tuple[Any, str]] = [
    (1.5, "Overhop has no floats: 1.5; send an integer or text"),
    ([{"a": math.nan}], "Overhop has no floats: nan; send an integer or text"),
    (2**63, "an integer is outside int64"),
    (-(2**63) - 1, "an integer is outside int64"),
    ({"a": {1: 2}}, "a map's keys are strings, not int: 1"),
    ({b"a": 2}, "a map's keys are strings, not bytes: b'a'"),
    ({None: 2, "a": 1}, "a map's keys are strings, not NoneType: None"),
    (msgpack.ExtType(1, b""), "Overhop has no extension values"),
    (msgpack.Timestamp(1), "Overhop has no Timestamp: send text, or bytes"),
    (datetime(2026, 1, 1), "Overhop has no datetime: send text, or bytes"),
    ({1, 2}, "Overhop has no set: send text, or bytes"),
    ("\ud800", "text that is no UTF-8: surrogates not allowed"),
    (RECURSIVE, "containers are nested too deep"),
    ([0] * MAX_ELEMENTS, f"more than {MAX_ELEMENTS} elements"),
]


@pytest.mark.parametrize(("value", "error"), UNENCODABLE)
def test_values_that_overhop_lacks_are_refused_with_the_reason(value: Any, error: str) -> None:
    with pytest.raises(Unencodable) as refusal:
        encoder.encode_value(value)
    assert str(refusal.value) == error


def wrapped(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


def test_encoded_values_are_never_too_deep_to_be_forwarded() -> None:
    deepest = wrapped(encoder.VALUE_DEPTH)
    encoder.encode_value(deepest)
    with pytest.raises(Unencodable):
        encoder.encode_value(wrapped(encoder.VALUE_DEPTH + 1))
    decoder = Decoder()
    assert decoder.feed(encode(Type.ENQUEUE, "r", {"job_payload": deepest})) != []
    with pytest.raises(Unencodable):
        encode(Type.ENQUEUE, "r", {"job_payload": [deepest]})
    client = Decoder.for_client()
    assert client.feed(encoder.ok("r", {"jobs": [{"payload": deepest}]})) != []


@pytest.mark.parametrize(
    ("t", "rid", "p"), [(1, "", {}), (2**63, "a", {}), (1, "\ud800", {}), (1, "a", {"x": 1.0}), (1, "a", [])]
)
def test_an_envelope_that_would_be_refused_is_not_written(t: int, rid: str, p: Any) -> None:
    with pytest.raises(Unencodable):
        encode(t, rid, p)


def test_an_unacceptable_envelope_is_not_written() -> None:
    with pytest.raises(Unencodable) as refusal:
        encoder.encode_packed(1, "a", b"x" * encoder.ENVELOPE_LIMIT)
    assert str(refusal.value) == f"an envelope of {encoder.ENVELOPE_LIMIT + 15} bytes is over {encoder.ENVELOPE_LIMIT}"


@pytest.mark.parametrize("rid", ["a", "é", "x" * 31, "x" * 32, "é" * 16, "x" * 300, "x" * 70_000])
def test_a_request_id_of_any_length_comes_back(rid: str) -> None:
    data = encoder.ok(rid)
    assert data[4:] == msgpack.packb({"p": {}, "rid": rid, "t": 101, "v": 2})
    assert Decoder().feed(data) == [OverhopEnvelope(101, rid, {})]


def test_an_answer_carries_what_it_is_given() -> None:
    assert Decoder().feed(encoder.ok("r", {"jid": "q:1"})) == [OverhopEnvelope(101, "r", {"jid": "q:1"})]
    (message,) = Decoder().feed(encoder.err("r", Code.QUEUE_FULL, "full"))
    assert message == OverhopEnvelope(102, "r", {"code": "QUEUE_FULL", "msg": "full"})


def in_order(p: bytes, rid: bytes, t: int) -> bytes:
    """A frame whose payload comes first, as most clients write it."""
    body = b"\x84\xa1p" + p + b"\xa3rid" + rid + b"\xa1t" + bytes((t,)) + b"\xa1v\x02"
    return len(body).to_bytes(4, "big") + body


JID = b"\x81\xa3jid\xd9"


@pytest.mark.parametrize(
    "p",
    [
        JID + b"\x28" + b"j" * 40,
        JID + b"\x03" + b"j" * 3,
        JID + b"\x28" + b"\xff" * 40,
        JID + b"\xff" + b"j" * 40,
        JID,
        b"\x82\xabjob_payload\x81\xa1a\x01\xa1q\xa4jobs",
        b"\x82\xabjob_payload\x81\xa1a\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xa1q\xa4jobs",
        b"\x82\xabjob_payload\x81\xa1a\xa1q\xa4jobs",
        b"\x82\xabjob_payload\x01\x02\xa1q\xa4jobs",
        b"\x82\xabjob_payload\xa1\xff\xa1q\xa4jobs",
        b"\x82\xabjob_payload\xc0\xa1q\xa5other",
        b"\x82\xabjob_payload\xa1q\xa1q\xa4jobs",
        b"\x82\xabjob_payload" + b"\x91" * 70 + b"\x01\xa1q\xa4jobs",
        b"\x83\xabjob_payload\x01\xa1q\xa4jobs\xa3key\xa1k",
    ],
)
@pytest.mark.parametrize(("rid", "t"), [(b"\xa1b", 20), (b"\xa1b", 14), (b"\xa0", 20), (b"\xa2\xff\xfe", 14)])
def test_earlier_frames_do_not_change_how_a_decoder_reads(p: bytes, rid: bytes, t: int) -> None:
    first = Decoder()
    expected = first.feed(in_order(p, rid, t))
    taught = Decoder()
    lessons = [
        in_order(JID + b"\x28" + b"x" * 40, b"\xa1b", 20),
        in_order(JID + b"\x28" + b"x" * 40, b"\xa1b", 14),
        in_order(b"\x82\xabjob_payload\x01\xa1q\xa4jobs", b"\xa1b", t),
    ]
    assert len(taught.feed(b"".join(lessons))) == 3
    assert taught.feed(in_order(p, rid, t)) == expected
    assert (taught.error is None) == (first.error is None)
