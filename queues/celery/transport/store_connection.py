"""The connection to PostgreSQL that a channel queries, publishes and listens on.

One thread uses it at a time, as with kombu's connections. Locks of its session hold the temporary queues that it
consumes from.
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

from queues.celery.consumers.fork_safety import watch
from queues.celery.transport.errors import DatabaseUnavailable, connection_errors, raise_unavailable
from queues.celery.transport.statements import numbered
from queues.database.hosts import Session, choose
from queues.database.parameters import ENCODING, KEEPALIVES, SESSION_SETTINGS, check_encoding, startup_options
from queues.database.prepared import PreparedStatements
from queues.database.sql_files import array
from queues.engine.api import SendableHint
from queues.errors import WrongEncoding

T = TypeVar("T")

#: The engine's, with the joins that suit statements on small tables.
SETTINGS = SESSION_SETTINGS | {"enable_nestloop": "on", "enable_mergejoin": "on"}
#: Keepalives release the locks of a host that has vanished.
SERVER_KEEPALIVES = {f"tcp_{name}": str(value) for name, value in KEEPALIVES.items()}
#: The channel of a queue's notifications, without the queue's id.
CHANNEL = "fivewire.queue."
#: Seconds that a statement may take unless the transport is told otherwise.
TIMEOUT = 60.0
#: Seconds between looks at the clock while the server has not answered.
LOOK = 0.1


class BoundedConnection(PreparedStatements, Connection[TupleRow]):
    """A connection that waits for the server until its deadline: a host that has vanished blocks no caller for ever."""

    numbered = staticmethod(numbered)
    primary = Session()
    #: On the monotonic clock; None: no limit.
    deadline: float | None = None
    #: Whether this process is a child of the one that opened it.
    inherited = False
    #: Whether a statement is under way whose result is not waited for.
    posted = False

    def begin_limit(self, seconds: float) -> bool:
        """Set the deadline, unless there is one; returns whether it was set."""
        if self.deadline is not None:
            return False
        self.deadline = time.monotonic() + seconds
        return True

    def end_limit(self) -> None:
        self.deadline = None

    def disown(self) -> None:
        """This process is a child of the one that opened the connection."""
        self.inherited = True

    def posting(self) -> None:
        """A statement was sent whose result is read before the next one."""
        self.posted = True

    def finish_posted(self) -> None:
        """Read the result of a statement that was posted."""
        if self.posted:
            self.wait(generators.fetch_many(self.pgconn))
            self.posted = False

    def wait(self, gen: Generator[Any, Any, T], interval: float = LOOK, *bound: Any, **named: Any) -> T:
        """Run one of psycopg's generators. Raises DatabaseUnavailable at the deadline, and closes the connection."""
        if self.deadline is None:
            return super().wait(gen, interval, *bound, **named)
        try:
            return super().wait(_until(gen, self.deadline), LOOK)
        except DatabaseUnavailable:  # a later answer would be taken for that of another statement
            self.close()
            raise


