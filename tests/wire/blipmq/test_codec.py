"""BlipMQ bytes: the published vectors, every rule of the framing, any chunking, any garbage."""

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.blipmq import codec
from wire.blipmq.codec import Decoder, Frame, FrameTooLarge, FrameType, PayloadError, Reject

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["blipmq"]
SEED, MORE = VECTORS["seed"], VECTORS["more"]

ENCODED = [
    (SEED["HELLO v1 cid 1"], codec.encode_hello(1)),
    (SEED["AUTH dev-key cid 2"], codec.encode_auth(2, "dev-key")),
    (SEED["SUBSCRIBE demo qos1 cid 3"], codec.encode_subscribe(3, b"demo", 1)),
    (SEED["PUBLISH demo qos1 hi cid 4"], codec.encode_publish(4, 1, b"demo", b"hi")),
    (SEED["ACK sub 42 cid 3"], codec.encode_ack(3, 42)),
    (MORE["bad PUBLISH cid 400 (empty topic)"], codec.encode_publish(400, 7, b"", b"")),
    (MORE["ACK(0) cid 1"], codec.encode_ack(1, 0)),
    (MORE["NACK 426 cid 1"], codec.encode_nack(1, *codec.UNSUPPORTED_VERSION)),
    (MORE["NACK 401 unauthenticated cid 9"], codec.encode_nack(9, *codec.UNAUTHENTICATED)),
    (MORE["NACK 404 cid 12345"], codec.encode_nack(12345, *codec.UNKNOWN_DELIVERY)),
    (MORE["POLL sub 42 cid 5"], codec.encode_poll(5, 42)),
    (MORE["delivery qos1 tag 1 demo hi"], codec.encode_delivery(1, codec.delivery_prefix(1, b"demo"), b"hi")),
]


def test_every_vector_is_covered() -> None:
    assert {vector for vector, _ in ENCODED} == {*SEED.values(), *MORE.values()}


@pytest.mark.parametrize(("vector", "encoded"), ENCODED)
def test_encoding_gives_the_published_bytes(vector: str, encoded: bytes) -> None:
    assert encoded.hex() == vector


PARSED: list[tuple[str, int, int, Callable[[bytes], Any], Any]] = [
    (SEED["HELLO v1 cid 1"], FrameType.HELLO, 1, codec.parse_hello, 1),
    (SEED["AUTH dev-key cid 2"], FrameType.AUTH, 2, codec.parse_auth, "dev-key"),
    (SEED["SUBSCRIBE demo qos1 cid 3"], FrameType.SUBSCRIBE, 3, codec.parse_subscribe, (b"demo", 1)),
    (SEED["PUBLISH demo qos1 hi cid 4"], FrameType.PUBLISH, 4, codec.parse_publish, (1, b"demo", b"hi")),
    (SEED["ACK sub 42 cid 3"], FrameType.ACK, 3, codec.parse_ack, 42),
    (MORE["ACK(0) cid 1"], FrameType.ACK, 1, codec.parse_accepted, 0),
    (MORE["NACK 426 cid 1"], FrameType.NACK, 1, codec.parse_nack, codec.UNSUPPORTED_VERSION),
    (MORE["NACK 401 unauthenticated cid 9"], FrameType.NACK, 9, codec.parse_nack, codec.UNAUTHENTICATED),
    (MORE["NACK 404 cid 12345"], FrameType.NACK, 12345, codec.parse_nack, codec.UNKNOWN_DELIVERY),
    (MORE["POLL sub 42 cid 5"], FrameType.POLL, 5, codec.parse_poll, 42),
    (MORE["delivery qos1 tag 1 demo hi"], FrameType.PUBLISH, 1, codec.parse_delivery, (1, b"demo", b"hi")),
]


