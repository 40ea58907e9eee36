"""Running one task, in a thread: the row has its state, and the return value is the settlement of the message."""

from __future__ import annotations

import enum
import logging
from traceback import format_exception
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, close_old_connections, connections
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
from queues.engine.api import MAX_ERROR, MAX_REPEATS, Fault, fault_of
from queues.formats.texts import json_text, storable
from queues.models import TaskRun, TaskStatus

logger = logging.getLogger(__name__)

#: Characters of a traceback, and errors of a task, that are kept.
MAX_TRACEBACK = 64 * 1024
MAX_ERRORS = 100


class Ending(enum.Enum):
    """The settlement of a message."""

    DONE = "done"
    FAILED = "failed"


def run_task(id: str, worker: str, last_attempt: bool, using: str) -> tuple[Ending, str]:
    """Run a task and note it; returns how it ended, and why it failed. What it raises is caught. Raises
    django.db.Error while the database is away."""
    close_old_connections()
    try:
        run = TaskRun.objects.using(using).filter(pk=id).first()
        if run is None:
            logger.warning("the task %s is not in the database any more: it is not run", id)
            return Ending.DONE, ""
        if run.finished_at is not None:  # its worker died after it had ended
            return Ending.DONE, ""
        return _attempt(run, worker, last_attempt)
    except Exception as error:
        if _fault(error, using) is not Fault.BAD:
            raise
        logger.exception("the state of the task %s cannot be stored: this counts as an attempt", id)
        return Ending.FAILED, _words(error)
    finally:
        close_old_connections()


def _attempt(run: TaskRun, worker: str, last_attempt: bool) -> tuple[Ending, str]:
    run.last_attempted_at = timezone.now()
    run.started_at = run.started_at or run.last_attempted_at
    run.status = TaskStatus.RUNNING
    run.worker_ids = [*run.worker_ids, worker]
    _save(run, "last_attempted_at", "started_at", "status", "worker_ids")
    try:
        task = find_task(run)
        task_started.send(type(task_backends[run.backend]), task_result=to_result(run, task))
        run.return_value = normalize_json(_call(task, run))
        json_text(run.return_value)
    except BaseException as error:
        return _failed(run, error, last_attempt)
    run.status, run.finished_at = TaskStatus.SUCCESSFUL, timezone.now()
    try:
        _save(run, "status", "finished_at", "return_value")
    except Exception as error:
        if _fault(error, run._state.db) is not Fault.BAD:
            raise
        return _failed(run, error, last_attempt)
    _tell(run)
    return Ending.DONE, ""


def _save(run: TaskRun, *fields: str) -> None:
    """Store fields of a row. A connection that the task has broken is left for another."""
    close_old_connections()
    for repeats in range(MAX_REPEATS, -1, -1):
        try:
            return run.save(update_fields=fields)
        except Error as error:
            if not repeats or _fault(error, run._state.db) is not Fault.REPEAT:
                raise


def _fault(error: Exception, using: str | None) -> Fault:
    """The database's state after an error. BAD: the database is there, and the task or its data is at fault."""
    if not isinstance(error, Error):
        return Fault.BAD
    return fault_of(error.__cause__ or error, connections[using or DEFAULT_DB_ALIAS].connection)


def _call(task: Task[..., Any], run: TaskRun) -> Any:
    if task.takes_context:
        return task.call(TaskContext(task_result=to_result(run, task)), *run.args, **run.kwargs)
    return task.call(*run.args, **run.kwargs)


def _failed(run: TaskRun, error: BaseException, last_attempt: bool) -> tuple[Ending, str]:
    told = {
        "exception_class_path": storable(f"{type(error).__module__}.{type(error).__qualname__}"),
        "traceback": storable("".join(format_exception(error)), MAX_TRACEBACK),
    }
    run.errors = [*run.errors, told][-MAX_ERRORS:]
    run.return_value = None
    run.status = TaskStatus.FAILED if last_attempt else TaskStatus.READY
    run.finished_at = timezone.now() if last_attempt else None
    _save(run, "errors", "status", "finished_at")
    why = _words(error)
    if last_attempt:
        _tell(run)
    else:
        logger.warning("the task %s (%s) failed and will be run again: %s", run.task, run.id, why)
    return Ending.FAILED, why


def _words(error: BaseException) -> str:
    """An error in a line of a log or of a dead letter."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be had"
    return storable(f"{type(error).__name__}: {text}", MAX_ERROR)


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
