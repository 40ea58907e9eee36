"""Jobs: messages as workers and those who give them work see them, each found by a jid, `<queue>:<uuid>`.

A job is a message of the store like any other; the uuid is its first id in the form of a UUID (version 8), so that a
jid costs nothing to make and leads straight to the row. Statuses are those of the Overhop protocol:

| status | message |
|---|---|
| new | ready: it waits for a worker, for the first time or again |
| delayed | scheduled, or waiting for its next attempt |
| waiting | leased to a node, for its next free worker |
| active | with a worker |
| failed | a dead letter |
| completed | acknowledged, and in the archive |
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import F, Func, IntegerField, Q

from queues.engine.api import first_id, message_uuid
from queues.errors import OperationError
from queues.formats.texts import storable
from queues.models import ArchivedMessage, JobLogLine, Message, Outcome, Queue, State, Worker
from queues.operations.messages import get_queue, purge_batches

#: Limit of a job's log lines. The latest are kept.
MAX_LOG_LINES = 200
#: Limit of jobs skipped to reach a page. Skipping more costs too much.
FURTHEST = 1_000_000


class JobStatus(StrEnum):
    """The status of a job."""

    NEW = "new"
    WAITING = "waiting"
    DELAYED = "delayed"
    COMPLETED = "completed"
    FAILED = "failed"
    ACTIVE = "active"


STATUS_OF = {
    State.READY: JobStatus.NEW,
    State.LEASED: JobStatus.ACTIVE,
    State.DELAYED: JobStatus.DELAYED,
    State.DEAD: JobStatus.FAILED,
    State.DEAD_LEASED: JobStatus.FAILED,
}


class JobNotRemovable(OperationError):
    """A worker has the job."""


class PageTooLarge(OperationError):
    """The jobs of a page do not fit into one answer."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job, wherever it is now. `payload` is None once it is finished, unless the queue's retention keeps payloads.

    `max_attempts` 0 is without limit; `priority` higher first.
    """

    id: int
    uuid: UUID
    queue: str
    status: JobStatus
    payload: bytes | None
    content: int | None
    scheduled_at: datetime.datetime | None
    max_attempts: int
    retry_interval_ms: int
    created_at: datetime.datetime
    attempts: int
    priority: int = 0
    key: str | None = None
    error: str | None = None
    result: bytes | None = None
    finished_at: datetime.datetime | None = None
    log: tuple[str, ...] = ()


def find_job(queue: str, uuid: UUID, active: Iterable[int] = (), using: str = DEFAULT_DB_ALIAS) -> StoredJob | None:
    """A job with its log; None if it does not exist or is no longer kept. `active` is as for `list_jobs`."""
    found = Queue.objects.using(using).filter(name=queue).first()
    if found is None:
        return None
    id = first_id(uuid)
    row = _live(found, [id], using).first() or _archived(found, id, using)
    if row is None or message_uuid(found.uuid, id) != uuid:
        return None
    lines = JobLogLine.objects.using(using).filter(message_id=id).order_by("id").values_list("line", flat=True)
    job = _job(found, row, tuple(lines))
    if job.status is JobStatus.ACTIVE and id not in active and id not in _jobs_of_workers(queue, using):
        job = replace(job, status=JobStatus.WAITING)
    return job


def list_jobs(
    queue: str, status: JobStatus, page: int, page_size: int, active: Iterable[int] = (),
    prefetched: Iterable[int] = (), most_bytes: int | None = None, using: str = DEFAULT_DB_ALIAS,
) -> list[StoredJob]:  # fmt: skip
    """A page (1, 2, …) of a queue's jobs in one status, oldest first. Raises QueueNotFound, or PageTooLarge when their
    payloads and results have more than `most_bytes` together.

    Leased messages have no index: `active` and `prefetched` are the first ids of those that this process's workers and
    its memory have; what other nodes tell of their workers comes on top, within a second.
    """
    found = get_queue(queue, using)
    rows: Any
    if status is JobStatus.COMPLETED:
        rows = ArchivedMessage.objects.using(using).filter(queue=found, job=True).order_by("id")
    elif status is JobStatus.ACTIVE:
        rows = _live(found, [*active, *_jobs_of_workers(queue, using)], using).filter(state=State.LEASED).order_by("id")
    elif status is JobStatus.WAITING:
        rows = _live(found, list(prefetched), using).filter(state=State.LEASED).order_by("id")
    else:
        states = [state for state, named in STATUS_OF.items() if named is status]
        rows = Message.objects.using(using).filter(queue=found, state__in=states).order_by("id")
        if status is JobStatus.NEW:
            rows = rows.within_reach(page * page_size, queue=found.pk, state=State.READY)
    start = (page - 1) * page_size
    rows = rows[start : start + page_size]
    if most_bytes is not None:
        kept = ("payload", "result") if status is JobStatus.COMPLETED else ("payload",)
        sizes = rows.values_list(*(_size(name) for name in kept))
        if sum(size or 0 for row in sizes for size in row) > most_bytes:
            raise PageTooLarge(f"{page_size} jobs as large as these do not fit into one answer; ask for fewer")
    jobs = [_job(found, row) for row in rows]
    return [replace(job, status=status) for job in jobs]


def remove_job(queue: str, uuid: UUID, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Remove a job that no worker has, finished ones from the archive; False when there is none.

    Raises JobNotRemovable.
    """
    job = find_job(queue, uuid, using=using)
    if job is None:
        return False
    if job.status in (JobStatus.ACTIVE, JobStatus.WAITING):
        raise JobNotRemovable("A worker has it, or is about to get it.")
    found = get_queue(queue, using)
    with transaction.atomic(using=using):
        if job.status is JobStatus.COMPLETED:
            gone = _archived_rows(found, job.id, using)._raw_delete(using)
        else:
            row = _live(found, [job.id], using).values_list("id", "state").first()
            gone = 0
            if row is not None:
                gone = sum(purge_batches(found.pk, State(row[1]), Outcome.REMOVED, using, [row[0]]))
        JobLogLine.objects.using(using).filter(message_id=job.id).delete()
    if not gone:  # a worker was quicker
        raise JobNotRemovable("A worker has just got it.")
    return True


