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
    GENESIS,
    LONGEST_ID,
    AuditEvent,
    append_parameters,
    columns,
    event_bytes,
    extend,
    hash_block,
    hash_each,
    parts,
)
from queues.canonical import json_string
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
    assert extend(GENESIS, EVENTS) == [hash_hex for _, hash_hex in VECTORS["rows"]]


@given(st.lists(events_of_any_kind, max_size=6))
def test_the_hash_of_any_event_is_that_of_the_specified_bytes(events: list[AuditEvent]) -> None:
    hashes = slow_hashes(GENESIS, events)
    assert extend(GENESIS, events) == hashes
    befores = [GENESIS, *hashes[:-1]][: len(events)]
    names, ids, senders, recipients = map(list, zip(*events, strict=True)) if events else ([], [], [], [])
    assert hash_each(befores, names, ids, senders, recipients) == hashes


def as_the_database_spells(events: list[AuditEvent], hashes: list[str]) -> str:
    """As audit_block.sql does."""
    rows = (
        f'{{"event":"{event}","id":"{id}","from":"{sender}","to":"{recipient}"}}\x1f{hash_hex}'
        for (event, id, sender, recipient), hash_hex in zip(events, hashes, strict=True)
    )
    return "".join(rows)


@given(st.lists(st.builds(AuditEvent, *[st.text(max_size=20)] * 4), max_size=6))
@example([AuditEvent("send", '1","from":"', "", "bob")])  # one more quote makes up for none
@example([AuditEvent("a\x1fb", "", "", ""), AuditEvent("", "", "", "")])
@example([AuditEvent("\u2028", "", "", "")])
def test_a_block_that_the_database_has_spelled_has_the_specified_hashes_or_none_are_told(
    events: list[AuditEvent]
) -> None:
    hashes = slow_hashes(GENESIS, events)
    found = hash_block(GENESIS, as_the_database_spells(events, hashes), len(events))
    plain = all(json_string(field) == f'"{field}"' for event in events for field in event)
    assert found == (bytes.fromhex("".join(hashes)) if plain else None)


def test_a_special_character_in_any_one_column_is_escaped() -> None:
    for field in AuditEvent._fields:
        events = [EVENTS[0], EVENTS[1]._replace(**{field: "<"}), EVENTS[2]]
        hashes = slow_hashes(GENESIS, events)
        assert extend(GENESIS, events) == hashes
        assert hash_each([GENESIS, *hashes[:-1]], *map(list, zip(*events, strict=True))) == hashes


def test_a_statement_gets_the_hashes_and_the_place_of_the_head() -> None:
    parameters = append_parameters((7, 12, bytes.fromhex(GENESIS), "(0,3)"), EVENTS)
    hashes = [hash_hex for _, hash_hex in VECTORS["rows"]]
    assert parameters["hashes"].hex() == "".join(hashes)
    assert parameters["last"].hex() == hashes[-1]
    assert (parameters["chain"], parameters["seq"], parameters["count"], parameters["place"]) == (7, 12, 3, "(0,3)")
    assert parameters["ids"] == '{"m1","m1","m1"}'


@pytest.mark.parametrize("field", AuditEvent._fields)
@pytest.mark.parametrize(("text", "reason"), [("a\0b", "NUL"), ("\ud800", "Unicode")])
def test_values_that_cannot_be_stored_are_refused_with_the_reason(field: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        columns([EVENTS[0], EVENTS[1]._replace(**{field: text})])


def test_an_id_may_be_as_long_as_an_index_takes() -> None:
    columns([EVENTS[0]._replace(id="é" * (LONGEST_ID // 2))])
    with pytest.raises(InvalidEvent, match="2000 bytes"):
        columns([EVENTS[0]._replace(id="é" * (LONGEST_ID // 2) + "a")])


def test_many_events_go_in_parts_that_lose_none() -> None:
    events = EVENTS * 3000
    divided = list(parts(events))
    assert [len(part) for part in divided] == [4096, 4096, 808]
    assert [event for part in divided for event in part] == events
