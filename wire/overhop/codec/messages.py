"""The shape of a client's requests (docs/protocols/overhop.md, "Requests"). No I/O.

One function for each shape reads a payload and returns what it says; `PARSERS` has the one for each message type.
Two things can be wrong. A `ShapeError` is of the second tier: something missing, of the wrong type or of an
impossible form, answered with PROTOCOL_VIOLATION and the end of the connection. A `DomainError` is of the third:
a value with an error code of its own, after which the connection goes on. Errors of the shape come
first. Unknown keys are ignored, but not in the payloads that have to be empty; an optional key that is
nil is not an absent one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from wire.overhop.codec.fields import (
    MAX_NAME,
    DomainError,
    Payload,
    ShapeError,
    canonical_uuid,
    given,
    in_range,
    integer,
    is_uuid,
    kept_text,
    kind,
    moment,
    text,
)
from wire.overhop.codec.names import Code, Type

MAX_KEY: Final = 255
MAX_ATTEMPTS: Final = 32767
MAX_INTERVAL_MS: Final = 2**31 - 1
MAX_CONCURRENCY: Final = 2**31 - 1
MAX_CREDITS: Final = 2**32 - 1
MAX_PAGE: Final = 2**31 - 1
MAX_PAGE_SIZE: Final = 100
MAX_PRIORITY: Final = 100
UUID_LENGTH: Final = 36

DEFAULT_PAGE_SIZE: Final = 15
STATUSES: Final = ("new", "waiting", "delayed", "completed", "failed", "active")

_is_queue_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*").fullmatch
_new = tuple.__new__  # a NamedTuple's own constructor takes half as long again


class Enqueue(NamedTuple):
    """ENQUEUE. Fields that are None were not given; `payload` is None too when there is none."""

    q: str
    payload: Any
    scheduled_at: datetime | None = None
    max_attempts: int | None = None
    retry_interval_ms: int | None = None
    key: str | None = None
    priority: int = 0


class Subscribe(NamedTuple):
    """SUBSCRIBE: 0 to 2³² - 1 credits to start with."""

    q: str
    credits: int


class AddQueue(NamedTuple):
    """ADDQUEUE: a name that is one, at least 1 job at a time or None for no limit."""

    name: str
    concurrency_limit: int | None
    allow_job_overrides: bool


class ListJobs(NamedTuple):
    """LSJOB: one of `STATUSES`, 1 to 100 a page, the first page being 1."""

    q: str
    status: str
    page_size: int
    page: int


class Log(NamedTuple):
    """LOG: one line to keep with the job."""

    jid: str
    line: str


# Types of payloads.


def anything(p: Payload) -> None:
    """HELLO: the payload is ignored."""


def empty(p: Payload) -> None:
    """REGISTER, PING, LQUEUES, STATUS: there may be nothing in the payload."""
    if p:
        raise ShapeError("the payload has to be an empty map")


def queue_name(p: Payload) -> str:
    """GQUEUE: the queue's name. DomainError QUEUE_NOT_FOUND for a name that no queue can have."""
    q = text(p, "q")
    if "\0" in q:
        raise DomainError(Code.QUEUE_NOT_FOUND, f"no queue is called {q!r:.300}")
    return q


def user_queue_name(p: Payload) -> str:
    """RMQUEUE, PAUSE, RESUME, QSTATS: the name of a queue that is not the system's."""
    q = queue_name(p)
    _forbid_system(q)
    return q


def _forbid_system(q: str) -> None:
    if q[:1] == "_":
        raise DomainError(Code.SYSTEM_QUEUE_FORBIDDEN, f"queue {q!r:.300} is the system's")


def subscribe(p: Payload) -> Subscribe:
    """SUBSCRIBE."""
    text(p, "q")
    credits = integer(p, "credits") if "credits" in p else 0
    q = queue_name(p)
    in_range(credits, 0, MAX_CREDITS, Code.INVALID_CREDITS, "credits")
    return Subscribe(q, credits)


