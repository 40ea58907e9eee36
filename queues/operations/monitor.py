"""The state of the broker now, for pages that refresh themselves: read once a second, however many requests ask.

A process keeps one. What changes every second is read then, in two statements; the first messages of queues, and what
the samples, the audit chains and ETL say, every few seconds in four. Each is a transaction of its own with a limit.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace

from django.db import DEFAULT_DB_ALIAS, OperationalError
from psycopg.errors import QueryCanceled

from queues.database import connection_parameters
from queues.engine import running
from queues.operations.overview import NEW_NODES, Overview, oldest_ready, take_overview
from queues.operations.problems import find_problems
from queues.operations.state import BrokerState, Disk, Trend
from queues.samples import ALL_QUEUES, SPANS, read_series
from queues.settings import settings
from queues.store import query_within

#: Seconds for which a look holds, and one at what changes slowly.
AGE, SLOW_AGE = 1.0, 15.0
#: Milliseconds that a statement may take, and the one that looks for first messages.
LIMIT, OLDEST_LIMIT = 2000, 500
#: Queues whose first message is looked for: those in which most are ready.
MOST_PROBED = 200
#: Minutes after which a run that is due is late; records of one kind.
LATE, MOST_RECORDS = 10, 20
LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")


class StateReader:
    """Keeps the last look; any thread may ask, and one looks for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Look again the next time."""
        self._state: BrokerState | None = None
        self._looked = self._looked_slowly = -SLOW_AGE

    def read(self, using: str = DEFAULT_DB_ALIAS) -> BrokerState:
        """The state, at most a second old. Raises Django's database errors."""
        with self._lock:
            now = time.monotonic()
            if self._state is None or now - self._looked >= AGE:
                slowly = now - self._looked_slowly >= SLOW_AGE
                self._state = self._look(self._state, slowly, using)
                self._looked = now
                self._looked_slowly = now if slowly else self._looked_slowly
            return self._state

    @staticmethod
    def _look(before: BrokerState | None, slowly: bool, using: str) -> BrokerState:
        overview = take_overview(None if before is None else before.overview, using, LIMIT)
        state = replace(before or BrokerState(overview, {}), overview=overview)
        if slowly:
            now = time.time()
            state = replace(
                state,
                oldest=_oldest(overview, using),
                trends={id: Trend(*row) for id, *row in query_within("state_trends", using, LIMIT, minutes=NEW_NODES)},
                records=query_within("state_records", using, LIMIT, minutes=LATE, most=MOST_RECORDS),
                series=read_series([ALL_QUEUES], SPANS["hour"], now, using)[ALL_QUEUES],
                series_at=now,
                disk=database_disk(using),
            )
        engines = tuple(running)
        state = replace(
            state,
            unready=list(dict.fromkeys(reason for engine in engines for reason in engine.unready_reasons())),
            notes=list(dict.fromkeys(note for engine in engines for note in engine.notes())),
        )
        return replace(state, problems=find_problems(state))


def _oldest(overview: Overview, using: str) -> dict[int, float]:
    """The ages of the first messages of the queues in which most wait; nothing if that takes long."""
    waiting = sorted(overview.queues, key=lambda queue: -queue.counts.ready)[:MOST_PROBED]
    try:
        return oldest_ready((queue.id for queue in waiting if queue.counts.ready), using, OLDEST_LIMIT)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return {}


def database_disk(using: str = DEFAULT_DB_ALIAS) -> Disk | None:
    """The disk of the embedded database, whose files are under DATA_DIR; None for a server elsewhere."""
    files, host = settings.DATA_DIR / "postgres", str(connection_parameters(using).get("host", ""))
    if not (files.is_dir() and (host in LOCAL_HOSTS or host.startswith("/"))):
        return None
    usage = shutil.disk_usage(files)
    return Disk(usage.total, usage.free)


#: The reader of this process.
reader = StateReader()
