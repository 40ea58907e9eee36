"""Periodic work outside the engines: the same as in them, and safe beside them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.conf import settings as project
from django.db import connection
from django.utils import timezone

from queues import tasks, upkeep
from queues.database.parameters import connection_parameters
from queues.models import AuditAnchor, BulkOperation, EtlRun, EtlState, JobLogLine, Node, Rollup, State
from queues.operations import bulk
from queues.operations.audit_log import record
from tests.queues.store import assert_counts_are_exact, make_queue, store

DAY = timedelta(days=1)


def archive_days() -> set[str]:
    """The days that have a partition."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select right(inhrelid::regclass::text, 8), count(*) from pg_inherits"
            " where inhparent in ('queues_archivedmessage'::regclass, 'queues_archivedsegment'::regclass) group by 1"
        )
        return {name for name, tables in cursor.fetchall() if tables == 2}


def day(ahead: int) -> str:
    return f"{datetime.now(UTC) + ahead * DAY:%Y%m%d}"


@pytest.mark.django_db
def test_partitions_are_made_a_week_ahead_and_dropped_when_they_are_too_old(settings) -> None:
    settings.BROKER_ARCHIVE_DAYS = 2
    coming, old = {day(n) for n in range(7)}, {day(-3), day(-4)}
    with connection.cursor() as cursor:
        cursor.execute(f"drop table queues_archive_{day(3)}")
        cursor.execute("select queues_make_archive_partitions(%s, 4)", [datetime.now(UTC).date() - 4 * DAY])
    JobLogLine.objects.create(queue=make_queue(), message_id=1, line="long ago")
    JobLogLine.objects.update(at=timezone.now() - 3 * DAY)
    assert day(-4) in archive_days()
    tasks.keep_archive.apply(throw=True)
    assert coming | {day(-2), day(-1)} <= archive_days()
    assert not old & archive_days()
    assert not JobLogLine.objects.exists()
    tasks.keep_archive.apply(throw=True)


def test_an_old_day_is_left_for_the_next_time_while_the_archive_is_read(transactional_db: None) -> None:
    old = (datetime.now(UTC) - (project.BROKER_ARCHIVE_DAYS + 3) * DAY).date()
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_archive_partitions(%s, 1)", [old])
    JobLogLine.objects.create(queue=make_queue(), message_id=1, line="long ago")
    JobLogLine.objects.update(at=timezone.now() - (project.BROKER_ARCHIVE_DAYS + 1) * DAY)
    with psycopg.connect(**connection_parameters()) as backup:
        backup.execute("select from queues_archive limit 1")
        upkeep.keep_archive()
        assert f"{old:%Y%m%d}" in archive_days()
        assert not JobLogLine.objects.exists()
        backup.rollback()
    upkeep.keep_archive()
    assert f"{old:%Y%m%d}" not in archive_days()


def test_leases_of_a_dead_node_are_returned(transactional_db: None) -> None:
    queue = make_queue()
    [message] = store(queue, State.LEASED)
    assert upkeep.return_leases() == 1
    message.refresh_from_db()
    assert (message.state, message.node) == (State.READY, None)
    assert not Node.objects.exists()
    assert assert_counts_are_exact(queue).ready == 1
    assert upkeep.return_leases() == 0


def test_the_audit_chains_are_anchored(transactional_db: None, settings, tmp_path) -> None:
    settings.DATA_DIR = tmp_path
    record("alice", "pause", "queue:orders")
    tasks.keep_audit.apply(throw=True)
    assert AuditAnchor.objects.get().seq == 0
    tasks.keep_audit.apply(throw=True)
    assert AuditAnchor.objects.count() == 1


@pytest.mark.django_db
def test_old_bulk_operations_are_forgotten_and_those_under_way_never(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BROKER_BULK_OPERATION_DAYS = 10
    now = timezone.now()

    def operation(state: str, days_ago: int | None) -> int:
        ended = None if days_ago is None else now - days_ago * DAY
        return BulkOperation.objects.create(action="move", criteria={}, by="", high=1, state=state, ended_at=ended).pk

    def left() -> list[int]:
        tasks.forget_old.apply(throw=True)
        return list(BulkOperation.objects.order_by("pk").values_list("pk", flat=True))

    running = operation("running", None)
    BulkOperation.objects.update(created_at=now - 50 * DAY)
    recent = [operation(state, 9) for state in ("done", "cancelled", "failed")]
    operation("done", 11)
    assert left() == [running, *recent]
    monkeypatch.setattr(bulk, "MAX_KEPT", 2)
    assert left() == [running, *recent[1:]]


@pytest.mark.django_db
def test_old_runs_and_figures_are_forgotten(settings) -> None:
    settings.BROKER_ETL_RUN_DAYS, settings.BROKER_ROLLUP_DAYS = 10, 20
    now = timezone.now()
    logs = project.DATA_DIR / "etl-logs"
    logs.mkdir(parents=True, exist_ok=True)
    outside = project.DATA_DIR / "not-a-log"
    for age, name in ((9, logs / "recent.log"), (11, logs / "old.log"), (11, outside)):
        name.touch()
        EtlRun.objects.create(
            state=EtlState.SUCCEEDED, output="/o", trigger="t", ended_at=now - age * DAY, log=str(name)
        )
    EtlRun.objects.create(state=EtlState.RUNNING, output="/o", trigger="t")
    Rollup.objects.bulk_create(Rollup(queue="q", hour=now - age * DAY) for age in (19, 21))
    tasks.forget_old.apply(throw=True)
    assert list(EtlRun.objects.order_by("pk").values_list("state", flat=True)) == ["succeeded", "running"]
    assert (logs / "recent.log").exists()
    assert not (logs / "old.log").exists()
    assert outside.exists()
    assert [row.hour > now - 20 * DAY for row in Rollup.objects.all()] == [True]
    for path in (outside, logs / "recent.log"):
        path.unlink()
