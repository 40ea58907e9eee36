"""The errors of the transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from kombu.exceptions import ChannelError

from queues.engine import StoreUnavailable
from queues.engine.database import SHARED_SESSIONS, refused_by_pooler
from queues.engine.errors import Pooled


class DatabaseUnavailable(psycopg.OperationalError, ConnectionError):
    """The database is away, or did not answer in time: an OSError, as other transports' connection errors are."""


def raise_unavailable(error: BaseException) -> None:
    """Raise DatabaseUnavailable for an error that says that the database or the connection to it is away, and Pooled
    where a statement of ours is in the session of another."""
    if isinstance(error, psycopg.errors.DuplicatePreparedStatement):
        raise Pooled(SHARED_SESSIONS) from error
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | StoreUnavailable) and not isinstance(
        error, DatabaseUnavailable
    ):
        raise DatabaseUnavailable(str(refused_by_pooler(error) or error).strip()) from error


@contextlib.contextmanager
def connection_errors() -> Iterator[None]:
    """Raise DatabaseUnavailable for the errors of the block that say that the database is away."""
    try:
        yield
    except Exception as error:
        raise_unavailable(error)
        raise


class NoSuchQueue(ChannelError):  # type: ignore[misc]
    """There is no queue of this name."""

    def __init__(self, queue: str, method: str = "Channel.basic_publish") -> None:
        self.queue = queue
        super().__init__(f"NOT_FOUND - no queue {queue!r}", (50, 10), method, 404)


class Unroutable(ChannelError):  # type: ignore[misc]
    """A message that was published as mandatory reaches no queue."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(f"NO_ROUTE - {routing_key!r} of {exchange!r}", (60, 40), "Channel.basic_publish", 312)


class QueueIsFull(ChannelError):  # type: ignore[misc]
    """The queue holds as many messages as it may and refuses more."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"RESOURCE_ERROR - the queue {queue!r} is full", (60, 40), "Channel.basic_publish", 506)


class QueueIsKept(ChannelError):  # type: ignore[misc]
    """The queue is not temporary: it is deleted in the admin, where one sees what goes with it."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {queue!r} is deleted in the admin", (50, 40), "Channel.queue_delete", 403)


class InvalidQueueName(ChannelError):  # type: ignore[misc]
    """A queue cannot have this name."""

    def __init__(self, queue: str, problem: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {queue!r}: {problem}", (50, 10), "Channel.queue_declare", 403)


class InvalidBroker(ValueError):
    """The broker's address or options are invalid; the text says why."""


class UnstorableTask(ValueError):
    """A message cannot be stored as it is; the text says why."""
