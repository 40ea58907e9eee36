"""The errors of the transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from kombu.exceptions import ChannelError

from queues.engine.api import SHARED_SESSIONS, Pooled, StoreUnavailable, lacked_right, refused_by_pooler
from queues.formats.texts import shown


class DatabaseUnavailable(psycopg.OperationalError, ConnectionError):
    """The database is away, or did not answer in time: an OSError, as other transports' connection errors are."""


def raise_unavailable(error: BaseException) -> None:
    """Raise the transport's error for one of the database's: DatabaseUnavailable where the database or the connection
    to it is away or its role lacks a right, Pooled where a statement of ours is in the session of another,
    UnstorableTask where a value has no place in the database."""
    if isinstance(error, psycopg.errors.DuplicatePreparedStatement):
        raise Pooled(SHARED_SESSIONS) from error
    if isinstance(error, psycopg.DataError | psycopg.errors.ProgramLimitExceeded | UnicodeEncodeError):
        raise UnstorableTask(f"The database refuses a value: {str(error).strip().split(chr(10))[0]}.") from error
    if (refusal := lacked_right(error)) is not None and not isinstance(error, DatabaseUnavailable):
        raise DatabaseUnavailable(refusal) from error
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


#: AMQP's numbers of the methods that errors name.
METHODS = {
    "flow": (20, 20), "exchange_declare": (40, 10), "exchange_delete": (40, 20), "exchange_bind": (40, 30),
    "exchange_unbind": (40, 40), "queue_declare": (50, 10), "queue_bind": (50, 20), "queue_purge": (50, 30),
    "queue_delete": (50, 40), "queue_unbind": (50, 50), "basic_qos": (60, 10), "basic_consume": (60, 20),
    "basic_publish": (60, 40), "basic_get": (60, 70), "tx_select": (90, 10),
}  # fmt: skip


class Refused(ChannelError):  # type: ignore[misc]
    """A method of a channel is refused, as an AMQP broker refuses it."""

    def __init__(self, text: str, method: str, code: int) -> None:
        super().__init__(text, METHODS[method], f"Channel.{method}", code)


class NotFound(Refused):
    """There is no such queue or exchange."""

    def __init__(self, what: str, method: str) -> None:
        super().__init__(f"NOT_FOUND - no {what}", method, 404)


class PreconditionFailed(Refused):
    """An argument has an invalid value, or what is there is not as it has to be."""

    def __init__(self, text: str, method: str) -> None:
        super().__init__(f"PRECONDITION_FAILED - {text}", method, 406)


class NotImplementedHere(Refused):
    """This transport has no such method or argument."""

    def __init__(self, what: str, method: str) -> None:
        super().__init__(f"NOT_IMPLEMENTED - {what}", method, 540)


class NoSuchQueue(NotFound):
    """There is no queue of this name."""

    def __init__(self, queue: str, method: str = "basic_publish") -> None:
        self.queue = queue
        super().__init__(f"queue {queue!r}", method)


class QueueIsExclusive(Refused):
    """The queue is another connection's."""

    def __init__(self, queue: str, method: str) -> None:
        super().__init__(f"RESOURCE_LOCKED - the queue {queue!r} is exclusive to another connection", method, 405)


class Unroutable(Refused):
    """A message that was published as mandatory reaches no queue."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(f"NO_ROUTE - {routing_key!r} of {exchange!r}", "basic_publish", 312)


class QueueIsFull(Refused):
    """The queue holds as many messages as it may and refuses more."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"RESOURCE_ERROR - the queue {queue!r} is full", "basic_publish", 506)


class QueueIsKept(Refused):
    """The queue is not temporary: it is deleted in the admin, where one sees what goes with it."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {queue!r} is deleted in the admin", "queue_delete", 403)


class InvalidName(Refused):
    """A queue, an exchange or a routing key cannot have this name."""

    def __init__(self, name: str, problem: str, method: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {shown(name)}: {problem}", method, 403)


class InvalidBroker(ValueError):
    """The broker's address or options are invalid; the text says why."""


class UnstorableTask(ValueError):
    """A message cannot be stored as it is; the text says why."""
