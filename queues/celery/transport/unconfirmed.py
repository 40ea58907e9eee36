"""Publishing without waiting: a thread stores what has gathered while it stored what came before.

It is what ``confirm_publish=False`` means, and what AMQP does unless a channel is told otherwise: `publish` returns at
once, messages are stored in their order a moment later, and the log says what goes wrong. While the database is away,
up to `MAX_WAITING` messages wait; then `publish` waits. A process that ends stores what it has; a killed one loses it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import psycopg

from queues.backoff import Backoff
from queues.celery.transport.declaring import Declared
from queues.celery.transport.envelope import MessageRow
from queues.celery.transport.errors import DatabaseUnavailable, NoSuchQueue, QueueIsFull, UnstorableTask
from queues.celery.transport.publishing import ConnectionPublisher
from queues.celery.transport.store_connection import StoreConnection
from queues.ends import ended
from queues.engine.api import ROWS_PER_STATEMENT
from queues.log_throttle import FAULTS, LogThrottle
from queues.processes import process_end

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
#: Messages that may wait while the database is there: a caller that is quicker than the database is held up, and leaves
#: the processors to the database and the workers.
MAX_AHEAD = 200
#: Seconds to gather messages, and the number that ends the gathering. One statement for several costs less.
GATHER, MANY = 0.002, 100
#: The same while messages come fast, and the size of the last batch that means fast.
GATHER_FAST, FAST = 0.005, 4
#: Seconds for which a caller leaves the interpreter to the thread, once in so many seconds while messages wait, and at
#: each call until the first are stored, which the thread needs the interpreter some ten times for. A thread that waits
#: for the interpreter asks for it when its owner has not let go of it for 5 ms. A busy caller lets go for a microsecond
#: at each random number: the thread would wait until the caller is held up, a tenth of a second.
YIELD, OFTEN = 0.00005, 0.002
RETRY = Backoff(0.05, 2.0)
#: Seconds that the end of a connection or of the process waits for the database.
TIMEOUT = 10.0


class UnconfirmedPublisher:
    """A publisher with a thread and a connection of its own; both begin with the first message."""

    def __init__(self, conninfo: str, timeout: float, declared: Declared, patience: float) -> None:
        self._conninfo = conninfo
        self._timeout = timeout
        self._patience = patience
        self._declared = declared
        self._rows: deque[MessageRow] = deque()
        self._throttle = LogThrottle(*FAULTS)
        self._changed = threading.Condition()
        self._storing = 0
        #: Size of the last stored batch.
        self._stored = 0
        #: Whether the thread is about to store the first messages since a pause.
        self._first = True
        #: When a caller last yielded the interpreter to the thread.
        self._yielded = 0.0
        self._away = False
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._deadline = 0.0
        self._pid = os.getpid()
        process_end.watch(self)

    def publish(self, rows: Sequence[MessageRow]) -> None:
        """Have messages stored soon; waits only while too many do."""
        if self._pid != os.getpid():  # its thread is not here
            raise DatabaseUnavailable("the connection is the parent process's")
        with self._changed:
            self._wait_for(lambda: len(self._rows) < (MAX_WAITING if self._away else MAX_AHEAD))
            waiting = bool(self._rows)
            self._rows.extend(rows)
            if (closed := self._stopping):  # another thread's call, or another end of the process, came later
                self._deadline = time.monotonic() + TIMEOUT
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fivewire publisher", daemon=True)
                self._thread.start()
            if not waiting:
                self._changed.notify_all()
        if closed:
            self._run()
            self._tell_left()
        elif waiting and not self._away and (self._first or time.monotonic() - self._yielded > OFTEN):
            time.sleep(YIELD)
            self._yielded = time.monotonic()

    def flush(self) -> None:
        """Wait until what was published before is stored. Raises DatabaseUnavailable when it takes too long."""
        with self._changed:
            self._wait_for(lambda: not (self._rows or self._storing))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, self._patience):
            raise DatabaseUnavailable(f"{len(self._rows)} messages wait for the database")

    def close(self) -> None:
        """Store what waits, and end the thread. Says in the log what could not be stored. What is published later is
        stored by its caller."""
        if self._pid != os.getpid():  # it is the parent's to store
            return
        process_end.forget(self)
        with self._changed:
            self._stopping = True
            self._deadline = time.monotonic() + TIMEOUT
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(2 * TIMEOUT)
        self._tell_left()

    close_at_end = close

    def _tell_left(self) -> None:
        if left := len(self._rows) + self._storing:
            ended("unstored", left)
            logger.error("%d messages could not be stored before the end", left)

    # In the thread.

    def _run(self) -> None:
        database: StoreConnection | None = None
        delays = RETRY.delays()
        while self._wait_for_rows():
            rows: list[MessageRow] = []
            try:
                if database is None or not database.usable:
                    database = StoreConnection(self._conninfo, self._timeout, durable=False, patience=self._patience)
                    publisher = ConnectionPublisher(database, self._declared)
                rows = self._take()  # what has come while it connected, too
                self._store(publisher, rows)
            except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                logger.warning("messages wait for the database: %s", str(error).strip().split("\n")[0])
                with self._changed:
                    self._rows.extendleft(reversed(rows))
                    self._storing = 0
                    self._away = True
                    self._changed.notify_all()
                    if self._stopping and time.monotonic() > self._deadline:
                        break
                time.sleep(next(delays))
                continue
            except Exception:  # without this thread publishers would wait for ever
                lost = len(rows or self._take())
                ended("unstored", lost)
                logger.exception("%d messages were not stored", lost)
                continue
            delays, self._away = RETRY.delays(), False
        if database is not None:
            database.close()

    def _wait_for_rows(self) -> bool:
        """Wait until there are rows to store; False at the end."""
        with self._changed:
            self._storing = 0
            self._changed.notify_all()
            self._first = self._stored == 0 or not self._rows
            while not self._rows:
                if self._stopping:
                    return False
                self._changed.wait()
            return True

    def _take(self) -> list[MessageRow]:
        """The rows to store now."""
        with self._changed:
            if len(self._rows) < MANY and not self._stopping:
                self._changed.release()
                time.sleep(GATHER_FAST if self._stored >= FAST else GATHER)
                self._changed.acquire()
            rows = [self._rows.popleft() for _ in range(min(len(self._rows), ROWS_PER_STATEMENT))]
            self._storing = self._stored = len(rows)
            self._changed.notify_all()
            return rows

    def _store(self, publisher: ConnectionPublisher, rows: list[MessageRow]) -> None:
        """Store some messages; what cannot be stored is left out, and told."""
        try:
            publisher.publish(rows)
        except (NoSuchQueue, QueueIsFull, UnstorableTask) as error:
            if len(rows) == 1:
                ended("unstored")
                queue = rows[0].queue
                if rows[0].durable and (count := self._throttle.admit(queue, time.monotonic())):
                    logger.error("%d message(s) for %r were not stored: %s", count, queue, error)
                return
            for row in rows:
                self._store(publisher, [row])
