"""Queues as producers and workers of jobs see them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections

from queues.errors import OperationError
from queues.models import Queue, Worker
from queues.operations import queues
from queues.operations.jobs import JobStatus
from queues.operations.messages import get_queue
from queues.store.counts import queue_counts


class AlreadyPaused(OperationError):
    """The queue is paused already."""


class AlreadyRunning(OperationError):
    """The queue is not paused."""


@dataclass(frozen=True, slots=True)
class JobQueue:
    """A queue and what concerns its jobs."""

    uuid: UUID
    name: str
    paused: bool
    concurrency_limit: int | None
    allow_job_overrides: bool


def find_queue(name: str, using: str = DEFAULT_DB_ALIAS) -> JobQueue | None:
    """The queue of this name, or None."""
    found = Queue.objects.using(using).filter(name=name).first()
    return None if found is None else _job_queue(found)


def all_queues(using: str = DEFAULT_DB_ALIAS) -> list[JobQueue]:
    """Every queue, the system's too, in the order of their names' code points."""
    return sorted(map(_job_queue, Queue.objects.using(using).all()), key=lambda queue: queue.name)


def count_queues(using: str = DEFAULT_DB_ALIAS) -> int:
    """The number of queues, without the system's."""
    return Queue.objects.using(using).exclude(name__startswith="_").count()


def add_queue(
    name: str, concurrency_limit: int | None, allow_job_overrides: bool, using: str = DEFAULT_DB_ALIAS
) -> JobQueue:
    """Make a queue. Raises QueueExists or InvalidQueue."""
    return _job_queue(
        queues.create_queue(name, using, concurrency_limit=concurrency_limit, allow_job_overrides=allow_job_overrides)
    )


def set_paused(name: str, paused: bool, using: str = DEFAULT_DB_ALIAS) -> None:
    """Pause a queue or let it run again. Raises QueueNotFound, AlreadyPaused or AlreadyRunning."""
    if not queues.set_paused(name, paused, using):
        raise AlreadyPaused(f"queue {name} is paused already") if paused else AlreadyRunning(
            f"queue {name} is running already"
        )


def job_stats(name: str, active: int = 0, node: int = 0, using: str = DEFAULT_DB_ALIAS) -> dict[JobStatus, int]:
    """The number of a queue's jobs in each status, and of those ever completed; as cheap with millions as with none.

    `active` is how many the consumers of this process have, which is node number `node`; other nodes tell of their
    workers once a second. Raises QueueNotFound.
    """
    counts = queue_counts(get_queue(name, using).pk, using)
    for claims in Worker.objects.using(using).exclude(node=node).values_list("subscriptions", flat=True):
        active += sum(claim["active"] for claim in claims if claim["queue"] == name)
    active = min(active, max(counts.leased, 0))
    return {
        JobStatus.NEW: counts.ready,
        JobStatus.WAITING: counts.leased - active,
        JobStatus.DELAYED: counts.delayed,
        JobStatus.COMPLETED: counts.completed,
        JobStatus.FAILED: counts.dead,
        JobStatus.ACTIVE: active,
    }


def store_status(using: str = DEFAULT_DB_ALIAS) -> tuple[str, int, int]:
    """The server's version, how many queues there are, and how many of them are paused."""
    every = Queue.objects.using(using)
    with connections[using].cursor() as cursor:
        cursor.execute("show server_version")
        version = str(cursor.fetchone()[0])
    return version, every.count(), every.filter(paused=True).count()


def _job_queue(queue: Queue) -> JobQueue:
    return JobQueue(queue.uuid, queue.name, queue.paused, queue.concurrency_limit, queue.allow_job_overrides)
