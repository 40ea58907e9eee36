"""A plain connection to PostgreSQL, for what a channel asks, publishes and hears.

It is used by one thread at a time, as kombu's connections are. Temporary queues that it consumes from are held by
locks of its session.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from queues.consuming.inheritance import watch
from queues.engine.database import SESSION_SETTINGS, startup_options
from queues.engine.notifications import SendableHint
from queues.engine.statements import array
from queues.hosts import defaults_for_hosts
from queues.kombu.errors import DatabaseUnavailable, connection_errors
from queues.kombu.statements import statement

T = TypeVar("T")

#: As the engine's sessions, but for statements on small tables.
SETTINGS = SESSION_SETTINGS | {"enable_nestloop": "on", "enable_mergejoin": "on"}
CHANNEL = "fivewire.queue."
#: Seconds that a statement may take unless the transport is told otherwise.
PATIENCE = 60.0
#: Seconds between looks at the clock while the server has not answered.
LOOK = 0.1


class BoundedConnection(Connection[TupleRow]):
    """A connection that waits no longer than until `deadline` (monotonic) for the server.

    Neither a host that vanished nor a server that stands still holds up the caller for ever then.
    """

    deadline: float | None = None

    def wait(self, gen: Generator[Any, Any, T], interval: float = LOOK, *bound: Any, **named: Any) -> T:
        """Run one of psycopg's generators. Raises DatabaseUnavailable when the deadline is over."""
        if self.deadline is None:
            return super().wait(gen, interval, *bound, **named)
        try:
            return super().wait(_until(gen, self.deadline), LOOK)
        except DatabaseUnavailable:  # what it says later would be taken for the answer to something else
            self.close()
            raise


def _until(generator: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """The same generator, that ends by an error when it is still waiting at the deadline."""
    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise DatabaseUnavailable("the database did not answer in time; whether it did as asked is not known")
            wanted = generator.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Link:
    """A connection that is open. Raises DatabaseUnavailable when it is lost, or when `patience` seconds are over."""

    def __init__(self, conninfo: str, timeout: float, durable: bool = True, patience: float = PATIENCE) -> None:
        settings = SETTINGS | ({} if durable else {"synchronous_commit": "off"})
        #: Called with the id of a queue when a notification says that it has something.
        self.on_news: Callable[[int], None] = lambda queue: None
        #: Whether this process is a child of the one that opened it.
        self.inherited = False
        #: Whether commits wait for the disk.
        self.durable = durable
        #: Whether a statement is under way whose result nobody waits for.
        self._posted = False
        self._patience = patience
        self._prepared: set[str] = set()
        with connection_errors():
            self._connection = self._connect(conninfo, timeout, settings)
        self._connection.prepared_max = None
        #: Channels of notifications that came while something was asked.
        self._heard: deque[str] = deque()
        heard = self._heard
        self._connection.add_notify_handler(lambda notification: heard.append(notification.channel))
        self._end = weakref.finalize(self, _end, self._connection, os.getpid())
        self._end.atexit = False  # what is still to be stored then needs it
        watch(self)

    @staticmethod
    def _connect(conninfo: str, timeout: float, settings: dict[str, str]) -> BoundedConnection:
        given = conninfo_to_dict(conninfo)
        ours: dict[str, Any] = {"connect_timeout": max(2, int(timeout))} | defaults_for_hosts(given)
        return BoundedConnection.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=0,
            application_name="fivewire celery",
            options=startup_options(settings, str(given.get("options") or "")),
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            **ours,
        )

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
        with self._asking() as connection:
            cursor = connection.execute(statement(name), parameters)
            rows = cursor.fetchall() if cursor.description is not None else []
            self._tell()
            return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Have what is asked meanwhile committed together, or undone."""
        with self._asking() as connection, connection.transaction():
            yield

    @contextlib.contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Have everything that is asked meanwhile done in so many seconds; None: each statement has its own time."""
        connection = self._connection
        before = connection.deadline
        if seconds is not None and before is None:
            connection.deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            connection.deadline = before

    @contextlib.contextmanager
    def _asking(self) -> Iterator[BoundedConnection]:
        """The connection with nothing under way."""
        if self.inherited:
            raise DatabaseUnavailable("the connection is the parent process's")
        with connection_errors(), self.within(self._patience):
            self._finish_posted()
            yield self._connection

    def post(self, name: str, *parameters: str) -> None:
        """Send a named statement, whose parameters are $1 and so on, and do not wait for it: what fails is not told."""
        with self._asking() as connection:
            server = connection.pgconn
            prepared = b"fivewire " + name.encode()
            if name not in self._prepared:
                server.send_prepare(prepared, statement(name))
                connection.wait(generators.execute(server))
                self._prepared.add(name)
            server.send_query_prepared(prepared, [parameter.encode() for parameter in parameters])
            server.flush()
            self._posted = True

    def announce(self, news: SendableHint, temporary: Iterable[int] = ()) -> None:
        """Tell engines, and those who consume from these temporary queues that messages are ready; not waited for."""
        first, *more = list(news.texts()) or [""]
        self.post("announce", first, array(temporary))
        for text in more:
            self.post("announce", text, array(()))

    def _finish_posted(self) -> None:
        """Read what came of a statement that was posted."""
        if self._posted:
            self._connection.wait(generators.fetch_many(self._connection.pgconn))
            self._posted = False
            self._tell()

    # Hearing.

    def listen(self, queue: int) -> None:
        """Call `on_news` when something is stored in a queue."""
        with self._asking() as connection:
            connection.execute(f'listen "{CHANNEL}{queue}"'.encode())

    def unlisten(self, queue: int) -> None:
        with self._asking() as connection:
            connection.execute(f'unlisten "{CHANNEL}{queue}"'.encode())

    def hear(self) -> None:
        """Read what has come, without waiting. Raises DatabaseUnavailable when the connection is lost."""
        with self._asking() as connection:
            connection.pgconn.consume_input()
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
