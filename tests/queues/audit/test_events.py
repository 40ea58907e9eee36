"""Event bytes and hashes: the published vectors, escaping, what cannot be recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from queues.audit.errors import InvalidEvent
from queues.audit.events import (
    FIRST_ROWS,
    GENESIS,
    MAX_ID,
    MAX_ROWS,
    AuditEvent,
    AuditRecord,
    append_parameters,
    columns,
    event_bytes,
    hash_block,
    hashes_after,
    head_after,
)
from tests.queues.audit.test_canonical import text_of_any_kind, written

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["peerbus"]["audit"]
EVENTS = [
    AuditEvent("send", "m1", "bob", "alice"),
    AuditEvent("deliver", "m1", "bob", "alice"),
    AuditEvent("ack", "m1", "alice", ""),
]

events_of_any_kind = st.builds(AuditEvent, text_of_any_kind, text_of_any_kind, text_of_any_kind, text_of_any_kind)


def slow_hashes(before: str, events: list[AuditEvent]) -> list[str]:
    hashes = []
    for event in events:
        name, id, sender, recipient = map(written, event)
        record = f'{{"event":{name},"id":{id},"from":{sender},"to":{recipient}}}'.encode()
        before = blake3(before.encode("ascii") + record).hexdigest()
        hashes.append(before)
    return hashes


def test_the_first_row_follows_the_hash_of_nothing() -> None:
    assert VECTORS["prev of seq 0"] == GENESIS


def test_events_have_the_published_bytes() -> None:
    assert [event_bytes(event).decode() for event in EVENTS] == [text for text, _ in VECTORS["rows"]]


def test_rows_have_the_published_hashes() -> None:
    assert hashes_after(GENESIS, AuditRecord(EVENTS)).hex() == "".join(hash_hex for _, hash_hex in VECTORS["rows"])


@given(st.lists(events_of_any_kind, max_size=6))
def test_the_hash_of_any_event_is_that_of_the_specified_bytes(events: list[AuditEvent]) -> None:
    assert hashes_after(GENESIS, AuditRecord(events)).hex() == "".join(slow_hashes(GENESIS, events))


def as_the_database_joins(events: list[AuditEvent]) -> bytes:
    """As audit_block.sql does."""
    rows = []
    for event in events:
        name, id, sender, recipient = (field.encode() for field in event)
        rows.append(name + b"\xfc" + id + b"\xfd" + sender + b"\xfe" + recipient)
    return b"\0".join(rows)


STORABLE = st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.text('"\\<\x1f\u2028')


@given(st.lists(st.builds(AuditEvent, *[STORABLE] * 4), min_size=1, max_size=6))
@example([AuditEvent("send", '1","from":"', "", "bob")])
@example([AuditEvent("send", '\\"\\u003c', "<>&", "\x01\x1f\x7f")])
@example([AuditEvent("\u2028", "\u2029", "", "\u202a")])
@example([AuditEvent("", "", "", ""), AuditEvent("", "", "", "")])
def test_a_block_as_the_database_sends_it_has_the_specified_hashes(events: list[AuditEvent]) -> None:
    stored = bytes.fromhex("".join(slow_hashes(GENESIS, events)))
    assert hash_block(GENESIS, as_the_database_joins(events), stored) == stored


def test_a_special_character_in_any_one_column_is_escaped() -> None:
    for field in AuditEvent._fields:
        events = [EVENTS[0], EVENTS[1]._replace(**{field: "<"}), EVENTS[2]]
        stored = bytes.fromhex("".join(slow_hashes(GENESIS, events)))
        assert hashes_after(GENESIS, AuditRecord(events)) == stored
        assert hash_block(GENESIS, as_the_database_joins(events), stored) == stored


def test_a_statement_gets_the_hashes_and_the_head_and_the_next_one_goes_on_from_there() -> None:
    parameters = append_parameters((7, 12, bytes.fromhex(GENESIS)), AuditRecord(EVENTS))
    hashes = [hash_hex for _, hash_hex in VECTORS["rows"]]
    assert parameters["hashes"].hex() == "".join(hashes)
    assert parameters["last"].hex() == hashes[-1]
    assert (parameters["chain"], parameters["seq"], parameters["count"]) == (7, 12, 3)
    assert head_after(parameters) == (7, 15, bytes.fromhex(hashes[-1]))
    assert parameters["ids"] == '{"m1","m1","m1"}'


@pytest.mark.parametrize("field", AuditEvent._fields)
@pytest.mark.parametrize(("text", "reason"), [("a\0b", "NUL"), ("\ud800", "Unicode")])
def test_values_that_cannot_be_stored_are_refused_with_the_reason(field: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        columns([EVENTS[0], EVENTS[1]._replace(**{field: text})])


def test_an_id_may_be_as_long_as_an_index_takes() -> None:
    columns([EVENTS[0]._replace(id="é" * (MAX_ID // 2))])
    with pytest.raises(InvalidEvent, match="2000 bytes"):
        columns([EVENTS[0]._replace(id="é" * (MAX_ID // 2) + "a")])


def events_of(record: AuditRecord) -> list[AuditEvent]:
    return [AuditEvent(name, id, *others) for (name, *others), ids in record.runs for id in ids]


@given(st.lists(st.builds(AuditEvent, *[st.sampled_from(("a", "b"))] * 4)))
def test_a_record_has_its_events_in_order_however_they_are_added(events: list[AuditEvent]) -> None:
    one_by_one, of_two = AuditRecord(), AuditRecord(events[:3])
    for name, id, *others in events:
        one_by_one.add(name, id, *others)
    of_two.extend(AuditRecord(events[3:]))
    for record in (AuditRecord(events), one_by_one, of_two):
        assert events_of(record) == events
        assert (record.ids, len(record), bool(record)) == ([event.id for event in events], len(events), bool(events))


def test_events_of_one_kind_are_one_run() -> None:
    record = AuditRecord([EVENTS[0]] * 3)
    record.add(EVENTS[0].event, [EVENTS[0].id], *EVENTS[0][2:])
    assert record.runs == [(("send", "bob", "alice"), ["m1"] * 4)]


@pytest.mark.parametrize("repeated", [[EVENTS[0]] * 9000, EVENTS * 3000, [*[EVENTS[0]] * MAX_ROWS, EVENTS[1]]])
def test_many_events_go_in_parts_that_lose_none(repeated: list[AuditEvent]) -> None:
    divided = list(AuditRecord(repeated).parts)
    assert [len(part) for part in divided[:-1]] == [FIRST_ROWS, *[MAX_ROWS] * (len(divided) - 2)]
    assert 0 < len(divided[-1]) <= MAX_ROWS
    assert [event for part in divided for event in events_of(part)] == repeated
    assert list(AuditRecord().parts) == []


def test_a_statement_gets_what_rows_have_in_common_once() -> None:
    given = [EVENTS[0], EVENTS[0]._replace(id="m2"), EVENTS[1], EVENTS[0]]
    parameters = append_parameters((7, 12, bytes.fromhex(GENESIS)), AuditRecord(given))
    assert (parameters["ids"], parameters["kinds"]) == ('{"m1","m2","m1","m1"}', "{1,1,2,1}")
    assert parameters["events"] == '{"send","deliver"}'
    assert (parameters["senders"], parameters["recipients"]) == ('{"bob","bob"}', '{"alice","alice"}')
