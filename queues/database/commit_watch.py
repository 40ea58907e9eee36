"""Commits that wait for a synchronous standby: whoever waits is told, or the wait is ended.

Such a change is stored on the primary already, and others see it when the wait is over. The end of the wait takes
nothing back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections

from queues.database.parameters import primary_parameters

#: Seconds between two looks once waits are ended at once; for which the end of a block waits for a look.
LOOK_AGAIN: Final = 0.25
LAST_LOOK: Final = 1.0
WAITING: Final = (
    "select {} from pg_stat_activity where pid = %s and wait_event = 'SyncRep'"
    " and query_start <= clock_timestamp() - make_interval(secs => %s)"
)
#: Finds a session whose commit has waited too long; the same, and ends the wait.
FIND: Final = WAITING.format("true").encode()
END: Final = WAITING.format("pg_cancel_backend(pid)").encode()

UNCONFIRMED: Final = "is stored on the primary, and no synchronous standby has confirmed it"


class CommitWatch:
    """Watches the commits of this thread within its block, over a connection of its own once something lasts.

    `waited`: a commit has waited `seconds` for a synchronous standby. `tell` is then called once, in another thread.
    Without `tell` the wait is ended, and later waits of the block are ended at once. """

    def __init__(self, seconds: float, tell: Callable[[], object] | None = None, using: str = DEFAULT_DB_ALIAS) -> None:
        self.waited = False
        self._seconds = seconds
        self._tell = tell
        self._using = using
        self._watched = connections[using]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commit watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(LAST_LOOK)  # it may have ended the wait, and is about to say so

    def _watch(self) -> None:
        pause = self._seconds
        while not self._over.wait(pause):
            with suppress(psycopg.Error):  # the one who waits meets it, too
                self._look()
            if self.waited and self._tell is not None:
                self._tell()
                return
            pause = LOOK_AGAIN if self.waited else self._seconds

    def _look(self) -> None:
        watched = self._watched.connection
        if watched is None or watched.closed:
            return
        pid = watched.info.backend_pid
        query, seconds = (END, 0.0 if self.waited else self._seconds) if self._tell is None else (FIND, self._seconds)
        parameters = primary_parameters(self._using) | {"application_name": "fivewire commit watch"}
        with psycopg.connect(**parameters, autocommit=True) as connection:
            if connection.execute(query, (pid, seconds)).fetchone() == (True,):
                self.waited = True
