"""The backend of Django's tasks::

    BACKEND = "queues.celery.django_tasks.backend.FivewireBackend"
    TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}

A task that is enqueued inside ``transaction.atomic()`` runs if and when that commits. Its queue is a queue like any
other, made when the first task is enqueued. OPTIONS may have ``max_attempts`` (1: a task that fails is not run again)
and ``retry_backoff`` (seconds, doubled with each further attempt) for queues that are made then, and ``database``, the
alias of the database.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from queues.api import InvalidMessage, QueueNotFound, publish
from queues.celery.django_tasks.framework import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)  # fmt: skip
from queues.celery.django_tasks.results import to_result
from queues.formats.texts import json_text
from queues.models import TaskRun
from queues.models.moment import aware
from queues.operations.queues import QueueExists, create_queue
from queues.permissions.addresses import queue_problem
from queues.permissions.rules import Operation, Protocol

P = ParamSpec("P")
R = TypeVar("R")


class FivewireBackend(BaseTaskBackend):
    """Tasks as messages, and what became of them as rows of `TaskRun`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", DEFAULT_DB_ALIAS)

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """Store a task in the caller's transaction. Raises InvalidTask, or what `queues.api.publish` does: for
        arguments that cannot be stored InvalidMessage."""
        self.validate_task(task)
        run = TaskRun(
            id=get_random_string(32),
            backend=self.alias,
            queue=task.queue_name,
            task=task.module_path,
            args=_storable("positional", args),
            kwargs=_storable("keyword", kwargs),
            priority=task.priority,
            run_after=task.run_after,
            enqueued_at=timezone.now(),
        )
        with transaction.atomic(using=self.database):
            self._publish(run)
            run.save(using=self.database, force_insert=True)
        result: TaskResult[P, R] = to_result(run, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _publish(self, run: TaskRun) -> None:
        try:
            self._send(run)
        except QueueNotFound:
            self._make_queue(run.queue)
            self._send(run)

    def _send(self, run: TaskRun) -> None:
        publish(
            f"queue:{run.queue}",
            json.dumps({"task": run.task, "args": run.args, "kwargs": run.kwargs}).encode(),
            headers={"id": run.id, "task": run.task},
            key=run.id,
            priority=run.priority,
            delay=_time_until(run.run_after),
            content_type="application/json",
            using=self.database,
        )

    def _make_queue(self, name: str) -> None:
        policy = {
            "max_attempts": self.options.get("max_attempts", 1),
            "retry_backoff": self.options.get("retry_backoff", 1.0),
            "ack_timeout": None,
        }
        with suppress(QueueExists), transaction.atomic(using=self.database):
            create_queue(name, using=self.database, **policy)

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """The result of a task. Raises TaskResultDoesNotExist."""
        run = TaskRun.objects.using(self.database).filter(pk=result_id, backend=self.alias).first()
        if run is None:
            raise TaskResultDoesNotExist(result_id)
        result: TaskResult[..., Any] = to_result(run)
        return result

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Whether every queue can have its name."""
        return [
            checks.Error(f"TASKS[{self.alias!r}]: there can be no queue {queue!r}: {problem}.", id="queues.E100")
            for queue in sorted(self.queues)
            if (problem := queue_problem(queue, Protocol.DJANGO, Operation.CREATE))
        ]


def _storable(kind: str, arguments: Any) -> Any:
    """Arguments as JSON has them. Raises InvalidMessage, or TypeError for what JSON has no form for."""
    try:
        values = normalize_json(arguments)
        json_text(values)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"The {kind} arguments cannot be stored: {error}.") from error
    return values


def _time_until(moment: datetime | None) -> timedelta:
    return timedelta(0) if moment is None else max(timedelta(0), aware(moment) - datetime.now(UTC))
