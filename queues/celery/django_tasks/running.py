"""Running one task, in a thread: the row has its state, and the return value is the settlement of the message."""

from __future__ import annotations

import enum
import logging
from traceback import format_exception
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from queues.celery.django_tasks.framework import (
    Task,
    TaskContext,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)  # fmt: skip
from queues.celery.django_tasks.results import find_task, to_result
from queues.models import TaskRun, TaskStatus

logger = logging.getLogger(__name__)


class Ending(enum.Enum):
    """The settlement of a message."""

    DONE = "done"
    FAILED = "failed"


def run_task(id: str, worker: str, last_attempt: bool, using: str) -> tuple[Ending, str]:
    """Run a task and note it; returns how it ended, and why it failed. What it raises is caught."""
    close_old_connections()
    try:
        run = TaskRun.objects.using(using).filter(pk=id).first()
        if run is None:
            logger.warning("the task %s is not in the database any more: it is not run", id)
            return Ending.DONE, ""
        if run.finished_at is not None:  # its worker died after it had ended
            return Ending.DONE, ""
        return _attempt(run, worker, last_attempt)
    finally:
        close_old_connections()


def _attempt(run: TaskRun, worker: str, last_attempt: bool) -> tuple[Ending, str]:
    run.last_attempted_at = timezone.now()
    run.started_at = run.started_at or run.last_attempted_at
    run.status = TaskStatus.RUNNING
    run.worker_ids = [*run.worker_ids, worker]
    run.save(update_fields=["last_attempted_at", "started_at", "status", "worker_ids"])
    try:
        task = find_task(run)
        task_started.send(type(task_backends[run.backend]), task_result=to_result(run, task))
        run.return_value = normalize_json(_call(task, run))
    except BaseException as error:
        return _failed(run, error, last_attempt)
    run.status, run.finished_at = TaskStatus.SUCCESSFUL, timezone.now()
    run.save(update_fields=["status", "finished_at", "return_value"])
    _tell(run)
    return Ending.DONE, ""


def _call(task: Task[..., Any], run: TaskRun) -> Any:
    if task.takes_context:
        return task.call(TaskContext(task_result=to_result(run, task)), *run.args, **run.kwargs)
    return task.call(*run.args, **run.kwargs)


def _failed(run: TaskRun, error: BaseException, last_attempt: bool) -> tuple[Ending, str]:
    run.errors = [
        *run.errors,
        {
            "exception_class_path": f"{type(error).__module__}.{type(error).__qualname__}",
            "traceback": "".join(format_exception(error)),
        },
    ]
    run.status = TaskStatus.FAILED if last_attempt else TaskStatus.READY
    run.finished_at = timezone.now() if last_attempt else None
    run.save(update_fields=["errors", "status", "finished_at"])
    if last_attempt:
        _tell(run)
    else:
        logger.warning("the task %s (%s) failed and will be run again: %r", run.task, run.id, error)
    return Ending.FAILED, f"{type(error).__name__}: {error}"


def _tell(run: TaskRun) -> None:
    """Send the signal of the end; what its receivers raise is not the task's fault."""
    try:
        result = to_result(run)
    except Exception:
        logger.error("the task %s (%s) cannot be found", run.task, run.id)
        return
    for receiver, answer in task_finished.send_robust(type(task_backends[run.backend]), task_result=result):
        if isinstance(answer, Exception):
            logger.error("%r failed upon the end of a task", receiver, exc_info=answer)
