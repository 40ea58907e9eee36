"""The site's Celery application: its tasks, its beat schedule, where results are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings as project
from django.contrib.sessions.models import Session
from django.utils import timezone
from django_celery_results.models import TaskResult

from brokersite import tasks
from brokersite.celery import app
from hydra.models import SentLine

DAY = timedelta(days=1)


@pytest.mark.django_db
def test_expired_sessions_and_old_lines_are_forgotten() -> None:
    Session.objects.create(session_key="old", expire_date=timezone.now() - DAY)
    Session.objects.create(session_key="new", expire_date=timezone.now() + DAY)
    SentLine.objects.create(message=1)
    SentLine.objects.update(sent_at=timezone.now() - 2 * DAY)
    tasks.forget_old.apply(throw=True)
    assert [session.pk for session in Session.objects.all()] == ["new"]
    assert not SentLine.objects.exists()


def test_everything_by_the_clock_is_a_task_that_there_is() -> None:
    app.loader.import_default_modules()
    assert {"queues.keep_archive", "brokersite.forget_old"} <= set(app.conf.beat_schedule)
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
    run = app.tasks["queues.etl.run"]
    assert project.BROKER_ETL_TIMEOUT < run.soft_time_limit < run.time_limit
