"""The Overhop client. `wire.overhop.client` has the blocking one and the one for asyncio, with the same methods.

    async with AsyncClient("127.0.0.1", 9876) as client:
        await client.create_queue("emails")
        jid = await client.enqueue("emails", {"to": "ada@example.org"}, delay=60)
        job = await client.job(jid)
        print(job.status)                                      # delayed

A process that only does jobs is better off with `wire.overhop.worker`, which heartbeats and reconnects. By hand:

        sid = await client.subscribe("emails", credits=1)
        quest = await client.next_quest(timeout=30)            # takes one credit
        await client.ack(quest.jid)
        await client.done(quest.jid, {"sent": True})           # or fail(…), or the deadline passes
        await client.grant(sid, 1)                             # now the next may come

Payloads and results are what MessagePack has without its floats and extensions: None, bool, int of 64 bits, str,
bytes, lists, and dicts with str keys. Anything else raises Unencodable, and nothing was sent.
"""

# sync: import functools
import ssl
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Self, TypeVar

# sync: from wire.client.links import Link
from wire.client.reconnecting import OnEvent, Reconnect
from wire.overhop import requests
from wire.overhop.async_connection import AsyncConnection

# sync: from wire.overhop.client_async import AsyncClient
# sync: from wire.overhop.client_core import ClientCore
from wire.overhop.client_core import Reply
from wire.overhop.codec.decoder import MAX_ENVELOPE
from wire.overhop.codec.encoder import Unencodable
from wire.overhop.codec.names import DEFAULT_PORT, Type
from wire.overhop.errors import (
    DuplicateQueue,
    DuplicateSubscription,
    Forbidden,
    JobNotFound,
    JobNotRemovable,
    MessageTooLarge,
    OverhopError,
    QueueFull,
    QueueNotEmpty,
    QueueNotFound,
    Unavailable,
)
from wire.overhop.requests import Job, JobOptions, Payload, Quest, QueueInfo, Request

T = TypeVar("T")

__all__ = [
    "DEFAULT_PORT",
    "MAX_ENVELOPE",
    # sync: "AsyncClient",
    "AsyncClient",
    "DuplicateQueue",
    "DuplicateSubscription",
    "Forbidden",
    "Job",
    "JobNotFound",
    "JobNotRemovable",
    "MessageTooLarge",
    "OverhopError",
    "Quest",
    "QueueFull",
    "QueueInfo",
    "QueueNotEmpty",
    "QueueNotFound",
    "Unavailable",
    "Unencodable",
]

#: Jobs of `enqueue_many` that may be unanswered before it waits.
WINDOW: Final = 1000


