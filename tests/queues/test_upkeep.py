"""What happens by the clock outside the engines: the same as in them, and safe beside them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.conf import settings as project
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone
from django_celery_results.models import TaskResult

from brokersite import tasks
from brokersite.celery import app
from hydra.models import SentLine
from queues import upkeep
from queues.database import connection_parameters
from queues.models import AuditAnchor, EtlRun, EtlState, JobLogLine, Node, Rollup, State
from queues.operations.audit_log import record
from tests.queues.store import assert_counts_are_exact, make_queue, store

DAY = timedelta(days=1)


def archive_days() -> set[str]:
    """The days that have a partition."""
    with connection.cursor() as cursor:
        cursor.execute("select inhrelid::regclass::text from pg_inherits where inhparent = 'queues_archive'::regclass")
        return {name.removeprefix("queues_archive_") for (name,) in cursor.fetchall()}


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


def test_an_old_day_is_left_for_the_next_time_while_somebody_reads_the_archive(transactional_db: None) -> None:
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


def test_what_a_dead_node_had_leased_is_given_back(transactional_db: None) -> None:
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
def test_what_nobody_asks_for_any_more_is_forgotten(settings) -> None:
    settings.BROKER_ETL_RUN_DAYS, settings.BROKER_ROLLUP_DAYS = 10, 20
    now = timezone.now()
    logs = project.DATA_DIR / "etl" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    outside = project.DATA_DIR / "not-a-log"
    for age, name in ((9, logs / "recent.log"), (11, logs / "old.log"), (11, outside)):
        name.touch()
        EtlRun.objects.create(
            state=EtlState.SUCCEEDED, output="/o", trigger="t", ended_at=now - age * DAY, log=str(name)
        )
    EtlRun.objects.create(state=EtlState.RUNNING, output="/o", trigger="t")
    Rollup.objects.bulk_create(Rollup(queue="q", hour=now - age * DAY) for age in (19, 21))
    Session.objects.create(session_key="old", expire_date=now - DAY)
    SentLine.objects.create(message=1)
    SentLine.objects.update(sent_at=now - 2 * DAY)
    tasks.forget_old.apply(throw=True)
    assert list(EtlRun.objects.order_by("pk").values_list("state", flat=True)) == ["succeeded", "running"]
    assert (logs / "recent.log").exists()
    assert not (logs / "old.log").exists()
    assert outside.exists()
    assert [row.hour > now - 20 * DAY for row in Rollup.objects.all()] == [True]
    assert not Session.objects.exists()
    assert not SentLine.objects.exists()
    for path in (outside, logs / "recent.log"):
        path.unlink()


def test_everything_by_the_clock_is_a_task_that_there_is() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
    assert all(entry["options"]["expires"] for entry in app.conf.beat_schedule.values())


def test_tasks_are_written_as_json_kept_until_they_are_done_and_sent_with_the_commit() -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_acks_late
    assert app.conf.broker_transport_options == {"django_connection": "default"}
    assert app.conf.beat_scheduler == "celery.beat:Scheduler"  # it keeps no file


@pytest.mark.django_db
def test_results_and_failures_are_kept_in_the_database() -> None:
    assert (app.conf.task_ignore_result, app.conf.task_store_errors_even_if_ignored) == (True, True)
    app.backend.store_result("one", {"rows": 3}, "SUCCESS")
    assert TaskResult.objects.get().task_id == "one"
    assert app.AsyncResult("one").get() == {"rows": 3}


def test_a_run_has_more_time_than_it_may_take() -> None:
    app.loader.import_default_modules()
    run = app.tasks["etl.run"]
    assert project.BROKER_ETL_TIMEOUT < run.soft_time_limit < run.time_limit
