"""Rows that stand for several messages: their ids, and how the rows of one message are found."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from queues.audit.chains import append, get_chain
from queues.audit.events import AuditEvent, AuditRecord
from queues.audit.listing import rows, rows_of
from queues.audit.spans import MAX_SPAN, parse_span, span_ids
from queues.audit.verify import verify
from queues.models import AuditRow
from tests.queues.audit.spans import messages_of

CHAIN = "queue:orders"

#: Ids in runs: where each begins, and how long it is.
RUNS = st.lists(st.tuples(st.integers(-5, 60), st.integers(1, 9)), max_size=8)


@given(RUNS, st.booleans())
@example([(0, 2), (9, 1), (3, 1)], False)
def test_the_rows_stand_for_the_same_messages_in_the_same_order(runs: list[tuple[int, int]], grow: bool) -> None:
    ids = [id for first, count in runs for id in range(first, first + count)]
    ids = sorted(set(ids)) if grow else ids
    found = span_ids(ids)
    assert found == span_ids(*(range(first, first + count) for first, count in runs)) or grow
    assert found == span_ids(ids[:3], [], tuple(ids[3:]))
    assert [id for text in found for id in messages_of(text)] == [str(id) for id in ids]
    if grow:  # as few rows as there can be
        gaps = sum(second != first + 1 or first < 0 for first, second in pairwise(ids))
        assert len(found) == (gaps + 1 if ids else 0)


def test_a_row_stands_for_a_limited_number_of_messages() -> None:
    count = 2 * MAX_SPAN + 1
    wanted = [f"7-{MAX_SPAN + 6}", f"{MAX_SPAN + 7}-{2 * MAX_SPAN + 6}", str(2 * MAX_SPAN + 7)]
    assert span_ids(range(7, 7 + count)) == span_ids([*range(7, 7 + count)]) == wanted


@pytest.mark.parametrize("record", ["", "m1", "1-", "-1", "1-2-3", "queue:a", "9" * 19, f"1-{'9' * 19}", "٣", "1 -2"])
def test_an_id_that_is_no_number_is_no_span(record: str) -> None:
    assert parse_span(record) is None


def test_a_span_is_parsed() -> None:
    assert (parse_span("12"), parse_span("12-14"), parse_span("14-12")) == (range(12, 13), range(12, 15), range(14, 13))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("record", "ends"),
    [
        ("12-14", (12, 14)), (f"{'9' * 18}-{'9' * 18}", (int("9" * 18), int("9" * 18))), ("12", (None, None)),
        ("1-2-3", (None, None)), ("-1-2", (None, None)), ("1--2", (None, None)), (f"1-{'9' * 19}", (None, None)),
        ("01234567-0123-7123-8123-012345678901", (None, None)), ("1-2\n", (None, None)), ("a-1", (None, None)),
    ],
)  # fmt: skip
def test_the_store_tells_rows_of_several_messages_by_their_ids(record: str, ends: tuple[int | None, ...]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select queues_audit_first(%s), queues_audit_last(%s)", [record, record])
        assert cursor.fetchone() == ends


def record(*events: tuple[str, str]) -> None:
    append(CHAIN, [AuditEvent(event, id, "shop", "orders") for event, id in events])


@pytest.mark.django_db(transaction=True)
class TestReaders:
    """The rows that a message shares are found by each of its readers."""

    def test_the_rows_of_a_message_are_its_own_and_those_that_it_shares(self, capsys: Any) -> None:
        record(("publish", "100-199"), ("deliver", "100-149"), ("deliver", "150-199"), ("return", "150"))
        record(("settle", "100-149"), ("settle", "151-199"), ("deliver", "150"), ("settle", "150"), ("purge", "1500"))
        letters = [AuditEvent(event, id, "bob", "") for event in ("send", "deliver") for id in ("150", "0-999")]
        append("peerbus", letters)
        chain = get_chain(CHAIN)
        assert [row.seq for row in rows(chain, "150", 99)] == [0, 2, 3, 6, 7]
        assert [row.seq for row in rows(chain, "199", 99)] == [0, 2, 5]
        assert [row.seq for row in rows(chain, "100", 99)] == [0, 1, 4]
        assert [row.seq for row in rows(chain, "100-149", 99)] == [1, 4]
        assert [row.seq for row in rows(chain, "150", 2)] == [6, 7]
        for nothing in ("99", "200", "15", "m1", "9" * 18):
            assert rows(chain, nothing, 99) == []
        assert [(row.chain.name, row.seq) for row in rows(None, "150", 99)] == [
            ("peerbus", 0), ("peerbus", 2), *((CHAIN, seq) for seq in (0, 2, 3, 6, 7))
        ]  # fmt: skip
        call_command("audit", "show", "--chain", CHAIN, "--id", "120", "--json")
        assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["100-199", "100-149", "100-149"]

    def test_a_letter_whose_id_looks_like_a_row_of_a_queue_is_no_row_of_a_message(self) -> None:
        record(("publish", "100-199"))
        append("peerbus", [AuditEvent("deliver", "100-199", "bob", "alice")])
        assert [row.chain.name for row in rows(None, "150", 99)] == [CHAIN]

    @pytest.mark.parametrize("first", [1, 7])
    def test_the_first_and_the_last_of_the_longest_row_find_it(self, first: int) -> None:
        record(("publish", f"{first}-{first + MAX_SPAN - 1}"))
        chain = get_chain(CHAIN)
        for id, found in ((first - 1, 0), (first, 1), (first + MAX_SPAN - 1, 1), (first + MAX_SPAN, 0)):
            assert len(rows(chain, str(id), 9)) == found

    def test_a_chain_with_such_rows_is_verified_and_each_change_is_found(self) -> None:
        record(("publish", "100-199"), ("deliver", "100-199"), ("settle", "100-199"))
        assert verify(CHAIN, ()).rows == 3
        with connection.cursor() as cursor:
            cursor.execute("set session fivewire.audit_upkeep = 'on'")
            cursor.execute("update queues_audit set record_id = '100-198' where seq = 1")
            cursor.execute("reset fivewire.audit_upkeep")
        outcome = verify(CHAIN, ())
        assert outcome.finding is not None
        assert (outcome.ok, outcome.finding.seq) == (False, 1)

    @pytest.mark.parametrize("analyzed", [False, True])
    def test_the_search_reads_the_index_of_such_rows_alone(self, analyzed: bool) -> None:
        append("peerbus", [AuditEvent("deliver", f"m{n}", "bob", "alice") for n in range(3000)])
        record(*[("publish", f"{n}-{n + 99}") for n in range(0, 300_000, 100)])
        with connection.cursor() as cursor:
            if analyzed:
                cursor.execute("analyze queues_audit")
            cursor.execute("select tableoid::regclass::text from queues_audit limit 1")
            [(used,)] = cursor.fetchall()
        found = rows_of(AuditRow.objects.all(), "150050")
        assert [row.record_id for row in found] == ["150000-150099"]
        for shown in (found, found.filter(chain=get_chain(CHAIN)).order_by("-chain", "-seq")[:9]):
            plan = shown.explain()
            assert f"{used}_queues_audit_first_idx" in plan
            assert f"Seq Scan on {used}" not in plan


def test_messages_that_follow_each_other_share_a_row_of_a_record() -> None:
    found = AuditRecord()
    found.add_messages("publish", "shop", "orders", [1, 2, 3, 7])
    found.add_messages("deliver", "orders", "", [], [])
    found.add_messages("deliver", "orders", "", range(1, 3), (3,), [], range(4, 8), [2])
    assert (found.runs, len(found)) == (
        [(("publish", "shop", "orders"), ["1-3", "7"]), (("deliver", "orders", ""), ["1-7", "2"])], 4
    )  # fmt: skip
