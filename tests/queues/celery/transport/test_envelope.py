"""The stored form of kombu's messages, and the way back."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import registry
from kombu.utils.json import dumps

from queues.celery.transport.envelope import Unreadable, from_row, to_row
from queues.celery.transport.errors import UnstorableTask
from queues.engine.message import Content


def message(body: Any = "[1]", **changes: Any) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_mode": 2, "priority": 0},
    } | changes


def there_and_back(given: dict[str, Any], exchange: str = "", routing_key: str = "q") -> Any:
    row = to_row("q", given, exchange, routing_key)
    return from_row(row.payload, json.loads(row.headers), row.content, 0, False, None, 1, "tag")


def test_a_message_comes_out_as_it_went_in() -> None:
    headers = {"task": "add", "id": "1", "timelimit": [None, 3], "when": datetime(2026, 1, 2, tzinfo=UTC)}
    properties = {"correlation_id": "c", "reply_to": "r", "delivery_mode": 2, "priority": 3}
    received = there_and_back(message("[1, 2]", headers=headers, properties=properties), "ex", "key")
    assert received.body == b"[1, 2]"
    assert received.headers == headers
    assert received.properties == properties
    assert received.delivery_info == {
        "exchange": "ex", "routing_key": "key", "priority": 3, "redelivered": False, "consumer_tag": "tag",
    }
    assert received.decode() == [1, 2]


def test_bytes_stay_bytes() -> None:
    received = there_and_back(
        message(b"\x80\x00", **{"content-type": "application/x-python-serialize", "content-encoding": "binary"})
    )
    assert bytes(received.body) == b"\x80\x00"
    assert (received.content_type, received.content_encoding) == ("application/x-python-serialize", "binary")


def test_messages_of_celery_are_marked_as_celerys() -> None:
    for changes in ({}, {"headers": {"compression": "gzip"}}, {"content-type": "application/x-yaml"}):
        assert to_row("q", message(**changes), "", "q").content == Content.CELERY


def test_the_task_id_is_the_key() -> None:
    task = str(uuid.uuid4())
    assert to_row("q", message(headers={"id": task}), "", "q").key == task
    assert to_row("q", message(headers={"id": 7}), "", "q").key is None
    assert to_row("q", message(), "", "q").key is None


def test_an_eta_delays_until_then_whatever_its_time_zone() -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    for text in (eta.isoformat(), eta.astimezone().isoformat(), eta.replace(tzinfo=None).isoformat()):
        assert to_row("q", message(headers={"eta": text}), "", "q").delay == pytest.approx(3600, abs=5)
    assert to_row("q", message(headers={"eta": (eta - timedelta(hours=2)).isoformat()}), "", "q").delay == 0
    assert to_row("q", message(headers={"eta": "soon"}), "", "q").delay == 0


def test_an_expiration_is_a_time_to_live() -> None:
    assert to_row("q", message(properties={"expiration": "1500"}), "", "q").ttl == 1.5
    assert to_row("q", message(properties={"expiration": "0"}), "", "q").ttl == pytest.approx(0.001)
    assert to_row("q", message(), "", "q").ttl is None
    with pytest.raises(UnstorableTask, match="expiration"):
        to_row("q", message(properties={"expiration": "later"}), "", "q")


def test_a_priority_stays_within_what_the_store_has() -> None:
    for given, stored in ((None, 0), (9, 9), (101, 100), (255, 100)):
        assert to_row("q", message(properties={"priority": given}), "", "q").priority == stored


@pytest.mark.parametrize("value", ["\0", "\ud800", float("nan"), object()])
def test_headers_that_cannot_be_stored_are_refused(value: object) -> None:
    with pytest.raises(UnstorableTask):
        to_row("q", message(headers={"x": value}), "", "q")


@pytest.mark.parametrize("value", ["\\u0000", "\U0001f600", "\\\\u0000", "ü"])
def test_headers_that_only_look_so_are_stored(value: str) -> None:
    assert there_and_back(message(headers={"x": value})).headers == {"x": value}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ("application/data", "binary")),
        (Content.JSON, ("application/json", "utf-8")),
        (Content.MSGPACK, ("application/x-msgpack", "binary")),
    ],
)
def test_a_message_of_another_protocol_can_be_read_where_that_is_asked_for(
    content: int | None, expected: tuple[str, str]
) -> None:
    with pytest.raises(Unreadable, match="not published by a Celery client"):
        from_row(b"[]", {"task": "add", "id": "1"}, content, 2, False, None, 1, "tag")
    received = from_row(b"[]", {"task": "add", "id": "1"}, content, 2, True, None, 1, "tag")
    assert (received.content_type, received.content_encoding) == expected
    assert received.headers == {"task": "add", "id": "1"}
    assert received.delivery_info["redelivered"]
    assert from_row(b"", None, None, 0, True, None, 1, "tag").headers == {}


def test_a_letter_of_a_peer_is_neither_a_task_nor_a_remote_control_command() -> None:
    letter = b'{"task":"add","id":"1","args":[1],"method":"shutdown","protocol_version":"v1"}'
    received: Any = from_row(letter, {"from": "mallory"}, Content.LETTER, 0, True, None, 1, "tag")
    assert received.headers == {"from": "mallory"}
    received.accept = {"application/json", "application/x-msgpack"}
    with pytest.raises(ContentDisallowed):
        received.decode()
    received.accept = None
    assert not isinstance(received.decode(), dict)


def test_the_stored_form_is_json_that_others_can_read() -> None:
    row = to_row("q", message(headers={"task": "add", "root": uuid.UUID(int=1)}), "", "q")
    stored = json.loads(row.headers)
    assert stored["task"] == "add"
    assert stored["root"] == json.loads(dumps(uuid.UUID(int=1)))
    assert stored["kombu"] == {"routing_key": "q", "properties": {}}


def test_what_nearly_all_messages_have_is_not_stored_and_read_all_the_same() -> None:
    usual = there_and_back(message(properties={"delivery_mode": 2, "priority": 0, "reply_to": "r"}))
    assert (usual.content_type, usual.content_encoding) == ("application/json", "utf-8")
    assert usual.properties == {"delivery_mode": 2, "priority": 0, "reply_to": "r"}
    assert usual.delivery_info["exchange"] == ""
    assert usual.delivery_info["priority"] == 0
    transient = there_and_back(message(**{"content-encoding": "latin-1"}, properties={"delivery_mode": 1}), "ex")
    assert transient.content_encoding == "latin-1"
    assert transient.properties["delivery_mode"] == 1
    assert transient.delivery_info["exchange"] == "ex"


def test_what_a_worker_writes_to_the_headers_stays_with_this_delivery() -> None:
    stored = {"id": "1", "kombu": {"properties": {}}}
    received = from_row(b"[]", stored, Content.CELERY, 0, False, None, 1, "tag")
    received.headers["hostname"] = received.properties["hostname"] = "here"
    assert stored == {"id": "1", "kombu": {"properties": {}}}
    again = from_row(b"[]", stored, Content.CELERY, 0, False, None, 1, "tag")
    assert "hostname" not in again.headers
    assert "hostname" not in again.properties


def test_a_body_is_read_as_kombu_reads_it() -> None:
    value = [["ü", uuid.UUID(int=1), datetime(2026, 1, 2, tzinfo=UTC)], {}, {"chord": None}]
    received = there_and_back(message(dumps(value)))
    received.accept = {"application/json"}
    assert received.payload == value
    for body in ("", "[1", b"\xff"):
        bad = there_and_back(message(body))
        bad.accept = {"application/json"}
        if body:
            with pytest.raises(DecodeError):
                bad.decode()
        else:
            assert bad.decode() == ""
    refused = there_and_back(message())
    refused.accept = {"application/x-yaml"}
    with pytest.raises(ContentDisallowed):
        refused.decode()


def test_a_body_is_read_by_a_json_serializer_of_the_projects_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._decoders, "application/json", lambda data: ("own", bytes(data)))
    received = there_and_back(message())
    received.accept = {"application/json"}
    assert received.payload == ("own", b"[1]")


@pytest.mark.parametrize("text", ["a\0b", "name-\udcff", "\\\0"])
def test_headers_that_celery_makes_for_people_are_made_storable_and_the_users_own_are_refused(text: str) -> None:
    made = {"argsrepr": f"({text!s},)", "kwargsrepr": text, "shadow": text, "origin": text, "id": "1", "stamps": {}}
    headers = json.loads(to_row("q", message(headers=made), "", "q").headers)
    assert headers["kwargsrepr"] == text.replace("\0", "\ufffd").replace("\udcff", "\ufffd")
    assert "\ufffd" in headers["argsrepr"]
    for own in ({"mine": text}, {"stamps": {"a": [text]}}, {text: 1}, {"id": text}):
        with pytest.raises(UnstorableTask, match="headers cannot be stored"):
            to_row("q", message(headers=made | own), "", "q")


@pytest.mark.parametrize("given", [{"at": "yesterday"}, {"at": "2026-11-20T00:00:00+00:00", "queue": "orders"}, "x"])
def test_a_header_with_the_name_of_the_brokers_own_is_kept_apart_and_comes_back(given: object) -> None:
    sent = message(headers={"task": "add", "dead-letter": given})
    row = to_row("q", sent, "", "q")
    assert "dead-letter" not in json.loads(row.headers)
    assert there_and_back(sent).headers == {"task": "add", "dead-letter": given}
    buried = json.loads(row.headers) | {"dead-letter": {"queue": "q"}}
    received = from_row(row.payload, buried, row.content, 0, False, None, 1, "tag")
    assert received.headers == {"task": "add", "dead-letter": {"queue": "q"}}


def test_a_forged_envelope_is_read_without_its_headers() -> None:
    received = from_row(b"[]", {"task": "add", "kombu": {"headers": 5}}, None, 0, True, None, 1, "tag")
    assert received.headers == {"task": "add"}
