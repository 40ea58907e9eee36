"""The requests of an Overhop client: their payloads and the values of their answers. No I/O.

Those that the client alone makes are in its methods. The sections named are those of docs/protocols/overhop.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from wire.overhop.codec.names import Type
from wire.overhop.codec.timestamps import format_timestamp, parse_timestamp

T = TypeVar("T")
Payload = dict[str, Any]

#: Characters of a failed job's error text that the broker keeps.
MAX_ERROR = 2000


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as the broker describes it."""

    id: str
    name: str
    #: `running` or `paused`.
    state: str
    #: The most jobs that may be active at once on all workers together; None for no limit.
    concurrency_limit: int | None
    #: Whether a job may bring its own `max_attempts` and `retry_interval`.
    allow_job_overrides: bool

    @property
    def paused(self) -> bool:
        return self.state == "paused"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the broker describes it."""

    jid: str
    uuid: str
    queue: str
    payload: Any
    #: One of `new`, `waiting`, `delayed`, `active`, `completed`, `failed`.
    status: str
    #: Attempts so far.
    attempts: int
    max_attempts: int | None
    #: Seconds between two attempts.
    retry_interval: float | None
    #: When it may begin.
    scheduled_at: datetime | None
    created_at: datetime | None
    #: The worker's result; None also while there is none, or if the broker does not keep it.
    result: Any = None
    #: The error of its last attempt, if the broker gives it.
    error: str | None = None
    #: The broker's whole record of it.
    record: Payload = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Quest:
    """A job to be done by us: answer it with `done` or `fail` before its deadline, or move that with `beat`."""

    #: The subscription that it came by: it has one credit less now.
    sid: str
    jid: str
    queue: str
    payload: Any
    #: 1 for the first.
    attempt: int
    max_attempts: int | None
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A message that is answered: `parse` makes the payload of the answer into a value."""

    t: Type
    p: Payload
    parse: Callable[[Payload], T]
    answer: Type = Type.OK


def nothing(payload: Payload) -> None:
    """An answer without a value."""


def text(key: str) -> Callable[[Payload], str]:
    def parse(payload: Payload) -> str:
        text = payload[key]
        if not isinstance(text, str):
            raise TypeError(f"{key} is not a string")
        return text

    return parse


def _given(**optional: Any) -> Payload:
    """Leave out keys whose value is None: a nil is a protocol violation."""
    return {key: value for key, value in optional.items() if value is not None}


def milliseconds(name: str, seconds: float | None) -> int | None:
    """Return whole milliseconds, of a positive time at least one; ValueError if it is no time."""
    if seconds is None:
        return None
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name} is {seconds}: give seconds, 0 or more")
    return max(round(seconds * 1000), 1 if seconds else 0)


def _time(payload: Payload, key: str) -> datetime | None:
    text = payload.get(key)
    return None if text is None else parse_timestamp(text)


# Connection


def hello() -> Request[None]:
    return Request(Type.HELLO, {}, nothing, Type.HI)


def register() -> Request[str]:
    """Answered with the id of this worker."""
    return Request(Type.REGISTER, {}, text("wid"))


def server_time(payload: Payload) -> datetime:
    """Read a PONG. Raises KeyError, TypeError or ValueError if it is none."""
    return parse_timestamp(payload["server_time"])


def ping() -> Request[datetime]:
    """Answered with the broker's time."""
    return Request(Type.PING, {}, server_time, Type.PONG)


def goodbye(reason: str | None) -> Request[None]:
    return Request(Type.GOODBYE, _given(reason=reason), nothing)


# Queues


def queue_of(payload: Payload) -> QueueInfo:
    config = payload["config"]
    return QueueInfo(
        payload["id"], payload["name"], payload["state"], config["concurrency_limit"], config["allow_job_overrides"]
    )


# Jobs


