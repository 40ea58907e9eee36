"""Autovacuum's settings for the tables that every message goes through."""

from __future__ import annotations

import pytest
from django.db import connection

pytestmark = pytest.mark.django_db

#: Tables that lose a row or more with each message, or with each commit.
CHURNED = {
    "queues_message", "queues_queuetally_kept", "queues_audithead", "queues_auditjournal", "queues_instruction",
    "queues_connection", "queues_segment_kept", "queues_segmentsettlement_kept",
}  # fmt: skip

PAUSES = """
select c.relname, o.option_value::float
from pg_class c, pg_options_to_table(c.reloptions) o
where o.option_name = 'autovacuum_vacuum_cost_delay' and c.relnamespace = current_schema()::regnamespace
"""


def test_the_hot_table_does_not_grow_for_ever_under_a_lasting_load() -> None:
    # With pauses autovacuum takes longer to clean what a minute of full pace leaves than a minute.
    with connection.cursor() as cursor:
        cursor.execute(PAUSES)
        assert dict(cursor.fetchall()) == dict.fromkeys(CHURNED, 0.0)


def test_tallies_keep_their_room_so_that_what_waits_is_delivered_while_the_disk_is_full() -> None:
    with connection.cursor() as cursor:
        cursor.execute("select reloptions from pg_class where oid = 'queues_queuetally_kept'::regclass")
        [(options,)] = cursor.fetchall()
    assert "vacuum_truncate=off" in options


RARE_STATISTICS = """
select c.relname, o.option_value::float
from pg_inherits i join pg_class c on c.oid = i.inhrelid left join pg_options_to_table(c.reloptions) o
    on o.option_name = 'autovacuum_analyze_scale_factor'
where i.inhparent = any(%s::regclass[])
"""


def test_statistics_of_audit_rows_are_taken_when_their_number_has_doubled() -> None:
    # After each tenth, as by default, they cost more than the rows.
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_audit_partitions('2040-01-01', 1)")
        cursor.execute(RARE_STATISTICS, [["queues_audit"]])
        days = dict(cursor.fetchall())
    assert {"queues_audit_default", "queues_audit_20400101"} < days.keys()
    assert set(days.values()) == {1.0}


STATISTICS_OF_COLUMNS = """
select attname, typcategory = 'A', attstattarget = 0
from pg_attribute join pg_type t on t.oid = atttypid
where attrelid = 'queues_archivedsegment_20400101'::regclass and attnum > 0
"""


def test_statistics_of_the_archive_cost_little_beside_the_messages() -> None:
    # Each tenth more they were taken anew, of all elements of the arrays too: more than half of autovacuum's work.
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_archive_partitions('2040-01-01', 1)")
        cursor.execute(RARE_STATISTICS, [["queues_archivedmessage", "queues_archivedsegment"]])
        days = dict(cursor.fetchall())
        cursor.execute(STATISTICS_OF_COLUMNS)
        columns = cursor.fetchall()
    assert {"queues_archive_default", "queues_archivedsegment_default", "queues_archive_20400101"} < days.keys()
    assert "queues_archivedsegment_20400101" in days
    assert set(days.values()) == {1.0}
    assert {array for _, array, _ in columns} == {True, False}
    assert all(bool(left_out) == array for _, array, left_out in columns)
