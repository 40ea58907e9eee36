"""The archive is one: the messages that are rows, and those of segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from queues.models import ArchivedMessage
from tests.queues.segments import ArchiveRow, Range, Segment, archive_rows

NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, UTC)
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db


@st.composite
def segments(draw: st.DrawFn, first: int = 4096) -> Segment:
    """A segment some of whose slots are archived."""
    sizes = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30))
    edges = sorted(draw(st.sets(st.integers(0, len(sizes)), min_size=2)) if len(sizes) > 1 else {0, 1})
    times = st.none() | st.integers(0, 9).map(lambda n: NOW + n * SECOND)
    ranges = [
        Range(low, high - 1, draw(st.none() | st.integers(1, 3)), draw(times))
        for low, high in pairwise(edges) if draw(st.booleans()) or low == edges[0]
    ]  # fmt: skip
    finished = NOW + draw(st.integers(0, 5)) * SECOND
    producer, outcome = draw(st.none() | st.integers(1, 3)), draw(st.integers(0, 4))
    return Segment(first, draw(st.integers(1, 3)), sizes, ranges, NOW, finished, producer, outcome)


MANY = st.lists(st.none(), max_size=5).flatmap(
    lambda places: st.tuples(*(segments(4096 * (n + 1)) for n in range(len(places))))
)


class SegmentsAreMessages(TestCase):
    @given(MANY)
    def test_the_archive_has_each_message_of_segments_as_if_it_were_a_row(self, given: tuple[Segment, ...]) -> None:
        plain = ArchiveRow(1, 2, 0, 0, None, None, NOW, None, NOW + SECOND, 7)
        plain.store()
        for segment in given:
            segment.store()
        expected = [plain, *(row for segment in given for row in segment.messages())]
        assert archive_rows() == expected
        assert archive_rows("queue_id = 2") == [row for row in expected if row.queue == 2]
        low, high = NOW + SECOND, NOW + 3 * SECOND
        between = [row for row in expected if low <= row.finished < high]
        assert archive_rows("finished_at >= %s and finished_at < %s", low, high) == between
        for id in {0, *(row.id + n for row in expected for n in (-1, 0, 1))}:
            found = [row.pk for row in ArchivedMessage.objects.with_id(id)]
            assert found == [row.id for row in expected if row.id == id]

    @given(segments(), st.data())
    def test_messages_are_taken_out_of_segments_one_by_one(self, segment: Segment, data: st.DataObject) -> None:
        segment.store()
        left = segment.messages()
        gone = data.draw(st.lists(st.sampled_from(left), unique=True))
        for row in gone:
            assert ArchivedMessage.objects.with_id(row.id)._raw_delete("default") == 1
            left.remove(row)
            assert archive_rows() == left
            assert ArchivedMessage.objects.with_id(row.id)._raw_delete("default") == 0
        with connection.cursor() as cursor:
            cursor.execute("select lows, highs from queues_archivedsegment")
            kept = cursor.fetchall()
        assert len(kept) == bool(left)
        assert all(low <= high for lows, highs in kept for low, high in zip(lows, highs, strict=True))


def test_a_row_is_deleted_alone_among_segments_and_rows() -> None:
    rows = [ArchiveRow(id, 1, 0, 0, None, None, NOW, None, NOW, 1) for id in (1, 2, 3)]
    for row in rows:
        row.store()
    segment = Segment(4096, 1, [1, 2], [Range(0, 1, None, None)], NOW, NOW)
    segment.store()
    assert ArchivedMessage.objects.filter(finished_at=NOW, pk=2)._raw_delete("default") == 1
    assert archive_rows() == [rows[0], rows[2], *segment.messages()]


def test_an_id_may_have_rows_and_a_message_of_a_segment() -> None:
    row = ArchiveRow(4097, 1, 2, 3, None, None, NOW, None, NOW + SECOND, 1)
    row.store()
    Segment(4096, 1, [1, 2], [Range(0, 1, 5, NOW)], NOW, NOW).store()
    found = ArchivedMessage.objects.with_id(4097).order_by("finished_at").values_list("outcome", "size", "finished_at")
    assert list(found) == [(0, 2, NOW), (2, 1, NOW + SECOND)]


def test_nodes_of_the_version_before_go_on_archiving_into_the_view() -> None:
    """Their statements insert into `queues_archive` within a larger one, some with the number of their transaction."""
    with connection.cursor() as cursor:
        for id, name, xid in (1, "", ""), (2, ", xid", ", (select pg_current_xact_id()::text::bigint)"):
            cursor.execute(
                f"with gone as (select {id} as id), archived as ("
                f"insert into queues_archive (id, queue_id, outcome, attempts, published_at, finished_at, size{name})"
                f" select id, 1, 0, 0, %s, %s, 3{xid} from gone) select count(*) from gone", [NOW, NOW],
            )  # fmt: skip
        cursor.execute("select id, xid = pg_current_xact_id()::text::bigint from queues_archivedmessage order by id")
        assert cursor.fetchall() == [(1, True), (2, True)]


@pytest.mark.parametrize("id", [-(2**63), -1, 0, 2**63 - 1, 2**63, -(2**70)])
def test_any_number_may_be_looked_for(id: int) -> None:
    Segment(4096, 1, [1], [Range(0, 0, None, None)], NOW, NOW).store()
    assert not ArchivedMessage.objects.with_id(id).exists()


def test_segments_of_days_without_a_partition_move_to_one_and_go_with_it() -> None:
    segment = Segment(4096, 1, [1, 2, 3], [Range(0, 2, None, None)], NOW, NOW)
    row = ArchiveRow(1, 1, 0, 0, None, None, NOW, None, NOW, 1)
    day = NOW.date()
    with connection.cursor() as cursor:

        def value(sql: str, *parameters: Any) -> Any:
            cursor.execute(sql, parameters)
            [(found,)] = cursor.fetchall()
            return found

        cursor.execute("select queues_drop_archive_partitions(%s)", [day + timedelta(days=1)])
        segment.store()
        row.store()
        assert value("select count(*) from queues_archivedsegment_default") == 1
        assert value("select queues_make_archive_partitions(%s, 2)", day) == 2
        assert value("select count(*) from queues_archivedsegment_default") == 0
        assert value(f"select count(*) from queues_archivedsegment_{day:%Y%m%d}") == 1
        assert archive_rows() == [row, *segment.messages()]
        assert value("select queues_make_archive_partitions(%s, 2)", day) == 0
        assert value("select queues_drop_archive_partitions(%s)", day + timedelta(days=1)) == 1
    assert archive_rows() == []


def test_a_day_has_partitions_again_when_one_of_its_two_is_missing() -> None:
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_archive_partitions(%s, 1)", [NOW.date()])
        for name in ("queues_archive", "queues_archivedsegment"):
            cursor.execute(f"drop table {name}_{NOW:%Y%m%d}")
            cursor.execute("select queues_make_archive_partitions(%s, 1)", [NOW.date()])
            assert cursor.fetchone() == (1,)


def plan_of(sql: str, parameters: Any = ()) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"explain (format json, analyze, timing off) {sql}", parameters)
        [(plan,)] = cursor.fetchall()
    return plan if isinstance(plan, str) else json.dumps(plan)


def nodes_of(plan: Any) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


def expanded(queryset: Any) -> int:
    """The number of segments that a query expands into their messages."""
    [plan] = json.loads(plan_of(*queryset.query.sql_with_params()))
    return sum(
        round(node["Actual Rows"] * node["Actual Loops"])
        for node in nodes_of(plan["Plan"]) if node.get("Relation Name", "").startswith("queues_archivedsegment")
    )  # fmt: skip


@pytest.fixture
def hundred() -> datetime:
    """A hundred segments of ten messages, one a second, the last of which finished then; four queues."""
    for n in range(100):
        at = NOW + n * SECOND
        Segment(4096 * (n + 1), 1 + n % 4, [n] * 10, [Range(0, 9, None, NOW)], NOW, at).store()
    return NOW + 99 * SECOND


def test_what_is_looked_up_by_id_time_or_queue_leaves_other_segments_alone(hundred: datetime) -> None:
    objects = ArchivedMessage.objects.order_by()
    assert expanded(objects.all()) == 100
    assert expanded(objects.with_id(4096 * 50 + 3)) == 1
    assert expanded(objects.filter(finished_at__gt=hundred - 3 * SECOND)) == 3
    assert expanded(objects.filter(queue_id=3)) == 25
    assert expanded(objects.filter(xid=0)) == 0
    assert expanded(objects.filter(queue_id=3, key="k").order_by("id")[:10]) == 0
    assert expanded(objects.filter(queue_id=3, job=True).order_by("id")[:10]) == 25
    assert expanded(objects.filter(payload__isnull=False)) == 0