class AsyncClient:
    """A client of an Overhop broker. Use it in `async with`, or call `close`.

    Every method may raise OverhopError when the broker refuses, of the class in `wire.overhop.errors` that belongs to
    its code; the connection stays usable.

    A lost connection is made again, after 0.1 to 5 seconds with jitter: the next call waits for it. Questions are asked
    again, and subscriptions go on with the credits that they had. What changes something raises ConnectionLost or
    ReplyTimeout if it was not answered: it may or may not have been done. The broker gives jobs that were delivered to
    others, so that an answer to one raises JobNotFound.

    `timeout`: seconds to connect, and of silence while an answer is due; the connection counts as lost then.
    `reconnect`: a `queues.backoff.Backoff` for other waits; with False a lost connection is final, and every method
    raises ConnectionLost, ReplyTimeout or ProtocolViolation. `on_event` is called with each
    `wire.client.reconnecting.Event`.

    `resend`: **send an `enqueue` once more that was not answered when the connection was lost.** The job may then be
    made twice, since the broker may have stored it before. Without it `enqueue` raises ConnectionLost, and the program
    decides.

    `max_envelope`: bytes of the largest message
    that the broker takes, and that is taken from it. `tls`: speak TLS, with a context such as
    `ssl.create_default_context()` makes; `server_hostname` is the name that the broker's certificate must have if it
    is not `host`.
    """

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        timeout: float = 30.0,
        reconnect: Reconnect = True,
        resend: bool = False,
        on_event: OnEvent | None = None,
        max_envelope: int = MAX_ENVELOPE,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        # sync: """Connect and register. The client is for one thread at a time, and connects again in a call.
        # sync:
        # sync: Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust
        # sync: us, OverhopError when it does not want us.
        # sync: """
        """Make a client that is not connected yet: call `connect`, or enter the context.

        Any number of tasks may share it; a task that waits for a job does not delay the others. A call that is
        cancelled may or may not have been carried out. It connects again in the background.
        """  # async only
        self._connection = AsyncConnection(
            host, port, timeout=timeout, max_envelope=max_envelope, tls=tls, server_hostname=server_hostname,
            reconnect=reconnect, resend=resend, on_event=on_event,
        )  # async only
        self._core = self._connection.core  # async only
        # sync: self._core = ClientCore(timeout, max_envelope, resend)
        # sync: self._link = Link(
        # sync:     self._core, host, port,
        # sync:     timeout=timeout, tls=tls, server_hostname=server_hostname, reconnect=reconnect, on_event=on_event,
        # sync: )
        # sync: self._link.connect()

    async def connect(self) -> None:  # async only
        """Connect and register, once; call `close` in the end.

        Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust us,
        OverhopError when it does not want us.
        """
        await self._connection.connect()

    @property
    def worker_id(self) -> str:
        """The broker's name for this connection."""
        return self._core.worker_id

    async def ping(self) -> datetime:
        """Return the broker's time; everything asked before has been done."""
        return await self._ask(requests.ping())

    # Queues

    async def queue(self, name: str) -> QueueInfo | None:
        """Describe a queue; None if there is none of this name."""
        return await self._ask(Request(Type.GQUEUE, {"q": name}, lambda p: requests.queue_of(p) if p else None))

    async def queues(self) -> list[QueueInfo]:
        """Describe all queues by name, the broker's own (`_…`) included."""
        return await self._ask(Request(Type.LQUEUES, {}, lambda p: [requests.queue_of(each) for each in p["queues"]]))

    async def create_queue(
        self, name: str, concurrency_limit: int | None = None, allow_job_overrides: bool = True
    ) -> str:
        """Make a queue and return its id.

        `concurrency_limit`: how many of its jobs may be active at once on all workers together. Without
        `allow_job_overrides` the queue alone decides on attempts and intervals. Raises
        DuplicateQueue, InvalidQueueName.
        """
        config = {"concurrency_limit": concurrency_limit, "allow_job_overrides": allow_job_overrides}
        return await self._ask(Request(Type.ADDQUEUE, {"name": name, "config": config}, requests.text("qid")))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue that has no jobs. Raises QueueNotFound, QueueNotEmpty, SystemQueueForbidden."""
        await self._ask(Request(Type.RMQUEUE, {"q": name}, requests.nothing))

    async def pause(self, name: str) -> None:
        """Deliver no more jobs of a queue. Raises QueueNotFound, QueueAlreadyPaused, SystemQueueForbidden."""
        await self._ask(Request(Type.PAUSE, {"q": name}, requests.nothing))

    async def resume(self, name: str) -> None:
        """Deliver them again. Raises QueueNotFound, QueueAlreadyRunning, SystemQueueForbidden."""
        await self._ask(Request(Type.RESUME, {"q": name}, requests.nothing))

    async def stats(self, queue: str) -> dict[str, int]:
        """Return how many jobs of a queue there are by status. Raises QueueNotFound, SystemQueueForbidden."""
        return await self._ask(Request(Type.QSTATS, {"q": queue}, lambda p: dict(p["stats"])))

    async def status(self) -> Payload:
        """Return the broker's status: application, memory, pools, storage, queues."""
        return await self._ask(Request(Type.STATUS, {}, dict))

    # Jobs

    async def enqueue(
        self,
        queue: str,
        payload: Any = None,
        *,
        scheduled_at: datetime | None = None,
        delay: float | None = None,
        max_attempts: int | None = None,
        retry_interval: float | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> str:
        """Add a job and return its id; it is durable then.

        It begins at `scheduled_at` (with a time zone) or after `delay` seconds by the broker's clock, else as soon
        as a worker is free. `max_attempts` and `retry_interval` (seconds) are the queue's unless given. `key` is
        the job's public key, 1 to 255 characters, `priority` between -100 and 100. Raises QueueNotFound,
        QueueFull, InvalidMaxAttempts, InvalidRetryInterval, SystemQueueForbidden; ValueError for an invalid time,
        Unencodable or MessageTooLarge for a payload that cannot be sent.
        """
        at = await self._start_time(scheduled_at, delay)
        options = JobOptions(at, max_attempts, retry_interval, key, priority).payload()
        return await self._ask(requests.enqueue(queue, payload, options))

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        scheduled_at: datetime | None = None,
        delay: float | None = None,
        max_attempts: int | None = None,
        retry_interval: float | None = None,
        priority: int | None = None,
    ) -> list[str]:
        """Add a job for each payload without waiting for each, and return their ids in the same order.

        The options are those of `enqueue`, for all of them. Nothing is sent if one payload cannot be. If the broker
        refuses some jobs, the first refusal is raised when all are answered; its `jids` say which were taken.
        """
        at = await self._start_time(scheduled_at, delay)
        options = JobOptions(at, max_attempts, retry_interval, None, priority).payload()
        prepare = self._core.prepare
        replies = [prepare(requests.enqueue(queue, payload, options)) for payload in payloads]
        for first in range(0, len(replies), WINDOW):
            await self._connection.settle(replies[first : first + WINDOW])  # async only
            # sync: window = replies[first : first + WINDOW]
            # sync: repeat = self._core.repeats(window[0].request)
            # sync: self._link.run(functools.partial(self._core.settle, window), repeat=repeat)
        return _job_ids(replies)

    async def job(self, jid: str) -> Job | None:
        """Describe a job, with its result if there is one; None if it is unknown. Raises InvalidJobId."""
        return await self._ask(Request(Type.JOB, {"jid": jid}, lambda p: requests.job_of(p) if p else None))

    async def jobs(self, queue: str, status: str, page: int = 1, page_size: int = 15) -> list[Job]:
        """Describe the jobs of a queue in a status (new, waiting, delayed, active, completed or failed), oldest first.

        Pages count from 1. Raises QueueNotFound, InvalidStatusFilter, InvalidPage, InvalidPageSize.
        """
        wanted = {"q": queue, "status": status, "page": page, "page_size": page_size}
        return await self._ask(Request(Type.LSJOB, wanted, lambda p: [requests.job_of(each) for each in p["jobs"]]))

    async def remove_job(self, jid: str) -> None:
        """Remove a job that is delayed, new, failed or completed. Raises JobNotFound, JobNotRemovable."""
        await self._ask(Request(Type.RMJOB, {"jid": jid}, requests.nothing))

    # Delivery

    async def subscribe(self, queue: str, credits: int = 0) -> str:
        """Take jobs of a queue, as many as there are credits, and return the id of the subscription.

        Take them with `next_quest`, and `grant` more credits. Raises QueueNotFound, DuplicateSubscription,
        InvalidCredits.
        """
        return await self._ask(requests.subscribe(queue, credits))

    async def unsubscribe(self, sid: str) -> None:
        """Take no more jobs; finish those that came. Raises SubscriptionNotFound."""
        await self._ask(requests.unsubscribe(sid))

    async def grant(self, sid: str, credits: int) -> None:
        """Take so many jobs more. Raises SubscriptionNotFound, InvalidCredits."""
        await self._ask(requests.grant(sid, credits))

    async def next_quest(self, timeout: float | None = None) -> Quest | None:
        """Return the next job for us, or None when none has come within `timeout` seconds (None: wait on).

        Answer it with `done` or `fail` before its deadline, or move that with `beat`: else it is given to another,
        as one attempt more.
        """
        return await self._connection.next_quest(timeout)  # async only
        # sync: return self._link.run_for(timeout, self._core.next_quest)

    async def ack(self, jid: str) -> None:
        """Tell the broker that the job has arrived and begins. Raises JobNotFound if it is not ours any more."""
        await self._ask(requests.ack(jid))

    async def done(self, jid: str, result: Any = None) -> None:
        """Complete a job. Raises JobNotFound if it is not ours any more, Unencodable or MessageTooLarge."""
        await self._ask(requests.done(jid, result))

    async def fail(self, jid: str, error: str | None = None, retry_in: float | None = None) -> None:
        """Say that an attempt failed, and why (2000 characters are kept).

        The next one, if any is left, comes after `retry_in` seconds, else after the job's interval. Raises
        JobNotFound if it is not ours any more, ValueError for an invalid time.
        """
        await self._ask(requests.fail(jid, error, retry_in))

    async def beat(self, jid: str) -> None:
        """Move the job's deadline. Raises JobNotFound if it is not ours any more."""
        await self._ask(requests.beat(jid))

    async def log(self, jid: str, line: str) -> None:
        """Keep a line of text with the job. Raises JobNotFound if it is not ours any more."""
        await self._ask(requests.log(jid, line))

    async def goodbye(self, reason: str | None = None) -> None:
        """Give back all jobs that are not answered, and disconnect."""
        await self._ask(requests.goodbye(reason))
        await self._connection.close()  # async only
        # sync: self._link.close()

    async def close(self) -> None:
        """Disconnect. Jobs that are not answered are attempts that failed: say `goodbye` to just give them back."""
        await self._connection.close()  # async only
        # sync: self._link.close()

    async def _ask(self, request: Request[T]) -> T:
        return await self._connection.ask(request)  # async only
        # sync: self._link.ready()
        # sync: reply = self._core.prepare(request)
        # sync: return self._link.run(lambda: self._core.answer_to(reply), repeat=self._core.repeats(request))

    async def _start_time(self, scheduled_at: datetime | None, delay: float | None) -> datetime | None:
        if delay is not None and self._core.clock_offset is None:
            await self.ping()  # tells what the time is there
        return requests.start_time(scheduled_at, delay, self._core.now())

    async def __aenter__(self) -> Self:
        await self.connect()  # async only
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _job_ids(replies: list[Reply[str]]) -> list[str]:
    """Return the ids, or raise the first refusal with those that there are."""
    refused = [reply.error for reply in replies if isinstance(reply.error, OverhopError)]
    if not refused:
        return [reply.result() for reply in replies]
    refused[0].jids = [None if reply.error else reply.result() for reply in replies]
    raise refused[0]
