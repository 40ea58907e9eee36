"""SSPQ bytes: the published vectors, what is refused and what is skipped, any chunking, any garbage."""

import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.sspq import codec
from wire.sspq.codec import Decoder, Packet, PacketType

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["sspq"]

ENCODED: list[tuple[str, bytes, Packet]] = [
    (VECTORS["SEND retries 1 hello"], codec.encode_send(b"hello", 1), (PacketType.SEND, 1, b"hello")),
    (VECTORS["RECEIVE"], codec.RECEIVE_PACKET, (PacketType.RECEIVE, 0, b"")),
    (VECTORS["CONFIRM"], codec.CONFIRM_PACKET, (PacketType.CONFIRM, 0, b"")),
    (VECTORS["DEAD_RECEIVE"], codec.DEAD_RECEIVE_PACKET, (PacketType.DEAD_RECEIVE, 0, b"")),
    (VECTORS["NO_RECEIVE"], codec.NO_RECEIVE_PACKET, (PacketType.NO_RECEIVE, 0, b"")),
    (
        VECTORS["second delivery after a disconnect"],
        codec.encode_send(b"hello", 0),
        (PacketType.SEND, 0, b"hello"),
    ),
]


def test_every_vector_is_covered() -> None:
    assert {vector for vector, _, _ in ENCODED} == set(VECTORS.values())


@pytest.mark.parametrize(("vector", "encoded", "packet"), ENCODED)
def test_the_published_bytes_are_written_and_read(vector: str, encoded: bytes, packet: Packet) -> None:
    assert encoded.hex() == vector
    assert Decoder().feed(bytes.fromhex(vector)) == [packet]


CONFIRM: Packet = (PacketType.CONFIRM, 0, b"")


def header(kind: int, size: int) -> bytes:
    return struct.pack(">HBBI", codec.MAGIC, kind, 0, size)


@pytest.mark.parametrize("start", [b"\x00", b"\x99\x55", b"\x55\x00", b"\x55\x55", b"GET / HTTP/1.1\r\n"])
def test_a_wrong_magic_number_is_refused_at_its_first_wrong_byte(start: bytes) -> None:
    decoder = Decoder()
    assert decoder.feed(codec.CONFIRM_PACKET + start) == [CONFIRM]
    assert decoder.error == f"magic number is 0x{start[:2].hex()}, not 0x5599"
    assert (decoder.pending, decoder.truncated) == (0, False)
    assert decoder.feed(codec.CONFIRM_PACKET) == []


def test_a_send_over_the_maximum_is_refused_from_its_header_alone() -> None:
    decoder = Decoder(5)
    assert decoder.feed(codec.encode_send(b"hello", 3)) == [(codec.SEND, 3, b"hello")]
    decoder.feed(header(codec.SEND, 6)[:7])
    assert decoder.error is None
    decoder.feed(header(codec.SEND, 6)[7:])
    assert decoder.error == "payload of 6 bytes is over 5"


def test_a_send_over_the_maximum_is_refused_also_when_all_of_it_is_there() -> None:
    decoder = Decoder(5)
    assert decoder.feed(codec.encode_send(b"hello!", 3)) == []
    assert decoder.error == "payload of 6 bytes is over 5"


def test_the_largest_send_arrives_whole_in_small_pieces() -> None:
    payload = bytes(range(256)) * (codec.MAX_PAYLOAD // 256)
    packet = codec.encode_send(payload, 255)
    decoder = Decoder()
    packets: list[Packet] = []
    for at in range(0, len(packet), 1000):
        packets += decoder.feed(packet[at : at + 1000])
    assert packets == [(codec.SEND, 255, payload)]
    assert decoder.pending == 0


def test_an_unknown_packet_is_skipped_with_its_payload() -> None:
    decoder = Decoder()
    unknown = header(0xFF, 3) + b"\x55\x99\x5e" + header(0x00, 0)
    assert decoder.feed(unknown + codec.CONFIRM_PACKET) == [CONFIRM]
    assert decoder.error is None


def test_a_huge_unknown_packet_is_not_kept_while_it_passes() -> None:
    decoder = Decoder(10)
    size = 50_000_000
    decoder.feed(header(0x01, size))
    block = bytes(1_000_000)
    for _ in range(size // len(block)):
        assert decoder.feed(block) == []
        assert (decoder.pending, decoder.truncated) == (0, False)
    assert decoder.feed(codec.CONFIRM_PACKET) == [CONFIRM]


@pytest.mark.parametrize("kind", [kind for kind in PacketType if kind is not PacketType.SEND])
def test_the_payload_of_a_packet_that_needs_none_is_dropped(kind: PacketType) -> None:
    decoder = Decoder(1)
    assert decoder.feed(header(kind, 7) + b"ignor") == []
    assert decoder.pending == 0
    assert decoder.feed(b"ed" + codec.CONFIRM_PACKET) == [(kind, 0, b""), CONFIRM]


@pytest.mark.parametrize(("size", "truncated"), [(0, False), (2, False), (3, True), (8, True), (12, True), (13, False)])
def test_a_send_cut_off_by_end_of_stream_is_noticed(size: int, truncated: bool) -> None:
    decoder = Decoder()
    decoder.feed(codec.CONFIRM_PACKET + codec.encode_send(b"hello", 1)[:size])
    assert decoder.truncated is truncated


def test_another_packet_cut_off_is_no_lost_message() -> None:
    decoder = Decoder()
    decoder.feed(codec.RECEIVE_PACKET[:5])
    assert (decoder.pending, decoder.truncated) == (5, False)


@pytest.mark.parametrize("retries", [-1, 256])
def test_a_retry_counter_that_is_no_byte_is_refused(retries: int) -> None:
    with pytest.raises(ValueError, match=r"^no SSPQ packet has these values"):
        codec.encode_send(b"", retries)


packets = st.lists(
    st.one_of(
        st.tuples(st.just(codec.SEND), st.integers(0, 255), st.binary(max_size=40)),
        st.tuples(st.sampled_from([int(kind) for kind in PacketType]), st.integers(0, 255), st.just(b"")),
    ),
    max_size=8,
)
strange = st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=20))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(packets, st.lists(st.integers(0, 400), max_size=10))
def test_any_packets_in_any_pieces_come_out_the_same(sent: list[Packet], cuts: list[int]) -> None:
    decoder = Decoder()
    received: list[Packet] = []
    for piece in pieces(b"".join(codec.encode(*packet) for packet in sent), cuts):
        received += decoder.feed(piece)
    assert received == sent
    assert (decoder.pending, decoder.error) == (0, None)


@given(st.lists(strange, max_size=6), st.binary(max_size=30), st.lists(st.integers(0, 300), max_size=10))
def test_garbage_gives_the_same_packets_and_error_in_any_pieces_and_is_not_hoarded(
    sent: list[Packet], rest: bytes, cuts: list[int]
) -> None:
    data = b"".join(codec.encode(*packet) for packet in sent) + rest
    whole, cut = Decoder(16), Decoder(16)
    expected = whole.feed(data)
    received: list[Packet] = []
    for piece in pieces(data, cuts):
        received += cut.feed(piece)
        assert cut.pending < codec.HEADER_SIZE + 16
    assert received == expected
    assert (cut.error is None) == (whole.error is None)
    assert all(payload == b"" or kind == codec.SEND for kind, _, payload in received)
