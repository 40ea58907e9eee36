"""The driver's own connection: the output's lock, snapshots, and how to cut what Spark reads into short queries.

Every query is short and in a transaction of its own: an open snapshot would keep VACUUM from the hot table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from queues.database.hosts import choose
from queues.database.sql_files import load_statement
from queues.etl.errors import DatabaseAway, NoTcp, OutputBusy, PooledSession
from queues.etl.job.jdbc import jdbc_properties, jdbc_url
from queues.etl.job.window import Window, partition_bounds

DIRECTORY = Path(__file__).parent / "sql"

#: The first key of the advisory lock of an output; the second is the hash of its path.
LOCK = 74662
SESSION = "fivewire etl"
#: Seconds to wait for the lock.
TIMEOUT = 20.0

#: Approximate rows and bytes per query. It takes well under a second and holds its snapshot no longer.
ROWS_PER_QUERY = 25_000
BYTES_PER_QUERY = 8 * 2**20
#: Messages in segments per query. They are few rows of about the same total size.
SEGMENTED_PER_QUERY = 10 * ROWS_PER_QUERY
#: Pages sampled in a partition to find the cuts.
SAMPLE_PAGES = 300
#: Bytes of a row without its payload.
ROW_BYTES = 200

SESSION_SETTINGS = {
    "application_name": SESSION,
    "timezone": "UTC",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "enable_seqscan": "off",
    "synchronous_commit": "on",
    "default_transaction_read_only": "off",
}


#: Bytes of a segment, and its messages.
SEGMENT = (sql.SQL("{} + 4 * count").format(ROW_BYTES), sql.SQL("count"))


def _row_size(whole: bool) -> tuple[sql.Composable, sql.Composable]:
    """Bytes of a row, with its payload if `whole`."""
    columns = ("headers", "key", "payload", "result") if whole else ("headers", "key")
    sizes = (sql.SQL("coalesce(pg_column_size({}), 0)").format(sql.Identifier(name)) for name in columns)
    return sql.SQL(" + ").join([sql.Literal(ROW_BYTES), *sizes]), sql.Literal(1)


@cache
def statement(name: str) -> LiteralString:
    """The text of sql/NAME.sql without its comments."""
    return load_statement(DIRECTORY / f"{name}.sql").decode()


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The end of a window: a snapshot, its time and its database."""

    snapshot: str
    at: datetime
    system: str
    database: str


@dataclass(frozen=True, slots=True)
class Chain:
    """An audit chain: its oldest remaining seq (None: no row remains) and its next seq."""

    id: int
    name: str
    first: int | None
    end: int


@dataclass(frozen=True, slots=True)
class ReadPartitions:
    """Transaction bounds of the queries that read the archive's rows and its segments. None: nothing to read."""

    values: list[int]
    segments: list[int] | None
    #: Estimated number of messages.
    rows: int