def write_log(queue: int, id: int, line: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """Add a line to a job's log. Only the latest lines are kept."""
    lines = JobLogLine.objects.using(using).filter(message_id=id).order_by("-id")
    with transaction.atomic(using=using):
        JobLogLine.objects.using(using).create(queue_id=queue, message_id=id, line=storable(line))
        if oldest := lines.values_list("id", flat=True)[MAX_LOG_LINES - 1 : MAX_LOG_LINES].first():
            lines.filter(id__lt=oldest).delete()


def _jobs_of_workers(queue: str, using: str) -> set[int]:
    workers = Worker.objects.using(using).filter(active__gt=0).values_list("jobs", flat=True)
    return {job["message"] for jobs in workers for job in jobs if job["queue"] == queue}


def _live(queue: Queue, ids: list[int], using: str) -> Any:
    """The rows of unfinished jobs with these first ids."""
    return Message.objects.using(using).filter(Q(pk__in=ids) | Q(origin_id__in=ids), queue=queue)


def _archived_rows(queue: Queue, id: int, using: str) -> Any:
    return ArchivedMessage.objects.using(using).with_id(id).filter(queue=queue, outcome=Outcome.ACKNOWLEDGED)


def _archived(queue: Queue, id: int, using: str) -> ArchivedMessage | None:
    row: ArchivedMessage | None = _archived_rows(queue, id, using).filter(job=True).first()
    return row or _archived_rows(queue, id, using).first()


def _job(queue: Queue, row: Message | ArchivedMessage, log: tuple[str, ...] = ()) -> StoredJob:
    interval = int(queue.retry_backoff.total_seconds() * 1000)
    attempts = queue.max_attempts if row.max_attempts is None else row.max_attempts
    if row.retry_interval is not None:
        interval = row.retry_interval
    if isinstance(row, ArchivedMessage):
        return StoredJob(
            row.id, message_uuid(queue.uuid, row.id), queue.name, JobStatus.COMPLETED, _bytes(row.payload), row.content,
            row.due_at, attempts, interval, row.published_at, row.attempts, key=row.key,
            result=_bytes(row.result), finished_at=row.finished_at, log=log,
        )  # fmt: skip
    id = row.origin_id or row.pk
    return StoredJob(
        id, message_uuid(queue.uuid, id), queue.name, STATUS_OF[State(row.state)], bytes(row.payload), row.content,
        row.due_at, attempts, interval, row.published_at, row.attempts, -(row.pk >> 56), row.key, row.error, log=log,
    )  # fmt: skip


def _size(column: str) -> Func:
    return Func(F(column), function="octet_length", output_field=IntegerField())


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
