"""The backend of Django's tasks: what enqueueing stores, and what results say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.core.checks import Error
from django.db import OperationalError, transaction
from django.dispatch import Signal
from django.test import override_settings
from django.utils import timezone

from queues.api import InvalidAddress, InvalidMessage
from queues.celery.consumers.engine_thread import EngineThread
from queues.celery.django_tasks import backend
from queues.celery.django_tasks.framework import (
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)  # fmt: skip
from queues.engine.api import StoreUnavailable
from queues.models import Message, Queue, State, TaskRun
from tests.queues.celery.django_tasks import sample
from tests.queues.celery.django_tasks.conftest import TASKS, StartWorker
from tests.waiting import PATIENCE, wait_until


def finished(result: TaskResult[..., Any]) -> TaskResult[..., Any]:
    def done() -> bool:
        result.refresh()
        return result.is_finished

    wait_until(done, "the task has ended")
    return result


def test_a_task_is_a_message_with_its_id_as_key() -> None:
    result = sample.add.enqueue(1, b=2)
    [message] = Message.objects.all()
    assert message.key == result.id
    task = b"tests.queues.celery.django_tasks.sample.add"
    assert bytes(message.payload) == b'{"task": "%b", "args": [1], "kwargs": {"b": 2}}' % task
    assert result.status == TaskResultStatus.READY
    with pytest.raises(ValueError, match="not finished"):
        assert result.return_value


def test_a_task_runs_and_its_result_can_be_had_anywhere(start_worker: StartWorker) -> None:
    start_worker()
    result = finished(sample.add.enqueue(1, 2))
    assert result.return_value == 3
    assert result.attempts == 1
    assert result.started_at is not None
    assert result.enqueued_at is not None
    assert result.finished_at is not None
    assert result.enqueued_at <= result.started_at <= result.finished_at
    again = default_task_backend.get_result(result.id)
    assert (again.return_value, again.args) == (3, [1, 2])
    assert finished(sample.add_later.enqueue(1, 2)).return_value == 3
    assert finished(sample.attempt.enqueue()).return_value == 1


def test_a_task_leaves_with_the_commit_and_goes_with_the_rollback(start_worker: StartWorker) -> None:
    start_worker()
    with contextlib.suppress(KeyError), transaction.atomic():
        lost = sample.add.enqueue(1, 1)
        raise KeyError
    with transaction.atomic():
        kept = sample.add.enqueue(2, 2)
        assert TaskRun.objects.get().status == "READY"
    assert finished(kept).return_value == 4
    with pytest.raises(TaskResultDoesNotExist):
        lost.refresh()


def test_a_task_with_a_time_runs_then(start_worker: StartWorker) -> None:
    moment = timezone.now() + timedelta(seconds=5)
    result = sample.add.using(run_after=moment).enqueue(1, 2)
    assert Message.objects.get().state == State.DELAYED
    start_worker()
    started = finished(result).started_at
    assert started is not None
    assert started >= moment
    assert result.task.run_after == moment


def test_higher_priorities_run_first(start_worker: StartWorker, tmp_path: Any) -> None:
    path = str(tmp_path / "lines")
    for priority in (0, -5, 100):
        sample.note.using(priority=priority).enqueue(path, str(priority))
    start_worker(concurrency=1)
    wait_until(lambda: TaskRun.objects.filter(status="SUCCESSFUL").count() == 3, "all have run")
    assert (tmp_path / "lines").read_text().split() == ["100", "0", "-5"]


def test_a_time_of_any_kind_is_waited_for_in_a_project_without_time_zones() -> None:
    later = timedelta(hours=2)
    with override_settings(USE_TZ=False):
        waits = [backend._time_until(now + later) for now in (timezone.now(), datetime.now(UTC))]
    assert [round(wait / timedelta(hours=1)) for wait in waits] == [2, 2]


def test_a_task_that_fails_is_a_dead_letter_and_says_why(start_worker: StartWorker) -> None:
    start_worker()
    result = finished(sample.fail.enqueue())
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert "no" in result.errors[0].traceback
    wait_until(lambda: Message.objects.get().state == State.DEAD, "it is a dead letter")
    assert Message.objects.get().error == "ValueError: no"


def test_a_tasks_result_must_be_json(start_worker: StartWorker) -> None:
    start_worker()
    result = finished(sample.unserializable.enqueue())
    assert result.errors[0].exception_class is TypeError


@pytest.mark.parametrize("name", sample.UNSTORABLE)
@pytest.mark.parametrize("task", [sample.give, sample.say], ids=["result", "error"])
def test_a_task_whose_result_or_error_cannot_be_stored_fails_that_attempt(
    start_worker: StartWorker, task: Task[..., Any], name: str
) -> None:
    start_worker("fragile", concurrency=1)
    result = finished(task.using(backend="stubborn", queue_name="fragile").enqueue(name))
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)
    assert {error.exception_class for error in result.errors} <= {ValueError, RecursionError}
    wait_until(lambda: Message.objects.get().state == State.DEAD, "it is a dead letter")
    assert (Message.objects.get().error or "").startswith(("ValueError: ", "RecursionError: "))
    assert finished(sample.add.using(queue_name="fragile").enqueue(1, 2)).return_value == 3  # its thread is free


@pytest.mark.parametrize("task", [sample.fail_silently, sample.fail_at_length])
def test_an_error_without_a_text_or_with_one_of_16_mib_counts_as_an_attempt(
    start_worker: StartWorker, task: Task[..., Any]
) -> None:
    start_worker()
    result = finished(task.enqueue())
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    wait_until(lambda: Message.objects.get().state == State.DEAD, "it is a dead letter")
    assert (Message.objects.get().error or "").startswith(("Silent: ", "ValueError: \ufffd"))


def test_a_task_that_breaks_its_connection_ends_all_the_same(start_worker: StartWorker) -> None:
    start_worker()
    assert finished(sample.cut.enqueue()).return_value == 1


@pytest.mark.parametrize("name", sample.UNSTORABLE)
def test_arguments_that_cannot_be_stored_are_refused_in_words_within_the_callers_transaction(name: str) -> None:
    with transaction.atomic():
        with pytest.raises(InvalidMessage, match="arguments cannot be stored"):
            sample.add.enqueue(sample.UNSTORABLE[name], 1)
        with pytest.raises(InvalidMessage, match="arguments cannot be stored"):
            sample.add.enqueue(1, b=sample.UNSTORABLE[name])
        kept = sample.add.enqueue(1, 2)
    assert [message.key for message in Message.objects.all()] == [kept.id]


def test_a_queue_name_that_cannot_be_stored_is_refused_in_words() -> None:
    with override_settings(TASKS={"default": TASKS["default"] | {"QUEUES": []}}), transaction.atomic():
        for name in ("a\0b", "name-\udcff", "x" * 300):
            with pytest.raises(InvalidAddress):
                sample.add.using(queue_name=name).enqueue(1, 2)
        assert not TaskRun.objects.exists()


def test_a_queue_with_more_attempts_runs_a_failed_task_again(start_worker: StartWorker) -> None:
    start_worker("fragile")
    result = finished(sample.third_time.using(backend="stubborn", queue_name="fragile").enqueue())
    assert result.return_value == "done"
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [KeyError, KeyError]
    wait_until(lambda: not Message.objects.exists(), "its message is gone")


def test_signals_tell_of_each_step(start_worker: StartWorker) -> None:
    told: list[tuple[Signal, str]] = []

    def hear(sender: object, signal: Signal, task_result: TaskResult[..., Any], **_: object) -> None:
        told.append((signal, task_result.status))

    signals = (task_enqueued, task_started, task_finished)
    for signal in signals:
        signal.connect(hear)
    try:
        sample.add.enqueue(1, 2)  # its signal comes after its commit, and so perhaps after what a worker tells
        start_worker()
        wait_until(lambda: len(told) == 3, "all are told")
    finally:
        for signal in signals:
            signal.disconnect(hear)
    assert told == list(zip(signals, ("READY", "RUNNING", "SUCCESSFUL"), strict=True))


def test_a_task_with_an_unknown_name_fails(start_worker: StartWorker) -> None:
    for name in ("tests.queues.celery.django_tasks.sample.gone", "tests.queues.celery.django_tasks.sample.not_a_task"):
        result = sample.add.enqueue(1, 2)
        TaskRun.objects.filter(pk=result.id).update(task=name)
    start_worker()
    wait_until(lambda: TaskRun.objects.filter(status="FAILED").count() == 2, "both have failed")
    assert "sample" in str(TaskRun.objects.first().errors)  # type: ignore[union-attr]


def test_a_task_that_has_ended_is_not_run_twice(start_worker: StartWorker, tmp_path: Any) -> None:
    path = str(tmp_path / "lines")
    result = sample.note.enqueue(path, "once")
    TaskRun.objects.filter(pk=result.id).update(status="SUCCESSFUL", finished_at=timezone.now())
    start_worker()
    wait_until(lambda: not Message.objects.exists(), "its message is gone")
    assert not (tmp_path / "lines").exists()


def test_a_task_whose_row_is_gone_is_forgotten(start_worker: StartWorker) -> None:
    sample.add.enqueue(1, 2)
    TaskRun.objects.all().delete()
    start_worker()
    wait_until(lambda: not Message.objects.exists(), "its message is gone")


def test_a_worker_that_stops_finishes_what_has_begun(start_worker: StartWorker, tmp_path: Any) -> None:
    worker = start_worker(concurrency=1)
    first, second = sample.hang.enqueue(str(tmp_path)), sample.hang.enqueue(str(tmp_path))
    wait_until((tmp_path / "begun").exists, "the first runs")
    worker.stop()
    (tmp_path / "done").touch()
    assert finished(first).status == TaskResultStatus.SUCCESSFUL
    wait_until(lambda: Message.objects.filter(state=State.READY).count() == 1, "the second is back in its queue")
    second.refresh()
    assert second.status == TaskResultStatus.READY


def test_the_queue_is_made_with_the_first_task() -> None:
    sample.add.enqueue(1, 2)
    assert Queue.objects.get().max_attempts == 1
    sample.third_time.using(backend="stubborn", queue_name="stubborn").enqueue()
    queue = Queue.objects.get(name="stubborn")
    assert (queue.max_attempts, queue.retry_backoff, queue.ack_timeout) == (3, timedelta(seconds=0.05), None)


def test_unsupported_features_are_refused() -> None:
    with pytest.raises(InvalidTask, match="not valid"):
        sample.add.using(queue_name="unknown").enqueue(1, 2)
    with pytest.raises(TypeError, match="Unsupported type"):
        sample.add.enqueue(object(), 2)  # type: ignore[arg-type]
    assert not TaskRun.objects.exists()
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("absent")
    with pytest.raises(TaskResultMismatch):
        sample.fail.get_result(sample.add.enqueue(1, 2).id)


def test_a_queue_that_cannot_have_its_name_is_found_by_the_checks() -> None:
    backend = task_backends["default"]
    assert list(backend.check()) == []
    backend.queues = {"_system", "fine"}
    [problem] = backend.check()
    assert isinstance(problem, Error)
    assert "'_system'" in problem.msg


def test_a_worker_outlives_the_database_also_while_one_of_its_queues_is_not_there(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def be_away(*arguments: Any) -> None:
        asked.set()
        raise StoreUnavailable()

    with monkeypatch.context() as away:
        away.setattr(EngineThread, "consume", be_away)
        start_worker()
        assert asked.wait(PATIENCE)
    assert finished(sample.add.enqueue(1, 2)).return_value == 3


def test_a_worker_whose_ended_tasks_cannot_be_removed_works_on(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.celery.django_tasks.worker.TIDY", 0.0)
    asked = threading.Event()

    def be_away(*arguments: Any) -> None:
        asked.set()
        raise OperationalError("the database is away\nand more")

    with monkeypatch.context() as away:
        away.setattr("django.db.models.query.QuerySet.delete", be_away)
        start_worker()
        assert asked.wait(PATIENCE)
        assert finished(sample.add.enqueue(1, 2)).return_value == 3


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has no tasks of its own")
def test_from_django_6_on_all_of_it_is_djangos_own(
    start_worker: StartWorker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django import tasks

    caplog.set_level("INFO", "django.tasks")
    assert tasks.task_backends["default"] is task_backends["default"]
    start_worker()
    result = finished(sample.fail.enqueue())
    assert isinstance(result, tasks.TaskResult)
    assert isinstance(result.task, tasks.Task)
    wait_until(lambda: "state=FAILED" in caplog.text, "Django's logger says it")
    [failure] = [record for record in caplog.records if record.name == "django.tasks" and record.levelname == "ERROR"]
    assert failure.exc_info is not None
    assert failure.exc_info[0] is ValueError
    with pytest.raises(tasks.exceptions.TaskResultDoesNotExist):
        tasks.default_task_backend.get_result("absent")


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has no tasks of its own")
def test_from_django_6_on_the_package_is_not_needed() -> None:
    program = "import sys; sys.modules['django_tasks'] = None; import queues.celery.django_tasks.running"
    environment = os.environ | {"DATABASE_URL": "postgresql://localhost/none"}
    subprocess.run([sys.executable, "-c", f"import django; django.setup(); {program}"], env=environment, check=True)
