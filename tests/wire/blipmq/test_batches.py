"""Runs say the same frames as single ones, in any stream and any pieces; deliveries together are the single ones."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.blipmq import codec
from wire.blipmq.batches import BatchDecoder, FrameBatch, encode_deliveries
from wire.blipmq.codec import Decoder, Frame, FrameType


def assert_same(stream: bytes, cuts: list[int] | None = None, limit: int = codec.MAX_FRAME_SIZE) -> list[FrameBatch]:
    """Read a stream both ways, in the same pieces; returns the runs."""
    single, runs, found = Decoder(limit), BatchDecoder(limit), list[FrameBatch]()
    frames: list[Frame] = []
    for start, stop in pairwise([0, *sorted(min(cut, len(stream)) for cut in cuts or ()), len(stream)]):
        frames += single.feed(stream[start:stop])
        found += runs.feed(stream[start:stop])
        assert (str(runs.error), runs.pending, runs.expected) == (str(single.error), single.pending, single.expected)
    assert [frame for run in found for frame in run.frames()] == frames
    assert [frame for one in found for frame in one.frames()] == frames
    assert all(len(run) == len(run.bodies) for run in found if run.bodies)
    return found


def publishes(count: int, first: int = 7, step: int = 1, topic: bytes = b"demo", size: int = 100) -> bytes:
    return b"".join(codec.encode_publish(first + n * step, 1, topic, b"%d" % n + b"x" * size) for n in range(count))


def acks(count: int, first: int = 1, subscription: int = 42) -> bytes:
    return b"".join(codec.encode_ack(first + n, subscription) for n in range(count))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100, 256, 257, 1024, 3000])
@pytest.mark.parametrize("first", [0, 1, 250, 0xFFF0, 0xFFFF_FFF0, 2**64 - 3000])
def test_a_burst_of_consecutive_tags_is_one_run(count: int, first: int) -> None:
    [run] = assert_same(acks(count, first))
    assert [*run.cids] == [*range(first, first + count)]
    assert run.common == (42).to_bytes(8, "big")


def test_consecutive_tags_are_a_range() -> None:
    [run] = assert_same(acks(1024, 5))
    assert run.cids == range(5, 1029)


@pytest.mark.parametrize("step", [0, 1, 3, 1000])
@pytest.mark.parametrize("topic", [b"demo", b"t" * 61, b"t" * 62, b"t" * 500])
@pytest.mark.parametrize("size", [0, 3000])
def test_publishes_to_one_topic_are_one_run_whatever_their_ids(step: int, topic: bytes, size: int) -> None:
    [run] = assert_same(publishes(150, 2**40, step, topic, size))
    assert (run.kind, len(run)) == (FrameType.PUBLISH, 150)
    assert codec.parse_publish(run.common) == (1, topic, b"")


def test_what_differs_is_another_run() -> None:
    stream = publishes(40) + publishes(40, topic=b"dem0") + acks(40) + acks(40, subscription=43)
    polls = codec.encode_poll(1, 43) * 40
    runs = assert_same(stream + polls + codec.encode_ping(1) * 2 + polls)
    assert [len(run) for run in runs] == [40, 40, 40, 40, 40, 1, 1, 40]


def test_bodies_of_all_lengths_are_one_run() -> None:
    stream = b"".join(codec.encode_publish(n, 1, b"demo", b"x" * (n % 5)) for n in range(200))
    [run] = assert_same(stream + publishes(100) + stream)
    assert len(run) == 500


@pytest.mark.parametrize("topic", [b"demo", b""])
def test_a_burst_of_empty_messages_loses_none(topic: bytes) -> None:
    [run] = assert_same(b"".join(codec.encode_publish(n, 1, topic, b"") for n in range(100)))
    assert (len(run), run.bodies) == (100, [b""] * 100)


def test_a_publish_without_a_whole_topic_goes_with_no_other() -> None:
    bad = codec.encode(FrameType.PUBLISH, 1, b"\1\0")
    [*runs] = assert_same(bad * 2 + publishes(2) + bad + codec.encode(FrameType.PUBLISH, 1, b"\1\0\5dem"))
    assert [len(run) for run in runs] == [1, 1, 2, 1, 1]


def test_bodies_that_look_like_headers_are_bodies() -> None:
    head = struct.pack(">IB", 29, FrameType.PUBLISH)
    assert len(assert_same(b"".join(codec.encode_publish(n, 1, b"demo", head + b"\0" * 8) for n in range(40)))) == 1
    assert_same(codec.encode_publish(1, 1, b"demo", codec.encode_ack(1, 42) * 100) + acks(20))
    assert_same((codec.encode_ack(1, 42) + codec.encode_poll(1, 42)) * 100)


#: Few kinds and few payloads, so that runs come about.
drawn_frames = st.lists(
    st.one_of(
        st.builds(
            lambda kind, first, payload, count: b"".join(codec.encode(kind, first + n, payload) for n in range(count)),
            st.sampled_from([int(kind) for kind in FrameType]), st.integers(0, 2**64 - 60),
            st.one_of(st.sampled_from([b"", b"\1\0\1t", b"\1\0\1tbody", b"\0" * 7 + b"\5"]), st.binary(max_size=30)),
            st.integers(1, 50),
        ),
        st.builds(acks, st.integers(1, 50), st.sampled_from([1, 0xFFF0, 2**40]), st.sampled_from([1, 42])),
        st.builds(publishes, st.integers(1, 50), size=st.integers(0, 3)),
        st.binary(max_size=3),
    ),
    max_size=6,
).map(b"".join)  # fmt: skip


@given(drawn_frames, st.lists(st.integers(0, 4000), max_size=5), st.sampled_from([64, 1 << 20]))
def test_any_stream_gives_the_same_frames_and_error_in_any_pieces(data: bytes, cuts: list[int], limit: int) -> None:
    assert_same(data, cuts, limit)


PREFIX = codec.delivery_prefix(1, b"demo")


@pytest.mark.parametrize("first", [1, 0xFFF0, 0xFFFF, 2**40])
@pytest.mark.parametrize("sizes", [[100] * 40, [0] * 40, [5], [*range(40)], [100] * 39 + [99]])
def test_deliveries_together_are_the_single_ones(first: int, sizes: list[int]) -> None:
    bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
    tags = range(first, first + len(bodies))
    single = b"".join(codec.encode_delivery(tag, PREFIX, body) for tag, body in zip(tags, bodies, strict=True))
    assert encode_deliveries(tags, PREFIX, bodies) == single
    assert encode_deliveries([*tags], PREFIX, bodies) == single