class JobConnection:
    """One connection, in autocommit. Raises DatabaseAway when it cannot be opened."""

    def __init__(self, parameters: dict[str, str]) -> None:
        ours = (f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION_SETTINGS.items())
        given: dict[str, Any] = {
            "connect_timeout": "10", **parameters, "options": " ".join([parameters.get("options", ""), *ours]).strip(),
            "application_name": SESSION, "client_encoding": "UTF8",
        }  # fmt: skip
        try:
            chosen, self.primary = choose(given)
            self.connection = psycopg.connect(**chosen, autocommit=True)
        except psycopg.OperationalError as error:
            raise DatabaseAway(" ".join(str(error).split())) from error
        self.connection.prepare_threshold = None
        self.parameters = parameters

    def close(self) -> None:
        self.connection.close()

    def rows(self, query: LiteralString | sql.Composed, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement, in a transaction of its own. Raises DatabaseAway when the connection is lost, or its primary
        was replaced."""
        if self.primary.outdated:
            raise DatabaseAway("the primary was replaced by another host")
        try:
            cursor = self.connection.execute(query, parameters)
        except psycopg.OperationalError as error:
            raise DatabaseAway(" ".join(str(error).split())) from error
        return cursor.fetchall() if cursor.description else []

    @property
    def jdbc_url(self) -> str:
        """The JDBC URL of the server that this connection has found. Raises NoTcp."""
        info = self.connection.info
        if not info.host or info.host.startswith(("/", "@")):
            raise NoTcp()
        # libpq's parameters from the URL, a service file and the environment, except `options`, which this module sets.
        used = info.get_parameters() | {"options": ""} | self.parameters
        return jdbc_url(info.host, info.port, info.dbname, {"ApplicationName": SESSION} | jdbc_properties(used))

    @property
    def is_shared(self) -> bool:
        """Whether a pooler shares one session between two connections. Session locks would then exclude nobody."""
        other = JobConnection(self.parameters)
        try:
            return other.rows("select pg_backend_pid()") == self.rows("select pg_backend_pid()")
        finally:
            other.close()

    def lock(self, output: str, patience: float = TIMEOUT) -> None:
        """Keep other runs away from an output until this connection ends. Raises OutputBusy or PooledSession.

        A killed run's job may need a moment to end, so the lock is awaited for some seconds. """
        if self.is_shared:
            raise PooledSession()
        query: LiteralString = "select pg_try_advisory_lock(%(lock)s, hashtext(%(output)s))"
        deadline = monotonic() + patience
        while not self.rows(query, lock=LOCK, output=output)[0][0]:
            if monotonic() > deadline:
                raise OutputBusy(output)
            sleep(0.25)

    def snapshot(self) -> DatabaseSnapshot:
        return DatabaseSnapshot(*self.rows(statement("snapshot"))[0])

    def names(self, table: LiteralString) -> dict[int, str]:
        """Names by id."""
        return dict(self.rows(sql.SQL("select id, name from {}").format(sql.Identifier(table))))

    def knows(self, output: str, token: str) -> bool:
        """Whether the run with this token cut its window in this database or in one it was copied from."""
        given = {"output": output, "token": UUID(token)}
        query: LiteralString = (
            "select 1 from queues_etlwitness where output = %(output)s and %(token)s in (token, previous)"
        )
        return bool(self.rows(query, **given))

    def note(self, output: str, token: str) -> None:
        """Store the token of the run that has cut its window."""
        self.rows(statement("record_window"), output=output, token=UUID(token))

    def adopt_restored_rows(self) -> int:
        """Repair rows that a dump brought with later transaction numbers; returns the number of rows."""
        return int(self.rows(statement("restored_archive"))[0][0])

    def archive_partitions(self, window: Window, whole: bool) -> ReadPartitions:
        """Partitions of a window's transactions. `whole`: payloads are read too."""
        parts = self.rows(statement("archive_parts"))
        samples: dict[bool, list[tuple[int, float, float]]] = {}
        for name, pages, index, of_segments in parts:
            if pages:
                self._summarize(index)
                size, weight = SEGMENT if of_segments else _row_size(whole)
                samples.setdefault(of_segments, []).extend(self._sample(name, pages, window, size, weight))
        values = partition_bounds(samples.get(False, ()), ROWS_PER_QUERY, BYTES_PER_QUERY)
        segments = partition_bounds(samples[True], SEGMENTED_PER_QUERY, BYTES_PER_QUERY) if True in samples else None
        rows = sum(weight for sample in samples.values() for _, weight, _ in sample)
        return ReadPartitions(values, segments, int(rows))

    def _summarize(self, index: str | None) -> None:
        """Summarize pages that VACUUM has not seen in the index. Otherwise each query reads them."""
        try:
            self.rows("select brin_summarize_new_values(to_regclass(%(index)s))", index=index)
        except psycopg.errors.InsufficientPrivilege:
            return  # only slower

    def _sample(
        self, part: str, pages: int, window: Window, size: sql.Composable, weight: sql.Composable
    ) -> Iterator[tuple[int, float, float]]:
        share = min(1.0, SAMPLE_PAGES / pages)
        query = sql.SQL(
            "select xid, {weight}, {size} from {part} tablesample system ({percent})"
            " where xid >= {low} and xid < {high}"
        ).format(
            weight=weight, size=size, part=sql.SQL(part), percent=sql.Literal(100 * share),
            low=window.low, high=window.after.xmax,
        )  # fmt: skip
        try:
            found = self.rows(query)
        except psycopg.errors.UndefinedTable:
            return  # the partition was just dropped
        for xid, messages, row_bytes in found:
            yield xid, messages / share, row_bytes / share

    def live_bounds(self) -> list[int]:
        """Ids that divide the live messages into queries of about ROWS_PER_QUERY rows."""
        bounds: list[int] = []
        low = -(2**63)
        while found := self.rows(statement("next_live"), low=low, rows=ROWS_PER_QUERY):
            low = found[0][0]
            bounds.append(low)
        return bounds

    def chains(self) -> list[Chain]:
        """The audit chains as they are now."""
        return [Chain(id, name, first, end or 0) for id, name, first, end in self.rows(statement("chains"))]

    def replace_rollups(self, run: int) -> None:
        """Move the rollups that Spark wrote from the drafts table."""
        with self.connection.transaction():
            self.rows(statement("replace_rollups"), run=run)
            self.rows("delete from queues_rollupdraft where run = %(run)s", run=run)

    def clear_drafts(self, run: int) -> None:
        """Delete the drafts of this run and of ended runs. Other runs may be under way."""
        self.rows(
            "delete from queues_rollupdraft d where d.run = %(run)s or not exists"
            " (select from queues_etlrun r where r.id = d.run and r.state in ('queued', 'running'))", run=run,
        )  # fmt: skip