def _until(generator: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """The same generator, which raises DatabaseUnavailable while it waits at the deadline."""
    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise DatabaseUnavailable("the database did not answer in time; the outcome is unknown")
            wanted = generator.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class TimeLimit:
    """A block whose statements end within some seconds. An outer block's limit holds for the blocks in it."""

    __slots__ = ("_connection", "_outermost", "_seconds")

    def __init__(self, connection: BoundedConnection, seconds: float | None) -> None:
        self._connection = connection
        self._seconds = seconds
        self._outermost = False

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._outermost = self._connection.begin_limit(self._seconds)

    def __exit__(self, *raised: object) -> None:
        if self._outermost:
            self._connection.end_limit()
            self._outermost = False


class Asking:
    """The block of a statement: gives the connection with nothing under way, raises DatabaseUnavailable.

    A connection has one, which the statements of a transaction enter again: no object is made for a statement.
    """

    __slots__ = ("_connection", "_depth", "_limit")

    def __init__(self, connection: BoundedConnection, patience: float) -> None:
        self._connection = connection
        self._limit = TimeLimit(connection, patience)
        self._depth = 0

    def __enter__(self) -> BoundedConnection:
        if self._connection.inherited:
            raise DatabaseUnavailable("the connection is the parent process's")
        if self._connection.primary.outdated:
            self._connection.close()
            raise DatabaseUnavailable("the primary was replaced by another host")
        if self._depth == 0:
            self._limit.__enter__()
        self._depth += 1
        try:
            self._connection.finish_posted()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._limit.__exit__()
        if error is not None:
            raise_unavailable(error)


class StoreConnection:
    """An open connection. Raises DatabaseUnavailable when it is lost, or when a statement takes `patience` seconds."""

    def __init__(self, conninfo: str, timeout: float, durable: bool = True, patience: float = TIMEOUT) -> None:
        settings = SETTINGS | SERVER_KEEPALIVES | ({} if durable else {"synchronous_commit": "off"})
        #: Called with the id of a queue when a notification says that the queue has messages.
        self.on_news: Callable[[int], None] = lambda queue: None
        #: Whether commits wait for the disk.
        self.durable = durable
        with connection_errors():
            self._connection = self._connect(conninfo, timeout, settings)
        self._connection.prepared_max = None
        #: Channels of notifications that came during a statement.
        self._heard: deque[str] = deque()
        heard = self._heard
        self._connection.add_notify_handler(lambda notification: heard.append(notification.channel))
        #: Entered around every use of the connection.
        self._asking = Asking(self._connection, patience)
        self._end = weakref.finalize(self, _end, self._connection, os.getpid())
        self._end.atexit = False  # messages to be stored at the end need it
        watch(self)

    @staticmethod
    def _connect(conninfo: str, timeout: float, settings: dict[str, str]) -> BoundedConnection:
        given = conninfo_to_dict(conninfo)
        chosen, primary = choose(given)
        ours: dict[str, Any] = KEEPALIVES | {"connect_timeout": max(2, int(timeout))}
        ours |= {"application_name": "fivewire celery", "client_encoding": ENCODING}
        ours |= {"options": startup_options(settings, str(given.get("options") or ""))}
        connection = BoundedConnection.connect(**chosen | ours, autocommit=True, prepare_threshold=0)
        connection.primary = primary
        try:
            check_encoding(connection)
        except WrongEncoding:
            connection.close()
            raise
        return connection

    # Of the process.

    def descriptors(self) -> list[int]:
        return [] if self._connection.closed else [self._connection.fileno()]

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return self._connection.inherited

    def disown(self) -> None:
        self._connection.disown()

    @property
    def usable(self) -> bool:
        """Whether this process may use the connection, as far as is known."""
        return not (self.inherited or self._connection.closed or self._connection.primary.outdated)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection; garbage collection does the same."""
        self._end()

    # Asking.

    def query(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named statement in a transaction of its own; returns its rows."""
        with self._asking as connection:
            rows = connection.wait(connection.ask(name, parameters))
            self._tell()
            return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the block together, or none of them."""
        try:
            with self._asking as connection, connection.transaction():
                yield
        except BaseException:
            self._connection.forget_prepared()
            raise

    def within(self, seconds: float | None) -> TimeLimit:
        """A block whose statements share a limit in seconds. None: each statement has `request_timeout`."""
        return TimeLimit(self._connection, seconds)

    def post(self, name: str, *parameters: str) -> None:
        """Send a named statement with parameters $1 and so on, without waiting; a failure is not reported."""
        with self._asking as connection:
            self._tell()
            server, prepared = connection.pgconn, connection.wait(connection.prepare(name, None, numbered(name).text))
            server.send_query_prepared(prepared, [parameter.encode() for parameter in parameters])
            server.flush()
            connection.posting()

    def announce(self, news: SendableHint, temporary: Iterable[int] = ()) -> None:
        """Notify engines, and the consumers of these temporary queues, of ready messages, without waiting."""
        first, *more = list(news.texts()) or [""]
        self.post("announce", first, array(temporary))
        for text in more:
            self.post("announce", text, array(()))

    # Notifications.

    def listen(self, queue: int, command: str = "listen") -> None:
        """Call `on_news` when a message is stored in this queue; with "unlisten" no longer."""
        with self._asking as connection:
            connection.execute(f'{command} "{CHANNEL}{queue}"'.encode())

    def hear(self) -> None:
        """Read the notifications that have come. Raises DatabaseUnavailable when the connection is lost."""
        with self._asking as connection:
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
    """Close a connection in the process that opened it; in a child that would end the parent's."""
    if os.getpid() == pid:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