@pytest.mark.parametrize(("vector", "kind", "correlation_id", "parse", "meaning"), PARSED)
def test_decoding_reads_the_published_bytes(
    vector: str, kind: int, correlation_id: int, parse: Callable[[bytes], Any], meaning: Any
) -> None:
    [(got_kind, got_id, payload)] = Decoder().feed(bytes.fromhex(vector))
    assert (got_kind, got_id, parse(payload)) == (kind, correlation_id, meaning)


def test_the_published_bad_publish_is_refused_for_its_topic_before_its_qos() -> None:
    [(_, correlation_id, payload)] = Decoder().feed(bytes.fromhex(MORE["bad PUBLISH cid 400 (empty topic)"]))
    with pytest.raises(PayloadError, match=r"^empty topic$"):
        codec.parse_publish(payload)
    assert correlation_id == 400


def test_ping_and_pong_are_empty_and_echo_the_id() -> None:
    assert codec.encode_ping(0xABCD).hex() == "0000000907000000000000abcd"
    assert codec.encode_pong(0xABCD).hex() == "0000000908000000000000abcd"


PING = codec.encode_ping(7)
A_PING: Frame = (FrameType.PING, 7, b"")

BROKEN = [
    (b"\0\0\0\0", "frame length 0 is not in 9..16777216"),
    (b"\0\0\0\x08", "frame length 8 is not in 9..16777216"),
    (b"\x01\0\0\x01", "frame length 16777217 is not in 9..16777216"),
    (b"\xff\xff\xff\xff", "frame length 4294967295 is not in 9..16777216"),
    (b"\0\0\0\x09\x00", "unknown frame type 0x00"),
    (b"\0\0\0\x09\x0a", "unknown frame type 0x0a"),
    (b"\0\0\0\x09\xff" + bytes(8), "unknown frame type 0xff"),
]


@pytest.mark.parametrize(("start", "message"), BROKEN)
def test_a_broken_frame_is_refused_at_its_first_wrong_byte(start: bytes, message: str) -> None:
    decoder = Decoder()
    assert decoder.feed(PING + start) == [A_PING]
    assert decoder.error == message
    assert decoder.pending == 0


@pytest.mark.parametrize(("start", "message"), BROKEN)
def test_a_broken_frame_is_not_refused_before_its_first_wrong_byte(start: bytes, message: str) -> None:
    decoder = Decoder()
    decoder.feed(start[: 4 if "type" in message else 3])
    assert decoder.error is None


def test_nothing_is_decoded_after_an_error() -> None:
    decoder = Decoder()
    decoder.feed(b"\0\0\0\0")
    assert decoder.feed(PING) == []
    assert decoder.error is not None


