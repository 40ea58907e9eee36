"""Deliveries that are encoded once for several subscribers are those that each would be sent by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wire.blipmq.batches import SharedDeliveries, encode_deliveries
from wire.blipmq.codec import delivery_prefix

near = st.integers((1 << 16) - 40, (1 << 16) + 40)
starts = st.one_of(st.integers(1, 300), near, st.integers(1 << 40, (1 << 40) + 9))
topics = st.sampled_from([b"t", b"topic"])


@given(
    st.one_of(st.integers(1, 40).flatmap(lambda count: st.just([b"x" * 9] * count)), st.lists(st.binary(), min_size=1)),
    starts, starts, topics, topics, st.booleans(),
)  # fmt: skip
def test_they_are_what_each_subscriber_would_be_sent_alone(
    bodies: list[bytes], first: int, other: int, topic: bytes, other_topic: bytes, listed: bool
) -> None:
    tags, others = range(first, first + len(bodies)), range(other, other + len(bodies))
    prefix, other_prefix = delivery_prefix(1, topic), delivery_prefix(1, other_topic)
    made = SharedDeliveries(tags, prefix, bodies)
    before = encode_deliveries(tags, prefix, bodies)
    assert made.to(tags, prefix) == made.frames == before
    found = made.to([*others] if listed else others, other_prefix)
    assert found is None or found == encode_deliveries(others, other_prefix, bodies)
    assert made.frames == before


def test_subscribers_with_the_same_tags_are_sent_the_same_bytes() -> None:
    made = SharedDeliveries(range(1, 21), delivery_prefix(1, b"t"), [b"x"] * 20)
    assert made.to(range(1, 21), delivery_prefix(1, b"t")) is made.frames


def test_frames_of_one_length_are_only_given_other_tags() -> None:
    prefix = delivery_prefix(1, b"t")
    made = SharedDeliveries(range(1, 21), prefix, [b"x"] * 20)
    assert made.to(range(300, 320), prefix) == encode_deliveries(range(300, 320), prefix, [b"x"] * 20)
    assert made.to(range(300, 320), delivery_prefix(1, b"u")) is None
    assert made.to(range(1 << 16, (1 << 16) + 20), prefix) is None
    assert SharedDeliveries(range(1, 3), prefix, [b"x", b"yy"]).to(range(2, 4), prefix) is None
