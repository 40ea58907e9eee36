"""A plain connection to PostgreSQL, for what a channel asks, publishes and hears.

It is used by one thread at a time, as kombu's connections are. Temporary queues that it consumes from are held by
locks of its session.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow

from queues.consuming.inheritance import watch
from queues.engine.database import SESSION_SETTINGS
from queues.engine.notifications import Sendable
from queues.engine.statements import array
from queues.kombu.statements import statement

#: As the engine's sessions, but for statements on small tables.
SETTINGS = SESSION_SETTINGS | {"enable_nestloop": "on", "enable_mergejoin": "on"}
CHANNEL = "fivewire.queue."


class Link:
    """A connection that is open. Whatever fails raises psycopg's errors."""

    def __init__(self, conninfo: str, timeout: float, durable: bool = True) -> None:
        settings = SETTINGS | ({} if durable else {"synchronous_commit": "off"})
        #: Called with the id of a queue when a notification says that it has something.
        self.on_news: Callable[[int], None] = lambda queue: None
        #: Whether this process is a child of the one that opened it.
        self.inherited = False
        #: Whether commits wait for the disk.
        self.durable = durable
        #: Whether a statement is under way whose result nobody waits for.
        self._posted = False
        self._prepared: set[str] = set()
        self._connection: Connection[TupleRow] = psycopg.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=0,
            application_name="fivewire celery",
            options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
            connect_timeout=max(2, int(timeout)),
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        )
        self._connection.prepared_max = None
        #: Channels of notifications that came while something was asked.
        self._heard: deque[str] = deque()
        heard = self._heard
        self._connection.add_notify_handler(lambda notification: heard.append(notification.channel))
        self._end = weakref.finalize(self, _end, self._connection, os.getpid())
        self._end.atexit = False  # what is still to be stored then needs it
        watch(self)

    # Of the process.

    def descriptors(self) -> list[int]:
        return [] if self._connection.closed else [self._connection.fileno()]

    def disown(self) -> None:
        self.inherited = True

    @property
    def usable(self) -> bool:
        """Whether this process may use it, as far as is known."""
        return not (self.inherited or self._connection.closed)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection; the same happens when nobody has it any more."""
        self._end()

    # Asking.

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named statement in a transaction of its own; returns its rows."""
        cursor = self._free().execute(statement(name), parameters)
        rows = cursor.fetchall() if cursor.description is not None else []
        self._tell()
        return rows

    def transaction(self) -> AbstractContextManager[Any]:
        """Have what is asked meanwhile committed together, or undone."""
        return self._free().transaction()

    def post(self, name: str, *parameters: str) -> None:
        """Send a named statement, whose parameters are $1 and so on, and do not wait for it: what fails is not told."""
        server = self._free().pgconn
        prepared = b"fivewire " + name.encode()
        if name not in self._prepared:
            server.prepare(prepared, statement(name))
            self._prepared.add(name)
        server.send_query_prepared(prepared, [parameter.encode() for parameter in parameters])
        server.flush()
        self._posted = True

    def announce(self, news: Sendable, temporary: Iterable[int] = ()) -> None:
        """Tell engines, and those who consume from these temporary queues that messages are ready; not waited for."""
        first, *more = list(news.texts()) or [""]
        self.post("announce", first, array(temporary))
        for text in more:
            self.post("announce", text, array(()))

    def _free(self) -> Connection[TupleRow]:
        """The connection, with nothing under way."""
        if self.inherited:
            raise psycopg.InterfaceError("the connection is the parent process's")
        if self._posted:
            self._posted = False
            while self._connection.pgconn.get_result() is not None:
                pass
            self._tell()
        return self._connection

    # Hearing.

    def listen(self, queue: int) -> None:
        """Call `on_news` when something is stored in a queue."""
        self._free().execute(f'listen "{CHANNEL}{queue}"'.encode())

    def unlisten(self, queue: int) -> None:
        self._free().execute(f'unlisten "{CHANNEL}{queue}"'.encode())

    def hear(self) -> None:
        """Read what has come, without waiting. Raises psycopg.OperationalError when the connection is lost."""
        self._free().pgconn.consume_input()
        self._tell()

    def _tell(self) -> None:
        """Pass on the notifications that have come."""
        server, heard = self._connection.pgconn, self._heard
        while (notification := server.notifies()) is not None:
            heard.append(notification.relname.decode())
        while heard:
            number = heard.popleft().removeprefix(CHANNEL)
            if number.isdigit():
                self.on_news(int(number))


def _end(connection: Connection[TupleRow], pid: int) -> None:
    """Close a connection in the process that opened it: from a child it would be the parent's that ends."""
    if os.getpid() == pid:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