def test_the_largest_frame_arrives_whole_in_small_pieces() -> None:
    body = bytes(range(256)) * (codec.MAX_FRAME_SIZE // 256 - 1)
    frame = codec.encode(codec.PUBLISH, 1, body + bytes(256 - codec.MIN_LENGTH))
    assert len(frame) == codec.MAX_FRAME_SIZE + codec.LENGTH_SIZE
    decoder = Decoder()
    frames: list[Frame] = []
    for at in range(0, len(frame), 1000):
        frames += decoder.feed(frame[at : at + 1000])
    assert frames == [(codec.PUBLISH, 1, frame[codec.HEADER_SIZE :])]
    assert (decoder.pending, decoder.error) == (0, None)


def test_a_smaller_limit_is_obeyed() -> None:
    decoder = Decoder(20)
    assert decoder.feed(codec.encode(codec.PUBLISH, 1, bytes(11))) == [(codec.PUBLISH, 1, bytes(11))]
    assert decoder.feed(codec.encode(codec.PUBLISH, 1, bytes(12))) == []
    assert decoder.error == "frame length 21 is not in 9..20"


def test_pending_shows_a_frame_cut_off() -> None:
    decoder = Decoder()
    decoder.feed(PING + PING[:6])
    assert decoder.pending == 6
    assert decoder.feed(PING[6:]) == [A_PING]
    assert decoder.pending == 0


frames = st.lists(
    st.tuples(st.sampled_from([int(kind) for kind in FrameType]), st.integers(0, 2**64 - 1), st.binary(max_size=40)),
    max_size=8,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(frames, st.lists(st.integers(0, 400), max_size=10))
def test_any_frames_in_any_pieces_come_out_the_same(sent: list[Frame], cuts: list[int]) -> None:
    decoder = Decoder()
    received: list[Frame] = []
    for piece in pieces(b"".join(codec.encode(*frame) for frame in sent), cuts):
        received += decoder.feed(piece)
    assert received == sent
    assert (decoder.pending, decoder.error) == (0, None)


garbage = st.one_of(
    st.binary(max_size=200),
    st.tuples(frames, st.binary(max_size=30)).map(
        lambda drawn: b"".join(codec.encode(*frame) for frame in drawn[0]) + drawn[1]
    ),
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.binary(max_size=80)).map(
        lambda drawn: struct.pack(">IB", drawn[0], drawn[1]) + drawn[2]
    ),
)


@given(garbage, st.lists(st.integers(0, 300), max_size=10))
def test_garbage_gives_the_same_frames_and_error_in_any_pieces_and_is_not_hoarded(data: bytes, cuts: list[int]) -> None:
    whole, cut = Decoder(64), Decoder(64)
    expected = whole.feed(data)
    received: list[Frame] = []
    for piece in pieces(data, cuts):
        received += cut.feed(piece)
        assert cut.pending < codec.LENGTH_SIZE + 64
    assert received == expected
    assert str(cut.error) == str(whole.error)
    assert cut.pending == whole.pending


@given(st.binary(max_size=60))
def test_any_payload_is_parsed_or_refused_with_a_documented_message(payload: bytes) -> None:
    documented = {
        "empty topic",
        "invalid QoS value",
        "subscription_id must be non-zero",
        *(f"invalid {kind} payload" for kind in ("HELLO", "AUTH", "PUBLISH", "SUBSCRIBE", "ACK", "NACK", "POLL")),
    }
    for parse in (
        codec.parse_hello,
        codec.parse_auth,
        codec.parse_publish,
        codec.parse_subscribe,
        codec.parse_ack,
        codec.parse_nack,
        codec.parse_poll,
    ):
        refused: list[PayloadError] = []
        try:
            parse(payload)
        except PayloadError as error:
            refused.append(error)
        assert all(error.code == 400 and error.message in documented for error in refused)


@given(st.integers(0, 1), st.text(min_size=1, max_size=50), st.binary(max_size=50))
def test_publish_and_subscribe_round_trip(qos: int, topic: str, body: bytes) -> None:
    name = topic.encode()
    decoder = Decoder()
    sent = codec.encode_publish(1, qos, name, body) + codec.encode_subscribe(2, name, qos)
    [(_, _, published), (_, _, subscribed)] = decoder.feed(sent)
    assert codec.parse_publish(published) == (qos, name, body)
    assert codec.parse_subscribe(subscribed) == (name, qos)


@given(st.text(max_size=50), st.integers(0, 0xFFFF), st.text(max_size=50))
def test_auth_and_nack_round_trip(key: str, code: int, message: str) -> None:
    [(_, _, auth), (_, _, nack)] = Decoder().feed(codec.encode_auth(1, key) + codec.encode_nack(2, code, message))
    assert codec.parse_auth(auth) == key
    assert codec.parse_nack(nack) == Reject(code, message)


BAD_PAYLOADS = [
    (codec.parse_hello, "", "invalid HELLO payload"),
    (codec.parse_hello, "01", "invalid HELLO payload"),
    (codec.parse_hello, "000100", "invalid HELLO payload"),
    (codec.parse_auth, "", "invalid AUTH payload"),
    (codec.parse_auth, "00", "invalid AUTH payload"),
    (codec.parse_auth, "000261", "invalid AUTH payload"),
    (codec.parse_auth, "00016161", "invalid AUTH payload"),
    (codec.parse_auth, "0001ff", "invalid AUTH payload"),
    (codec.parse_publish, "", "invalid PUBLISH payload"),
    (codec.parse_publish, "0100", "invalid PUBLISH payload"),
    (codec.parse_publish, "01000261", "invalid PUBLISH payload"),
    (codec.parse_publish, "010001ff", "invalid PUBLISH payload"),
    (codec.parse_publish, "070001ff", "invalid PUBLISH payload"),
    (codec.parse_publish, "010000", "empty topic"),
    (codec.parse_publish, "0200006869", "empty topic"),
    (codec.parse_publish, "0200016168", "invalid QoS value"),
    (codec.parse_subscribe, "", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "0000", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "000161", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "0001ff01", "invalid SUBSCRIBE payload"),
    (codec.parse_subscribe, "000007", "empty topic"),
    (codec.parse_subscribe, "00016102", "invalid QoS value"),
    (codec.parse_ack, "00" * 7, "invalid ACK payload"),
    (codec.parse_ack, "01" * 9, "invalid ACK payload"),
    (codec.parse_ack, "00" * 8, "subscription_id must be non-zero"),
    (codec.parse_poll, "00" * 7, "invalid POLL payload"),
    (codec.parse_poll, "01" * 9, "invalid POLL payload"),
    (codec.parse_poll, "00" * 8, "subscription_id must be non-zero"),
    (codec.parse_accepted, "00" * 7, "invalid ACK payload"),
    (codec.parse_nack, "0190", "invalid NACK payload"),
    (codec.parse_nack, "0190000161" + "61", "invalid NACK payload"),
    (codec.parse_nack, "01900001ff", "invalid NACK payload"),
]


@pytest.mark.parametrize(("parse", "payload", "message"), BAD_PAYLOADS)
def test_a_bad_payload_is_refused_with_the_specified_text(
    parse: Callable[[bytes], Any], payload: str, message: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        parse(bytes.fromhex(payload))
    assert caught.value.reject == Reject(400, message)
    assert str(caught.value) == message


def test_an_empty_message_body_is_legal() -> None:
    assert codec.parse_publish(b"\x00\x00\x01t") == (0, b"t", b"")


def test_bytes_after_a_subscribe_are_ignored() -> None:
    assert codec.parse_subscribe(b"\x00\x01t\x01more") == (b"t", 1)


def test_a_frame_that_no_receiver_would_accept_is_not_sent() -> None:
    largest = codec.MAX_FRAME_SIZE - codec.MIN_LENGTH
    assert len(codec.encode(codec.PUBLISH, 1, bytes(largest))) == codec.MAX_FRAME_SIZE + codec.LENGTH_SIZE
    with pytest.raises(FrameTooLarge, match="16777217"):
        codec.encode(codec.PUBLISH, 1, bytes(largest + 1))


@pytest.mark.parametrize(
    ("encode", "what"),
    [
        (lambda: codec.encode_auth(1, "k" * 65536), "API key"),
        (lambda: codec.encode_subscribe(1, b"t" * 65536, 1), "topic"),
        (lambda: codec.encode_publish(1, 1, b"t" * 65536, b""), "topic"),
    ],
)
def test_a_name_longer_than_its_length_field_is_refused(encode: Callable[[], bytes], what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what} is 65536 bytes long, the most is 65535$"):
        encode()


def test_a_long_nack_message_is_cut_at_a_character() -> None:
    [(_, _, payload)] = Decoder().feed(codec.encode_nack(1, *codec.durable_publish_failed("é" * 40_000)))
    reject = codec.parse_nack(payload)
    assert reject.code == 500
    assert len(reject.message.encode()) == 65534
    assert reject.message == "durable publish failed: " + "é" * 32755