def subscription_id(p: Payload) -> str:
    """UNSUBSCRIBE: the subscription's UUID, in lower case and with hyphens."""
    sid = text(p, "sid")
    if is_uuid(sid):
        return sid
    other = canonical_uuid(sid)
    if other is None:
        raise ShapeError(f"'sid' is not a UUID: {sid!r:.100}")
    return other


def credit(p: Payload) -> tuple[str, int]:
    """CREDIT: the subscription, and the credits."""
    sid, credits = p.get("sid"), p.get("credits")
    if type(sid) is not str or not is_uuid(sid):
        sid = subscription_id(p)
    if type(credits) is not int:
        credits = integer(p, "credits")
    if not 1 <= credits <= MAX_CREDITS:
        raise DomainError(Code.INVALID_CREDITS, f"credits is {credits}, not 1 to {MAX_CREDITS}")
    return sid, credits


def add_queue(p: Payload) -> AddQueue:
    """ADDQUEUE."""
    name = text(p, "name")
    config = given(p, "config")
    if config is None:
        config = {}
    if type(config) is not dict:
        raise ShapeError(f"'config' is {kind(config)}, not a map")
    limit = config.get("concurrency_limit")
    if limit is not None and not 1 <= integer(config, "concurrency_limit") <= MAX_CONCURRENCY:
        raise ShapeError(f"'concurrency_limit' is {limit}, not 1 to {MAX_CONCURRENCY} or nil")
    overrides = config.get("allow_job_overrides", True)
    if type(overrides) is not bool:
        raise ShapeError(f"'allow_job_overrides' is {kind(overrides)}, not a bool")
    if len(name) > MAX_NAME or not _is_queue_name(name):
        raise DomainError(
            Code.INVALID_QUEUE_NAME,
            f"{name!r:.300} is not a letter or digit and then letters, digits, _ and -, {MAX_NAME} in all at most",
        )
    return AddQueue(name, limit, overrides)


def enqueue(p: Payload) -> Enqueue:
    """ENQUEUE."""
    q, payload = p.get("q"), p.get("job_payload")
    if type(q) is not str or payload is None or len(p) != 2:
        return _enqueue_with_options(p)
    if q[:1] == "_" or "\0" in q:
        user_queue_name(p)
    return _new(Enqueue, (q, payload, None, None, None, None, 0))


def _enqueue_with_options(p: Payload) -> Enqueue:
    text(p, "q")
    payload = given(p, "job_payload")
    scheduled_at = moment(p, "scheduled_at") if "scheduled_at" in p else None
    max_attempts = integer(p, "max_attempts") if "max_attempts" in p else None
    interval = integer(p, "retry_interval_ms") if "retry_interval_ms" in p else None
    key = text(p, "key") if "key" in p else None
    if key is not None and (not 1 <= len(key) <= MAX_KEY or "\0" in key):
        raise ShapeError(f"'key' is not 1 to {MAX_KEY} characters without a NUL")
    priority = integer(p, "priority") if "priority" in p else 0
    if abs(priority) > MAX_PRIORITY:
        raise ShapeError(f"'priority' is {priority}, not -{MAX_PRIORITY} to {MAX_PRIORITY}")
    q = user_queue_name(p)
    in_range(max_attempts, 1, MAX_ATTEMPTS, Code.INVALID_MAX_ATTEMPTS, "max_attempts")
    in_range(interval, 1, MAX_INTERVAL_MS, Code.INVALID_RETRY_INTERVAL_MS, "retry_interval_ms")
    return Enqueue(q, payload, scheduled_at, max_attempts, interval, key, priority)


def split_job_id(jid: str) -> tuple[str, str]:
    """Return the queue's name and the job's UUID from what `job_id` returned."""
    return jid[: -UUID_LENGTH - 1], jid[-UUID_LENGTH:]


