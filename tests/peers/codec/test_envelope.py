"""Envelopes: their text, refusals, ids and times."""

import datetime
import json
import re
import uuid
from typing import Any

import pytest
from hypothesis import given

from peers.codec import envelope, signing
from peers.codec.envelope import Envelope, Stamps, build, encode, timestamp
from peers.codec.frames import deliver_frame, parse_frame
from peers.errors import InvalidEnvelope, MessageTooLarge, WeakSecret
from tests.peers.strategies import texts, values
from tests.peers.vectors import FIRST, SECRET, SIGNED

FIELD_NAMES = ["protocol_version", "id", "from", "to", "ts", "source", "kind", "body", "hmac"]


def written(body: bytes = b"null", **given: Any) -> Envelope:
    return build(**{"sender": "alice", "to": "bob", "secret": SECRET} | given, body=body)


def test_an_envelope_is_written_as_the_first_implementation_writes_it() -> None:
    assert written(
        b'{"hello": "world"}', id="01HZ0000000000000000000000", ts="2026-05-18T12:00:00Z"
    ).text.decode() == FIRST.replace("}}", f'}},"hmac":"{SIGNED[0].hmac}"}}')


def test_every_field_is_there_in_its_order() -> None:
    text = written(b"[1]", source="", id="1", ts="").text
    assert list(json.loads(text)) == FIELD_NAMES


def test_an_envelope_to_everybody_is_a_broadcast() -> None:
    broadcast = written(to="*")
    assert (broadcast.kind, broadcast.is_broadcast, json.loads(broadcast.text)["kind"]) == (
        "broadcast",
        True,
        "broadcast",
    )
    assert (written().kind, written().is_broadcast) == ("msg", False)


def test_without_a_secret_the_signature_is_empty() -> None:
    assert json.loads(written(secret=None).text)["hmac"] == ""


@given(body=values, sender=texts.filter(bool), source=texts)
def test_a_written_envelope_is_read_the_same(body: Any, sender: str, source: str) -> None:
    sent = written(encode(body), sender=sender, source=source)
    assert parse_frame(sent.text) == sent
    assert (sent.body, sent.sender, sent.source) == (body, sender, source)
    assert signing.verify(sent.text, SECRET)


def test_the_signed_bytes_are_found_by_verbatim_splicing() -> None:
    sent = written(b'{"a": "<b>"}')
    assert sent.raw_body == b'{"a":"\\u003cb\\u003e"}'
    assert sent.text.startswith(signing.canonical({}, b"")[:20])


def test_a_body_is_what_was_received_byte_for_byte() -> None:
    received = parse_frame(b'{"protocol_version":"v1","id":"1","to":"b","body": { "a" :1.0 } }')
    assert isinstance(received, Envelope)
    assert (received.raw_body, received.body) == (b'{ "a" :1.0 }', {"a": 1.0})


def test_without_a_body_it_is_null() -> None:
    received = parse_frame(b'{"protocol_version":"v1","id":"1","to":"b"}')
    assert isinstance(received, Envelope)
    assert (received.raw_body, received.body) == (b"null", None)


def test_the_version_is_the_only_one() -> None:
    assert written().protocol_version == "v1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id": ""}, "^id cannot be ''"),
        ({"to": ""}, "^to cannot be ''"),
        ({"id": "a\0"}, r"^id cannot be 'a\\x00'"),
        ({"to": "\0"}, "^to cannot be"),
        ({"id": "ü" * 257}, "^an id has 512 bytes at most$"),
        ({"body": b"{"}, "^the body is no JSON"),
        ({"body": b"1,2"}, "^the body is no JSON"),
        ({"body": b"[" * 1024 + b"]" * 1024}, "^the body is no JSON"),
    ],
)
def test_an_envelope_that_the_broker_would_drop_is_not_written(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidEnvelope, match=why):
        written(**given)


def test_an_injected_member_is_no_body() -> None:
    with pytest.raises(InvalidEnvelope):
        written(b'1,"to":"eve"')


def test_an_id_of_512_bytes_is_written() -> None:
    assert len(written(id="ü" * 256).id) == 256


def test_a_weak_secret_is_refused() -> None:
    with pytest.raises(WeakSecret):
        written(secret="short")


def test_the_largest_message_makes_a_deliver_frame_of_exactly_one_mebibyte() -> None:
    room = envelope.MAX_FRAME - len(deliver_frame("<1>", written(b'""', id="<1>").text))
    largest = written(b'"' + b"x" * room + b'"', id="<1>")
    assert len(deliver_frame(largest.id, largest.text)) == 1_048_576
    with pytest.raises(MessageTooLarge, match="would have 1048577 bytes, over the limit of 1048576"):
        written(b'"' + b"x" * (room + 1) + b'"', id="<1>")


def test_the_largest_broadcast_fits_for_the_longest_name() -> None:
    longest = "\x01" * 240
    room = envelope.MAX_FRAME - len(deliver_frame("1|" + longest, written(b'""', id="1", to="*").text))
    largest = written(b'"' + b"x" * room + b'"', id="1", to="*")
    assert len(deliver_frame("1|" + longest, largest.text)) == 1_048_576
    with pytest.raises(MessageTooLarge):
        written(b'"' + b"x" * (room + 1) + b'"', id="1", to="*")


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), float("inf"), b"bytes", "\ud800", {(1, 2): 3}])
def test_a_value_without_a_json_form_is_no_body(value: Any) -> None:
    with pytest.raises(InvalidEnvelope, match=r"^the body cannot be JSON: "):
        encode(value)


def test_a_body_in_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidEnvelope):
        encode(circle)


# Ids and times


def test_ids_are_uuids_of_version_7_and_of_this_moment() -> None:
    id = uuid.UUID(envelope.new_id())
    now = datetime.datetime.now(datetime.UTC).timestamp()
    assert (id.version, id.variant) == (7, uuid.RFC_4122)
    assert abs((id.int >> 80) / 1000 - now) < 60


def test_ids_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5_000_000_000, 5_000_000_000, 5_000_000_001, 4_000_000_000, 6_000_000_000])
    monkeypatch.setattr("peers.codec.envelope.time.time_ns", lambda: next(times))
    stamps = Stamps()
    ids = [stamps.new_id() for _ in range(5)]
    assert ids == sorted(set(ids))
    assert [uuid.UUID(id).int >> 80 for id in ids] == [5000, 5000, 5000, 5000, 6000]


def test_ids_of_one_moment_cannot_be_guessed_from_each_other() -> None:
    assert len({envelope.new_id()[-12:] for _ in range(100)}) == 100


def test_times_are_rfc_3339_in_utc() -> None:
    there = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(datetime.datetime(2026, 5, 18, 14, 0, 0, 1234, there)) == "2026-05-18T12:00:00.001Z"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timestamp())
