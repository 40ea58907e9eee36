"""Requests that look into the store: rare, and answered over Django's connections in a few threads.

Those that change something have threads of their own: where they wait for their commits, the others are answered.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connection

from queues.engine.api import Broker, Content, EngineError, QueueNotFound, StoreUnavailable
from queues.errors import Busy
from queues.operations import job_queues, jobs
from queues.operations import queues as queue_operations
from wire.overhop.blocking_calls import Threads
from wire.overhop.codec.fields import DomainError
from wire.overhop.codec.messages import AddQueue, ListJobs, split_job_id
from wire.overhop.codec.names import Code
from wire.overhop.codec.timestamps import format_timestamp
from wire.overhop.payloads import payload_object

T = TypeVar("T")
Payload = dict[str, Any]

THREADS = 4

#: The protocol's codes for the store's errors.
CODES: tuple[tuple[type[Exception], Code], ...] = (
    (queue_operations.QueueExists, Code.DUPLICATE_QUEUE),
    (queue_operations.InvalidQueue, Code.INVALID_QUEUE_NAME),
    (queue_operations.QueueNotEmpty, Code.QUEUE_NOT_EMPTY),
    (Busy, Code.UNAVAILABLE),
    (job_queues.AlreadyPaused, Code.QUEUE_ALREADY_PAUSED),
    (job_queues.AlreadyRunning, Code.QUEUE_ALREADY_RUNNING),
    (jobs.PageTooLarge, Code.INVALID_PAGE_SIZE),
    (jobs.JobNotRemovable, Code.JOB_STATUS_NOT_REMOVABLE),
    (QueueNotFound, Code.QUEUE_NOT_FOUND),
)


class Queries:
    """Answers the requests of one process. Each method returns an answer's payload and raises DomainError."""

    def __init__(self, engine: Broker, largest_answer: int, most_queues: int) -> None:
        """`largest_answer`: bytes of payloads that one answer may have; `most_queues`: how many there may be for
        clients to make one more."""
        self._engine = engine
        self._most_queues = most_queues
        self._largest_answer = largest_answer
        self._looking, self._changing = Threads(THREADS), Threads(THREADS)
        self._started = time.monotonic()

    def close(self) -> None:
        """Take no more requests."""
        for threads in (self._looking, self._changing):
            threads.close()

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that reads by Django's connection. Raises DomainError or StoreUnavailable."""
        return await self._call(self._looking, function, *arguments)

    async def change(self, function: Callable[..., T], *arguments: Any) -> T:
        """The same for a function that writes; one whose commit takes as long as a publish may is given up."""
        return await self._call(self._changing, function, *arguments)

    async def _call(self, threads: Threads, function: Callable[..., T], *arguments: Any) -> T:
        try:
            async with asyncio.timeout(self._engine.options.publish_timeout):
                return await threads.call(_with_connection, function, *arguments)
        except TimeoutError as error:
            raise StoreUnavailable("the database has not answered in time: it may be done or not") from error
        except (OperationalError, InterfaceError) as error:
            raise StoreUnavailable(str(error).strip().split("\n")[0]) from error
        except (EngineError, queue_operations.OperationError) as error:
            for kind, code in CODES:
                if isinstance(error, kind):
                    raise DomainError(code, str(error)) from error
            raise

    # Queues.

    async def queue(self, name: str) -> Payload:
        """GQUEUE: the queue's metadata; nothing when there is none."""
        found = await self.ask(job_queues.find_queue, name)
        return {} if found is None else metadata(found)

    async def queues(self, is_visible: Callable[[str], bool]) -> Payload:
        """LQUEUES: the metadata of the queues whose names are visible, by name."""
        found = await self.ask(job_queues.all_queues)
        return {"queues": [metadata(queue) for queue in found if is_visible(queue.name)]}

    async def add_queue(self, wanted: AddQueue) -> Payload:
        """ADDQUEUE: the new queue's id."""
        if await self.ask(job_queues.count_queues) >= self._most_queues:
            raise DomainError(Code.FORBIDDEN, f"there are {self._most_queues} queues: clients may make no more")
        queue = await self.change(job_queues.add_queue, *wanted)
        return {"qid": str(queue.uuid)}

    async def remove_queue(self, name: str) -> Payload:
        """RMQUEUE."""
        await self.change(queue_operations.delete_queue, name)
        return {}

    async def set_paused(self, name: str, paused: bool) -> Payload:
        """PAUSE, RESUME."""
        await self.change(job_queues.set_paused, name, paused)
        await self._engine.refresh(name)
        return {}

    async def stats(self, name: str) -> Payload:
        """QSTATS: jobs by status."""
        active = len(self._engine.with_consumers(name))
        counts = await self.ask(job_queues.job_stats, name, active, self._engine.node)
        return {"q": name, "stats": {status.value: count for status, count in counts.items()}}

    # Jobs.

    async def job(self, jid: str) -> Payload:
        """JOB: the record; nothing when there is none."""
        queue, uuid = split_job_id(jid)
        found = await self.ask(jobs.find_job, queue, UUID(uuid), self._engine.with_consumers(queue))
        if found is None:
            return {}
        if len(found.payload or b"") + len(found.result or b"") > self._largest_answer:
            found = replace(found, payload=None)  # both do not fit; the result is the answer
        return record(found)

    async def remove_job(self, jid: str) -> Payload:
        """RMJOB."""
        queue, uuid = split_job_id(jid)
        if not await self.change(jobs.remove_job, queue, UUID(uuid)):
            raise DomainError(Code.JOB_NOT_FOUND, f"there is no job {jid}")
        return {}

    async def list_jobs(self, wanted: ListJobs) -> Payload:
        """LSJOB: a page of records."""
        if (wanted.page - 1) * wanted.page_size > jobs.FURTHEST:
            raise DomainError(Code.INVALID_PAGE, f"page {wanted.page} is further than can be looked")
        found = await self.ask(
            jobs.list_jobs, wanted.q, jobs.JobStatus(wanted.status), wanted.page, wanted.page_size,
            self._engine.with_consumers(wanted.q),
            self._engine.prefetched(wanted.q, wanted.page * wanted.page_size), self._largest_answer,
        )  # fmt: skip
        return {
            "q": wanted.q, "status": wanted.status, "page": wanted.page, "page_size": wanted.page_size,
            "jobs": [record(job) for job in found],
        }  # fmt: skip

    async def log(self, queue: int, id: int, line: str) -> Payload:
        """LOG."""
        await self.change(jobs.write_log, queue, id, line)
        return {}

    # The server.

    async def status(self, anonymous: int, workers: int) -> Payload:
        """STATUS: how the server is. Times are whole seconds, sizes bytes."""
        version, total, paused = await self.ask(job_queues.store_status)
        return {
            "application": {
                "name": "fivewire", "pid": os.getpid(), "uptime_seconds": int(time.monotonic() - self._started),
            },
            "memory": {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
            "pools": {"anonymous": anonymous, "worker": workers},
            "storage": {"engine": "postgresql", "version": version, "available": self._engine.available},
            "queues": {"total": total, "paused": paused, "running": total - paused},
        }  # fmt: skip


#: In these the attempt under way, or the one that did it, is not among the failed ones.
BEGUN = (jobs.JobStatus.ACTIVE, jobs.JobStatus.COMPLETED)


def metadata(queue: job_queues.JobQueue) -> Payload:
    """A queue as GQUEUE and LQUEUES tell of it."""
    return {
        "id": str(queue.uuid),
        "name": queue.name,
        "state": "paused" if queue.paused else "running",
        "config": {
            "concurrency_limit": queue.concurrency_limit,
            "allow_job_overrides": queue.allow_job_overrides,
        },
    }


def record(job: jobs.StoredJob) -> Payload:
    """A job as JOB and LSJOB tell of it; what only some jobs have is left out for the others."""
    told: Payload = {
        "uuid": str(job.uuid),
        "jid": f"{job.queue}:{job.uuid}",
        "queue_name": job.queue,
        "payload": payload_object(job.payload, job.content),
        "status": job.status.value,
        "execution_start_at": _time(job.scheduled_at),
        "max_attempts": job.max_attempts,
        "retry_interval_ms": job.retry_interval_ms,
        "created_at": _time(job.created_at),
        "runtime": {"attempts_so_far": job.attempts + (job.status in BEGUN)},
    }
    if job.priority:
        told["priority"] = job.priority
    for name in ("key", "error"):
        if (text := getattr(job, name)) is not None:
            told[name] = text
    if job.result is not None:
        told["result"] = payload_object(job.result, Content.MSGPACK)
    if job.finished_at is not None:
        told["finished_at"] = _time(job.finished_at)
    if job.log:
        told["log"] = list(job.log)
    return told


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_timestamp(moment)


def _with_connection(function: Callable[..., T], *arguments: Any) -> T:
    """Call, with a connection that a restart of the database has not left dead."""
    connection.close_if_unusable_or_obsolete()
    try:
        return function(*arguments)
    except DatabaseError:
        connection.close()
        raise