def job_id(p: Payload) -> str:
    """ACK, BEAT: `<queue>:<uuid>`, the UUID in lower case and with hyphens. DomainError INVALID_JOB_ID."""
    jid = p.get("jid")
    if type(jid) is not str:
        jid = text(p, "jid")
    cut = len(jid) - UUID_LENGTH
    if 1 < cut <= MAX_NAME + 1 and jid[cut - 1] == ":" and is_uuid(jid, cut) and "\0" not in jid:
        return jid
    queue, colon, ending = jid.rpartition(":")
    uuid = canonical_uuid(ending)
    if not colon or uuid is None or not 1 <= len(queue) <= MAX_NAME or "\0" in queue:
        raise DomainError(Code.INVALID_JOB_ID, f"{jid!r:.300} is not <queue>:<uuid>")
    return f"{queue}:{uuid}"


def user_job_id(p: Payload) -> str:
    """JOB, RMJOB: as `job_id`, of a queue that is not the system's."""
    jid = job_id(p)
    _forbid_system(split_job_id(jid)[0])
    return jid


def list_jobs(p: Payload) -> ListJobs:
    """LSJOB."""
    text(p, "q")
    status = text(p, "status")
    page_size = integer(p, "page_size") if "page_size" in p else DEFAULT_PAGE_SIZE
    page = integer(p, "page") if "page" in p else 1
    q = queue_name(p)
    if status not in STATUSES:
        known = ", ".join(STATUSES)
        raise DomainError(Code.INVALID_JOB_STATUS_FILTER, f"status {status!r:.100} is none of {known}")
    in_range(page_size, 1, MAX_PAGE_SIZE, Code.INVALID_PAGE_SIZE, "page_size")
    in_range(page, 1, MAX_PAGE, Code.INVALID_PAGE, "page")
    return ListJobs(q, status, page_size, page)


def done(p: Payload) -> tuple[str, Any]:
    """DONE: the job, and its result or None."""
    result = p.get("result")
    if result is None:
        text(p, "jid")
        given(p, "result")
    return job_id(p), result


def fail(p: Payload) -> tuple[str, str | None, int | None]:
    """FAIL: the job, the error, and milliseconds before the next attempt; None: the queue's own backoff, 0: at once."""
    text(p, "jid")
    error = kept_text(p, "error") if "error" in p else None
    retry_in_ms = integer(p, "retry_in_ms") if "retry_in_ms" in p else None
    jid = job_id(p)
    in_range(retry_in_ms, 0, MAX_INTERVAL_MS, Code.INVALID_RETRY_INTERVAL_MS, "retry_in_ms")
    return jid, error, retry_in_ms


def log(p: Payload) -> Log:
    """LOG."""
    text(p, "jid")
    line = kept_text(p, "line")
    return Log(job_id(p), line)


def goodbye(p: Payload) -> str | None:
    """GOODBYE: the reason, if one is given."""
    return kept_text(p, "reason") if "reason" in p else None


PARSERS: Final[Mapping[int, Callable[[Payload], object]]] = {
    int(Type.HELLO): anything,
    int(Type.REGISTER): empty,
    int(Type.PING): empty,
    int(Type.GQUEUE): queue_name,
    int(Type.LQUEUES): empty,
    int(Type.SUBSCRIBE): subscribe,
    int(Type.UNSUBSCRIBE): subscription_id,
    int(Type.CREDIT): credit,
    int(Type.ADDQUEUE): add_queue,
    int(Type.STATUS): empty,
    int(Type.RMQUEUE): user_queue_name,
    int(Type.PAUSE): user_queue_name,
    int(Type.RESUME): user_queue_name,
    int(Type.ENQUEUE): enqueue,
    int(Type.JOB): user_job_id,
    int(Type.RMJOB): user_job_id,
    int(Type.LSJOB): list_jobs,
    int(Type.QSTATS): user_queue_name,
    int(Type.ACK): job_id,
    int(Type.DONE): done,
    int(Type.FAIL): fail,
    int(Type.BEAT): job_id,
    int(Type.GOODBYE): goodbye,
    int(Type.LOG): log,
}
