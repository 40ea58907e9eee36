"""Content types of what Django code publishes."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.api import InvalidMessage, publish
from queues.formats.contents import NoSuchContent, canonical_msgpack, json_of_msgpack, msgpack_of_json
from queues.models import Content, Message
from queues.operations.queues import create_queue


@pytest.mark.parametrize("value", [None, True, -(2**63), 2**63 - 1, "ä", b"\xff", [1, [2]], {"a": {"b": []}}])
def test_values_that_every_consumer_can_read_are_msgpack(value: object) -> None:
    assert msgpack.unpackb(canonical_msgpack(msgpack.packb(value))) == value


def test_maps_are_sorted_and_everything_is_as_short_as_it_goes() -> None:
    body = b"\x82\xa1b\xcd\x00\x01\xd9\x01a\xde\x00\x02\xa1z\x01\xa1y\x02"
    assert canonical_msgpack(body) == msgpack.packb({"a": {"y": 2, "z": 1}, "b": 1})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (msgpack.packb({"a": [1.5]}), "a float: 1.5"),
        (msgpack.packb(2**63), "more than 64 bits"),
        (msgpack.packb({"a": {1: 2}}), "int is not allowed for map key"),
        (msgpack.packb({b"a": 2}), "keys that are no text"),
        (msgpack.packb(msgpack.ExtType(5, b"x")), "extension value"),
        (b"\x01\x02", "not valid MessagePack"),
        (b"", "not valid MessagePack"),
        (b"\x91" * 70 + b"\x01", "nested more than 62 deep"),
    ],
)
def test_values_that_some_consumer_cannot_read_are_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(NoSuchContent) as refused:
        canonical_msgpack(body)
    assert problem in str(refused.value)


@pytest.mark.django_db
def test_a_message_keeps_its_content_type_and_its_priority() -> None:
    create_queue("q")
    publish("q", b"{}", content_type="application/json", priority=3)
    publish("q", b"\x80", content_type="application/msgpack")
    publish("q", b"bytes")
    rows = Message.objects.order_by("id")
    assert [row.content for row in rows] == [Content.JSON, Content.MSGPACK, None]
    assert [-(row.id >> 56) for row in rows] == [3, 0, 0]
    for wrong in ({"content_type": "text/plain"}, {"priority": 101}, {"priority": True}):
        with pytest.raises(InvalidMessage):
            publish("q", b"", **wrong)
    with pytest.raises(InvalidMessage, match="it has a float"):
        publish("q", msgpack.packb(0.5), content_type="application/msgpack")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_a_value_that_json_can_carry_comes_back_from_it(value: object) -> None:
    body = canonical_msgpack(msgpack.packb(value))
    text = json_of_msgpack(body)
    assert text is not None
    assert msgpack_of_json(text) == body


@pytest.mark.parametrize("value", [b"\xff", {"a": [b""]}, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1), {1: 2}, 1.5])
def test_a_value_that_json_cannot_carry_is_no_json(value: object) -> None:
    assert json_of_msgpack(msgpack.packb(value)) is None


@pytest.mark.parametrize("text", ["{", "", "[1.5]", "NaN", str(1 << 64), '"\\ud800"', "[" * 5000, "9" * 5000])
def test_json_that_is_no_message_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(NoSuchContent, match="it "):
        msgpack_of_json(text)
