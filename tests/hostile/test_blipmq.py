"""BlipMQ: clients that send what no client should. Only they may notice."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.unharmed import Neighbour, drawn, exchange
from tests.hostile.values import TIMES, integers, octets
from tests.wire.broker import KEY, Broker
from wire.blipmq import codec

HANDSHAKE = codec.encode_hello(1) + codec.encode_auth(2, KEY)
U64 = 2**64 - 1


def frame(kind: int, cid: int, payload: bytes) -> bytes:
    """A frame, of whatever type."""
    return struct.pack(">IBQ", 9 + len(payload), kind, cid) + payload


def sized(text: bytes) -> bytes:
    """Bytes behind their length."""
    return len(text).to_bytes(2, "big") + text


IDS = integers(0, U64)
QOS = st.sampled_from((0, 0, 1, 1, 1, 2, 0x7F, 0x80, 0xFF))
PAYLOADS = st.one_of(
    st.builds(lambda qos, topic, body: bytes((qos,)) + sized(topic) + body, QOS, octets(), octets()),
    st.builds(lambda topic, qos: sized(topic) + bytes((qos,)), octets(), QOS),
    st.builds(sized, octets()),
    IDS.map(lambda id: id.to_bytes(8, "big")),
    octets(),
)
FRAMES = st.builds(
    lambda kind, cid, payload, times: frame(kind, cid, payload) * (times if len(payload) < 2000 else 1),
    st.integers(1, 9), IDS, PAYLOADS, TIMES,
)  # fmt: skip
WRONG = st.one_of(
    st.builds(frame, st.sampled_from((0, 10, 255)), IDS, octets(1000)),
    st.sampled_from((b"\0\0\0\0", b"\0\0\0\x08\x01", b"\xff\xff\xff\xff\x03", b"\x01\0\0\x01\x03", b"\0\0\1")),
)
SESSIONS = st.builds(
    lambda greeting, frames, end: greeting + b"".join(frames) + end,
    st.sampled_from((HANDSHAKE, HANDSHAKE, HANDSHAKE, codec.encode_hello(1), b"")),
    st.lists(FRAMES, max_size=6),
    st.just(b"") | WRONG,
)

#: Inputs that once did harm, or might.
CASES = {
    "the first PUBLISH begins with 0xff": frame(codec.PUBLISH, 7, b"\xff\0\1ax"),
    "the first PUBLISH is empty": frame(codec.PUBLISH, 7, b""),
    "PUBLISH to a topic of 65535 NULs": codec.encode_publish(7, 1, b"\0" * 65535, b""),
    "PUBLISH to a topic of 16383 characters of four bytes": codec.encode_publish(7, 1, "😀".encode() * 16383, b""),
    "PUBLISH to a surrogate": codec.encode_publish(7, 1, b"\xed\xa0\x80", b""),
    "SUBSCRIBE to a topic of 65535 bytes, and PUBLISH": (
        codec.encode_subscribe(7, b"t" * 65535, 1) + codec.encode_publish(8, 1, b"t" * 65535, b"x")
    ),
    "SUBSCRIBE to a topic of nothing printable": codec.encode_subscribe(7, b"\0\x01\xef\xbb\xbf", 1),
    "ACK of every extreme tag of every extreme subscription": b"".join(
        codec.encode_ack(tag, id)
        for tag in (0, 1, 2**31, 2**63 - 1, 2**63, U64)
        for id in (1, 2**31, 2**63 - 1, 2**63, U64)
    ),
    "POLL of every extreme subscription": b"".join(
        codec.encode_poll(7, id) for id in (1, 2**31, 2**32, 2**63 - 1, 2**63, U64)
    ),
    "5000 ACKs of tags that never were": b"".join(codec.encode_ack(tag, 1) for tag in range(5000)),
    "5000 POLLs of subscriptions that never were": b"".join(codec.encode_poll(7, 1 << 40 | n) for n in range(5000)),
    "5000 refused PUBLISHes": codec.encode_publish(7, 1, b"", b"") * 5000,
    "a PUBLISH of the largest size": frame(codec.PUBLISH, 7, b"\1\0\1a" + bytes(codec.MAX_FRAME_SIZE - 13)),
    "a PUBLISH of QoS 0 of the largest size": frame(codec.PUBLISH, 7, b"\0\0\1a" + bytes(codec.MAX_FRAME_SIZE - 13)),
    "a frame one byte over the largest": (codec.MAX_FRAME_SIZE + 1).to_bytes(4, "big") + b"\x03",
    "HELLO and AUTH a thousand times": HANDSHAKE * 1000,
}
KEYS = {
    "the empty key": b"",
    "a key of 65535 bytes": b"k" * 65535,
    "a key of NULs": b"\0" * 100,
    "a key that is no UTF-8": b"\xed\xa0\x80",
    "a key of characters of four bytes": "😀".encode() * 16383,
}

pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_harms_nothing_else(broker: Broker, name: str) -> None:
    exchange(broker.blipmq, HANDSHAKE + CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_before_authentication_harms_nothing_else(broker: Broker, name: str) -> None:
    exchange(broker.blipmq, CASES[name])


@pytest.mark.parametrize("name", KEYS)
def test_a_strange_key_is_refused(broker: Broker, name: str) -> None:
    answer = exchange(broker.blipmq, codec.encode_hello(1) + frame(codec.AUTH, 2, sized(KEYS[name])))
    accepted = codec.encode_ack(1, 0)
    assert answer.startswith(accepted)
    ((kind, cid, payload),) = codec.Decoder().feed(answer[len(accepted) :])
    assert (kind, cid, codec.parse_nack(payload).code) in ((codec.NACK, 2, 400), (codec.NACK, 2, 401))


@drawn
@given(SESSIONS)
def test_a_drawn_session_harms_nothing_else(broker: Broker, neighbour: Neighbour, data: bytes) -> None:
    exchange(broker.blipmq, data)
    neighbour.served()
