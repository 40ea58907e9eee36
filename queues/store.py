"""Named statements over a connection of Django's: those under sql/ and the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connections, transaction

from queues.engine.cluster.notifications.formats import CHANNEL, Sendable, SendableInstruction, recipient
from queues.engine.statements import ALL
from queues.engine.statements import DIRECTORY as ENGINE_DIRECTORY
from queues.sqlfiles import statements

DIRECTORY = Path(__file__).parent / "sql"

_statement = statements(DIRECTORY, ENGINE_DIRECTORY)


@cache
def text(name: str) -> str:
    """The text of sql/NAME.sql, or else of the engine's statement of this name."""
    return _statement(name).decode()


def query(name: str, using: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run sql/NAME.sql in the connection's current transaction, or in one of its own; returns its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(text(name), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def drop_oldest(queue: int, count: int, using: str) -> None:
    """Drop the oldest ready messages of a queue, also of those that were stored as segments before it had a limit."""
    query("unpack_ready", using, queue=queue, count=count)
    query("drop_oldest", using, queue=queue, count=count, **ALL)


def query_within(name: str, using: str, milliseconds: int, /, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run a query for at most `milliseconds` (0: no limit). Raises django.db.OperationalError when it takes longer.

    The limit goes with the statement, which then is a transaction of its own, or lasts to the end of the current one.
    """
    if not milliseconds or connections[using].settings_dict["OPTIONS"].get("server_side_binding"):
        return query(name, using, **parameters)
    with connections[using].cursor() as cursor:
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
    inner = connections[using].in_atomic_block
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(
            "select current_setting('statement_timeout'), set_config('statement_timeout', %s, true)",
            [str(milliseconds)],
        )
        before = cursor.fetchone()[0]
        yield
        if inner:
            cursor.execute("select set_config('statement_timeout', %s, true)", [before])


def notify(using: str, notification: Sendable) -> None:
    """Tell every node something, if and when the current transaction commits."""
    texts = list(notification.texts())
    if isinstance(notification, SendableInstruction):
        query("instruct", using, texts=texts, nodes=[recipient(notification)] * len(texts))
        return
    with connections[using].cursor() as cursor:
        for text in texts:
            cursor.execute("select pg_notify(%s, %s)", (CHANNEL, text))
