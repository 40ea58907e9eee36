"""The state of the broker now, for pages that refresh themselves: read once a second, however many requests ask.

A process keeps one. What changes every second is read then, in two statements, of the queues those alone that have
changed; all queues, their first messages, and what the audit chains and ETL say, every few seconds; what the samples
say in two more, when there is a new one. Each is a transaction of its own with a limit. With many queues, or on a busy
machine, looks are further apart.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

from django.db import DEFAULT_DB_ALIAS, OperationalError
from psycopg.errors import QueryCanceled

from queues.config.settings import settings
from queues.database import hosts
from queues.database.hosts import is_here
from queues.database.parameters import connection_parameters
from queues.engine.api import running
from queues.operations.overview import NEW_NODES, Overview, oldest_ready, take_overview
from queues.operations.problems import find_problems
from queues.operations.reasons import FEW_LETTERS, ReasonGroup, dead_reasons
from queues.operations.state import BrokerState, DiskSpace, Trend
from queues.store.queries import query_within
from queues.store.samples import ALL_QUEUES, SPANS, read_series

#: Seconds for which a look holds, one at what changes slowly, and one at the samples, unless there is a new one.
AGE, SLOW_AGE, SAMPLES_AGE = 1.0, 15.0, 60.0
#: A result is valid for this many times as long as it took.
REST = 50
#: Milliseconds that a statement may take, and the one that looks for first messages.
LIMIT, OLDEST_LIMIT = 2000, 500
#: Queues whose first message is looked for: those in which most are ready.
MAX_PROBED = 200
#: Queues whose dead letters are grouped by reason, those with the most; groups that are kept.
REASON_QUEUES, MAX_REASONS = 20, 5
#: Minutes after which a run that is due is late; records of one kind.
LATE, MAX_RECORDS = 10, 20


class StateReader:
    """Keeps the last look; any thread may ask, and one looks for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Look again the next time."""
        self._state: BrokerState | None = None
        self._look_again = 0.0
        self._looked_slowly = -SLOW_AGE

    def read(self, using: str = DEFAULT_DB_ALIAS) -> BrokerState:
        """The state, at most a second old. Raises Django's database errors."""
        with self._lock:
            now = time.monotonic()
            if self._state is None or now >= self._look_again:
                slowly = now - self._looked_slowly >= SLOW_AGE
                self._state = self._look(self._state, slowly, using)
                self._look_again = now + max(AGE, 0.0 if slowly else REST * (time.monotonic() - now))
                self._looked_slowly = now if slowly else self._looked_slowly
            return self._state

    @staticmethod
    def _look(before: BrokerState | None, slowly: bool, using: str) -> BrokerState:
        overview = take_overview(None if before is None else before.overview, using, LIMIT, everything=slowly)
        state = replace(before or BrokerState(overview, {}), overview=overview)
        if slowly:
            state = replace(
                state,
                oldest=_oldest(overview, using),
                records=query_within(
                    "state_records", using, LIMIT, minutes=LATE, most=MAX_RECORDS,
                    idle=settings.BROKER_IDLE_SUBSCRIPTION_DAYS,
                ),
                disk=database_disk(using),
                reasons=_reasons(overview, using),
            )
        now = time.time()
        sampled = before is None or overview.sampled_at != before.overview.sampled_at
        if sampled or now - state.series_at >= SAMPLES_AGE:
            state = replace(
                state,
                trends={id: Trend(*row) for id, *row in query_within("state_trends", using, LIMIT, minutes=NEW_NODES)},
                series=read_series([ALL_QUEUES], SPANS["hour"], now, using)[ALL_QUEUES],
                series_at=now,
            )
        engines, warnings = tuple(running), hosts.warnings()
        state = replace(
            state,
            unready=list(dict.fromkeys(reason for engine in engines for reason in engine.unready_reasons())),
            notes=list(dict.fromkeys([*(note for engine in engines for note in engine.notes()), *warnings])),
        )
        return replace(state, problems=find_problems(state))


def _oldest(overview: Overview, using: str) -> dict[int, float]:
    """The ages of the first messages of the queues in which most wait; nothing if that takes long."""
    waiting = sorted(overview.queues, key=lambda queue: -queue.counts.ready)[:MAX_PROBED]
    try:
        return oldest_ready((queue.id for queue in waiting if queue.counts.ready), using, OLDEST_LIMIT)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return {}


def _reasons(overview: Overview, using: str) -> list[ReasonGroup]:
    """The largest groups of dead letters of the queues with the most; nothing if that takes long."""
    most = sorted((queue for queue in overview.queues if queue.counts.dead), key=lambda queue: -queue.counts.dead)
    try:
        return dead_reasons([queue.id for queue in most[:REASON_QUEUES]], FEW_LETTERS, using=using)[:MAX_REASONS]
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return []


def database_disk(using: str = DEFAULT_DB_ALIAS) -> DiskSpace | None:
    """The disk of the database, if its server is on this machine; None for one elsewhere, or whose directory the role
    may not know."""
    if not is_here(str(connection_parameters(using).get("host", ""))):
        return None
    files = settings.DATA_DIR / "postgres"
    if not files.is_dir():  # the server is not the embedded one
        found = query_within("data_directory", using, LIMIT)
        if not found:
            return None
        files = Path(found[0][0])
    try:
        usage = shutil.disk_usage(files)
    except OSError:  # in a container, or for others' eyes only
        return None
    return DiskSpace(usage.total, usage.free)


#: The reader of this process.
reader = StateReader()
