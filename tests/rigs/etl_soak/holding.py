"""Transactions that finish messages and stay open while runs cut their windows; then they commit or are rolled back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from queues.api import publish_many
from queues.database.parameters import connection_parameters
from queues.database.sql_files import statements
from queues.models import Outcome, Queue, State
from queues.store import queries
from tests.rigs.etl_soak.names import HELD

_sql = statements(Path(__file__).with_name("sql"))

#: Messages finished in each transaction, in each of three ways.
ROWS = 25
#: Every so many transactions one is rolled back.
ROLLED_BACK = 4


class TransactionHolder:
    """A session that has a transaction open nearly always; each lasts for so many runs."""

    def __init__(self, alias: str, lasts: int, dead: str) -> None:
        """`dead`: a queue of which dead letters are purged."""
        self.connection: psycopg.Connection[Any] = psycopg.connect(**connection_parameters(alias), autocommit=True)
        #: Rows of transactions that have committed, and how many those were.
        self.rows = self.committed = 0
        self._alias = alias
        self._lasts = lasts
        self._age = self._count = self._waiting = 0
        self._queue, self._dead = (Queue.objects.using(alias).get(name=name).pk for name in (HELD, dead))

    def begin(self) -> None:
        """Begin a transaction that archives rows, of now and of a day that is over."""
        publish_many(f"queue:{HELD}", [b"held"] * ROWS, using=self._alias)
        day = datetime.now(UTC) - timedelta(days=1 + self._count % 3)
        self.connection.execute("begin")
        self._waiting = self._remove(self._queue, State.READY, Outcome.REMOVED)
        with self.connection.transaction():  # a savepoint's rows are the transaction's
            given = {"queue": self._queue, "day": day, "rows": ROWS}
            self._waiting += self.connection.execute(_sql("late"), given).rowcount
        self._waiting += self._remove(self._dead, State.DEAD, Outcome.PURGED)
        self._age = 0
        self._count += 1

    def _remove(self, queue: int, state: State, outcome: Outcome) -> int:
        """Take the oldest messages out of the store, as an operator does."""
        given = {
            "queue": queue, "state": int(state), "outcome": int(outcome), "limit": ROWS, "high": 2**63 - 1,
            "ids": None, "by": "", "event": "purge", "named": False,
        }  # fmt: skip
        row = self.connection.execute(queries.text("purge").encode(), given).fetchone()
        assert row is not None
        return int(row[0])

    def another_run(self) -> None:
        """A run has ended: when it was the last one of this transaction, end it and begin the next."""
        self._age += 1
        if self._age >= self._lasts:
            self.finish()
            self.begin()

    def finish(self) -> None:
        """End the transaction."""
        if self._count % ROLLED_BACK:
            self.connection.execute("commit")
            self.rows += self._waiting
            self.committed += 1
        else:
            self.connection.execute("rollback")
        self._waiting = 0

    def close(self) -> None:
        self.connection.close()
