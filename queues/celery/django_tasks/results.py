"""A stored task as Django knows it."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from queues.celery.django_tasks.framework import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from queues.models import TaskRun


def find_task(run: TaskRun) -> Task[..., Any]:
    """The task that a row is a call of. Raises ImportError, or InvalidTask when the name is no task's."""
    task = import_string(run.task)
    if not isinstance(task, Task):
        raise InvalidTask(f"{run.task} is not a task")
    return task.using(
        priority=run.priority, queue_name=run.queue, run_after=run.run_after, backend=run.backend
    )


def to_result(run: TaskRun, task: Task[..., Any] | None = None) -> Any:
    """The TaskResult of a task until now. Raises as `find_task`."""
    result: TaskResult[..., Any] = TaskResult(
        task=task or find_task(run),
        id=run.id,
        status=TaskResultStatus(run.status),
        enqueued_at=run.enqueued_at,
        started_at=run.started_at,
        last_attempted_at=run.last_attempted_at,
        finished_at=run.finished_at,
        args=run.args,
        kwargs=run.kwargs,
        backend=run.backend,
        errors=[TaskError(**error) for error in run.errors],
        worker_ids=list(run.worker_ids),
    )
    object.__setattr__(result, "_return_value", run.return_value)
    return result
