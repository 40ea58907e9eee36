"""Named statements over a connection of Django's: those under sql/ and the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from django.db import OperationalError, connections, transaction
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from psycopg.types.datetime import TimestamptzLoader

from queues.database.sql_files import ALL, statements
from queues.ends import ended
from queues.engine.cluster.notifications import formats
from queues.engine.faults import MAX_REPEATS
from queues.engine.statements import DIRECTORY as ENGINE_DIRECTORY
from queues.errors import BrokerError, Busy

T = TypeVar("T")

DIRECTORY = Path(__file__).parents[1] / "sql"

_statement = statements(DIRECTORY, ENGINE_DIRECTORY)


@cache
def text(name: str) -> str:
    """The text of sql/NAME.sql, or else of the engine's statement of this name."""
    return _statement(name).decode()


def query(name: str, using: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run sql/NAME.sql in the connection's current transaction, or in one of its own; returns its rows."""
    with _cursor(using) as cursor:
        cursor.execute(text(name), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


@contextmanager
def _cursor(using: str) -> Iterator[Any]:
    """A cursor whose times are aware also where the project has `USE_TZ = False`."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.timezone is None:
            cursor.cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        yield cursor


def drop_oldest(queue: int, count: int, using: str) -> None:
    """Drop the oldest ready messages of a queue, also of those that were stored as segments before it had a limit."""
    query("unpack_ready", using, queue=queue, count=count)
    [(dropped, *_)] = query("drop_oldest", using, queue=queue, count=count, **ALL)
    ended("dropped", dropped)


def query_within(name: str, using: str, milliseconds: int, /, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run a query for at most `milliseconds` (0: no limit). Raises django.db.OperationalError when it takes longer.

    The limit goes with the statement, which then is a transaction of its own, or lasts to the end of the current one.
    """
    if not milliseconds:
        return query(name, using, **parameters)
    if connections[using].settings_dict["OPTIONS"].get("server_side_binding"):  # which takes one statement at a time
        with time_limit(milliseconds, using):
            return query(name, using, **parameters)
    with _cursor(using) as cursor:
        limit = f"select set_config('statement_timeout', '{milliseconds:d}', true);\n"
        cursor.execute(limit + text(name), parameters)
        cursor.nextset()
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


@contextmanager
def time_limit(milliseconds: int, using: str) -> Iterator[None]:
    """A transaction, or a part of the caller's, each of whose statements is cancelled after so long: OperationalError.

    What a page looks for without a fitting index must not hold a snapshot for long.
    """
    ends = not connections[using].in_atomic_block
    with transaction.atomic(using=using), _with_setting("statement_timeout", str(milliseconds), using, ends):
        yield


@contextmanager
def _with_setting(name: str, value: str, using: str, ends: bool = False) -> Iterator[None]:
    """A part of a transaction in which a setting of the session has another value; with `ends` the last one."""
    with connections[using].cursor() as cursor:
        cursor.execute("select current_setting(%s), set_config(%s, %s, true)", [name, name, value])
        before = cursor.fetchone()[0]
        yield
        if not ends:
            cursor.execute("select set_config(%s, %s, true)", [name, before])


def whole(work: Callable[[], T], using: str) -> T:
    """Do something in one transaction, again when PostgreSQL has ended that for the sake of another; what `work` did
    before is undone. In a transaction of the caller's it is a part of that, and not repeated. Raises Busy when each try
    was ended."""
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using):
            return work()
    for _ in range(1 + MAX_REPEATS):
        try:
            with transaction.atomic(using=using):
                return work()
        except OperationalError as error:
            if not isinstance(error.__cause__, DeadlockDetected | SerializationFailure):
                raise
            ended = error
    raise Busy("Other transactions were in the way each time; try again.") from ended


@contextmanager
def lock_limit(milliseconds: str, using: str, busy: BrokerError) -> Iterator[None]:
    """A part of the caller's transaction in which no lock is waited for longer than so long. Raises `busy` then."""
    try:
        with _with_setting("lock_timeout", milliseconds, using):
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        raise busy from error


def notify(using: str, notification: formats.Sendable) -> None:
    """Tell every node something, if and when the current transaction commits."""
    texts = list(notification.texts())
    if isinstance(notification, formats.SendableInstruction):
        query("instruct", using, texts=texts, nodes=[formats.recipient(notification)] * len(texts))
        return
    with connections[using].cursor() as cursor:
        for text in texts:
            cursor.execute("select pg_notify(%s, %s)", (formats.CHANNEL, text))


def tell(using: str, hint: formats.SendableHint) -> None:
    """Tell every node something at once, in transactions of their own that do not wait for the disk."""
    with connections[using].cursor() as cursor:
        for text in hint.texts():
            cursor.execute(
                "select set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)", (formats.CHANNEL, text)
            )


def announce_ready(using: str, ready: Mapping[int, int]) -> None:
    """Tell every node, after the current transaction's commit, in which queues messages became ready.

    `ready` has the first position in each. Commits that notify wait for each other, also while they wait for the disk;
    so this is a transaction of its own, that does not. If it is lost with the process, nodes find the messages at their
    next look. Django runs nothing after commits that its caller makes by hand, without autocommit: those notify.
    """
    connection = connections[using]
    if not ready:
        return
    if not connection.in_atomic_block:
        _Announcement(using, ready).send()
        return
    if not connection.commit_on_exit:
        notify(using, formats.Ready(dict(ready)))
        return
    last = connection.run_on_commit[-1] if connection.run_on_commit else None
    waiting = None if last is None else getattr(last[1], "__self__", None)
    if last is not None and isinstance(waiting, _Announcement) and last[0] == set(connection.savepoint_ids):
        waiting.add(ready)
    else:
        transaction.on_commit(_Announcement(using, ready).send, using=using, robust=True)


class _Announcement:
    """The queues in which a transaction, or a savepoint in it, made messages ready."""

    def __init__(self, using: str, ready: Mapping[int, int]) -> None:
        self._using = using
        self._ready = dict(ready)

    def add(self, ready: Mapping[int, int]) -> None:
        for queue, first in ready.items():
            self._ready[queue] = min(first, self._ready.get(queue, first))

    def send(self) -> None:
        """Notify, after the commit."""
        tell(self._using, formats.Ready(self._ready))
