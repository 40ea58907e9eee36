"""Transactions and snapshots of the sessions of runs, sampled many times a second."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from queues.database.parameters import connection_parameters
from queues.database.sql_files import statements
from queues.etl.job.database import SESSION

_sql = statements(Path(__file__).with_name("sql"))

#: Seconds between two looks.
EVERY = 0.05


@dataclass(slots=True)
class LongestHeld:
    """Seconds, at most: of any transaction, of one with a snapshot, and of one with a snapshot of the hot table."""

    transaction: float = 0.0
    snapshot: float = 0.0
    hot: float = 0.0
    #: The statement of the longest snapshot, and how often was looked.
    statement: str = ""
    looks: int = 0


class TransactionWatcher:
    """A thread that looks until it is to end."""

    def __init__(self, alias: str) -> None:
        self.held = LongestHeld()
        self._connection: psycopg.Connection[Any] = psycopg.connect(**connection_parameters(alias), autocommit=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            self.held.looks += 1
            for age, snapshot, hot, query in self._connection.execute(_sql("look"), {"session": SESSION}):
                self._note(age, snapshot, hot, query)

    def _note(self, age: float, snapshot: bool, hot: bool, query: str) -> None:
        held = self.held
        held.transaction = max(held.transaction, age)
        if snapshot and age > held.snapshot:
            held.snapshot, held.statement = age, " ".join(query.split())
        if snapshot and hot:
            held.hot = max(held.hot, age)

    def end(self) -> LongestHeld:
        """Stop looking; returns what was seen."""
        self._ended.set()
        self._thread.join()
        self._connection.close()
        return self.held
