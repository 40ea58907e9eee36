"""SSPQ: clients that send what no client should. Only they may notice."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.unharmed import Neighbour, drawn, exchange
from tests.hostile.values import TIMES, octets
from tests.wire.broker import Broker
from wire.sspq import codec

BYTE = st.sampled_from((0, 1, 2, 3, 127, 128, 254, 255)) | st.integers(0, 255)
KINDS = st.sampled_from(tuple(int(kind) for kind in codec.PacketType)) | BYTE
PACKETS = st.builds(
    lambda kind, retries, payload, times: codec.encode(kind, retries, payload) * (times if len(payload) < 2000 else 1),
    KINDS, BYTE, octets(), TIMES,
)  # fmt: skip
CLAIMED = st.builds(
    lambda kind, size: struct.pack(">HBBI", codec.MAGIC, kind, 0, size) + b"cut off",
    KINDS, st.sampled_from((1, 65536, codec.MAX_PAYLOAD, codec.MAX_PAYLOAD + 1, 2**31, 2**32 - 1)),
)  # fmt: skip
SESSIONS = st.builds(
    lambda packets, end: b"".join(packets) + end, st.lists(PACKETS, max_size=6), CLAIMED | octets(1000) | st.just(b"")
)

#: Inputs that once did harm, or might.
CASES = {
    "a SEND of the largest size": codec.encode_send(bytes(codec.MAX_PAYLOAD), 0),
    "a SEND one byte over the largest": struct.pack(">HBBI", codec.MAGIC, codec.SEND, 0, codec.MAX_PAYLOAD + 1),
    "4 GiB of a type that is skipped, cut off": struct.pack(">HBBI", codec.MAGIC, 0xFF, 0, 2**32 - 1) + b"x" * 100,
    "a RECEIVE with 4 GiB of payload, cut off": struct.pack(">HBBI", codec.MAGIC, codec.RECEIVE, 0, 2**32 - 1),
    "every retry counter": b"".join(codec.encode_send(b"x", retries) for retries in range(256)),
    "5000 CONFIRMs of nothing": codec.CONFIRM_PACKET * 5000,
    "5000 RECEIVEs": codec.RECEIVE_PACKET * 5000,
    "SEND, RECEIVE and CONFIRM 2000 times": (
        (codec.encode_send(b"x", 255) + codec.RECEIVE_PACKET + codec.CONFIRM_PACKET) * 2000
    ),
    "DEAD_RECEIVE and CONFIRM 2000 times": (codec.DEAD_RECEIVE_PACKET + codec.CONFIRM_PACKET) * 2000,
    "a wrong magic number behind 1000 SENDs": codec.encode_send(b"x", 255) * 1000 + b"\x55\x98",
}

pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_harms_nothing_else(broker: Broker, name: str) -> None:
    exchange(broker.sspq, CASES[name])


@drawn
@given(SESSIONS)
def test_a_drawn_session_harms_nothing_else(broker: Broker, neighbour: Neighbour, data: bytes) -> None:
    exchange(broker.sspq, data)
    neighbour.served()