@dataclass(frozen=True, slots=True)
class JobOptions:
    """A job's options; the queue's hold for those that are None."""

    scheduled_at: datetime | None = None
    max_attempts: int | None = None
    retry_interval: float | None = None
    key: str | None = None
    priority: int | None = None

    def payload(self) -> Payload:
        """The keys of an ENQUEUE that say it. Raises ValueError, also for a time without a time zone."""
        at = self.scheduled_at
        return _given(
            scheduled_at=None if at is None else format_timestamp(at),
            max_attempts=self.max_attempts,
            retry_interval_ms=milliseconds("retry_interval", self.retry_interval),
            key=self.key,
            priority=self.priority,
        )


def start_time(scheduled_at: datetime | None, delay: float | None, now: datetime) -> datetime | None:
    """Return when a job may begin; ValueError for both ways of saying it, or no time at all."""
    if delay is None:
        return scheduled_at
    if scheduled_at is not None:
        raise ValueError("give scheduled_at or delay, not both")
    if not math.isfinite(delay) or delay < 0:
        raise ValueError(f"delay is {delay}: give seconds, 0 or more")
    try:
        return now + timedelta(seconds=delay)
    except OverflowError:
        raise ValueError(f"delay is {delay}: the date is out of range") from None


def enqueue(queue: str, payload: Any, options: Payload) -> Request[str]:
    """Answered with the id of the job; `options` as JobOptions gives them."""
    return Request(Type.ENQUEUE, {"q": queue, **_given(job_payload=payload), **options}, text("jid"))


def job_of(record: Payload) -> Job:
    interval = record.get("retry_interval_ms")
    return Job(
        jid=record["jid"],
        uuid=record["uuid"],
        queue=record["queue_name"],
        payload=record.get("payload"),
        status=record["status"],
        attempts=record["runtime"]["attempts_so_far"],
        max_attempts=record.get("max_attempts"),
        retry_interval=None if interval is None else interval / 1000,
        scheduled_at=_time(record, "execution_start_at"),
        created_at=_time(record, "created_at"),
        result=record.get("result"),
        error=record.get("error"),
        record=record,
    )


# Delivery


def subscribe(queue: str, credits: int) -> Request[str]:
    """Answered with the id of the subscription."""
    return Request(Type.SUBSCRIBE, {"q": queue, "credits": credits}, text("sid"))


def unsubscribe(sid: str) -> Request[None]:
    return Request(Type.UNSUBSCRIBE, {"sid": sid}, nothing)


def grant(sid: str, credits: int) -> Request[None]:
    return Request(Type.CREDIT, {"sid": sid, "credits": credits}, nothing)


def ack(jid: str) -> Request[None]:
    return Request(Type.ACK, {"jid": jid}, nothing)


def done(jid: str, result: Any) -> Request[None]:
    return Request(Type.DONE, {"jid": jid, **_given(result=result)}, nothing)


def fail(jid: str, error: str | None, retry_in: float | None) -> Request[None]:
    if error is not None:
        error = error.encode(errors="replace").decode()[:MAX_ERROR]  # also of text that is not quite Unicode
    retry_in_ms = milliseconds("retry_in", retry_in)
    return Request(Type.FAIL, {"jid": jid, **_given(error=error, retry_in_ms=retry_in_ms)}, nothing)


def beat(jid: str) -> Request[None]:
    return Request(Type.BEAT, {"jid": jid}, nothing)


def log(jid: str, line: str) -> Request[None]:
    return Request(Type.LOG, {"jid": jid, "line": line}, nothing)


def quest(payload: Payload) -> Quest:
    """Read a QUEST. Raises KeyError, TypeError or ValueError if it is none."""
    return Quest(
        sid=payload["sid"],
        jid=payload["jid"],
        queue=payload["q"],
        payload=payload.get("job_payload"),
        attempt=payload["attempt"],
        max_attempts=payload.get("max_attempts"),
        deadline=_time(payload, "deadline"),
    )
