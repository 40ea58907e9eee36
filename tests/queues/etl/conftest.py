"""A Spark that all tests of this directory share, an archive to export, and what the output then has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queues.database.parameters import connection_parameters
from queues.etl.jar import driver_jar
from queues.etl.job.config import Config
from queues.etl.job.database import JobConnection
from queues.etl.job.export import Export
from queues.etl.job.progress import ProgressFile
from queues.etl.job.session import session
from queues.etl.job.stages import ExportJob
from tests.waiting import PATIENCE

MEMORY = 1024 * 2**20
Rows = list[dict[str, Any]]


def config(output: Path | str, **changes: Any) -> Config:
    """A run into this output, of the test database."""
    database = {name: str(value) for name, value in connection_parameters().items()}
    jar = driver_jar(None)
    given: dict[str, Any] = {
        "run": 1, "output": str(output), "master": "local[2]", "database": database, "jar": str(jar) if jar else None,
        "driver_memory": MEMORY, "executor_memory": MEMORY, "readers": 2, "archive_days": 30, "compact_files": 3,
    }  # fmt: skip
    return Config(**{**given, **changes})


@pytest.fixture(scope="session")
def spark(spark_defaults: Path) -> Iterator[SparkSession]:
    """One session for all: it takes long to start."""
    jar = driver_jar(None)
    given = Config(
        run=0, output="", master="local[2]", database={}, jar=str(jar) if jar else None, driver_memory=MEMORY,
        executor_memory=MEMORY, readers=2, archive_days=30, compact_files=3,
    )  # fmt: skip
    with session(given) as started:
        yield started


class Etl:
    """Puts rows into the archive, exports them, and reads what the output has."""

    def __init__(self, spark: SparkSession, output: Path, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.spark = spark
        self.output = output
        self.connection = connection
        self.warnings: list[str] = []

    def queue(self, name: str) -> int:
        """A queue's number; it is made if there is none."""
        self.connection.execute(
            "insert into queues_queue (name, uuid, max_attempts, retry_backoff)"
            " values (%s, gen_random_uuid(), 3, '1 s') on conflict do nothing", (name,),
        )  # fmt: skip
        row = self.connection.execute("select id from queues_queue where name = %s", (name,)).fetchone()
        assert row is not None
        return int(row[0])

    def finish(self, *ids: int, queue: str = "orders", on: Any = None, **columns: Any) -> None:
        """Archive messages with these ids as finished now, in a transaction of `on` or in one of their own."""
        given = {"queue_id": self.queue(queue), "outcome": 0, "attempts": 0, "size": 3, **columns}
        times = {name: given.pop(name, None) for name in ("published_at", "delivered_at", "finished_at")}
        names = ", ".join([*given, *times])
        values = ", ".join([*("%s" for _ in given), *("coalesce(%s, now())" for _ in times)])
        for id in ids:
            (on or self.connection).execute(
                f"insert into queues_archive (id, {names}) values (%s, {values})".encode(),
                (id, *given.values(), *times.values()),
            )

    @contextmanager
    def database(self, patience: float = PATIENCE) -> Iterator[JobConnection]:
        """The job's connection with the output's lock, which the server may not have taken yet from the one before."""
        database = JobConnection(config(self.output).database)
        try:
            database.lock(str(self.output), patience)
            yield database
        finally:
            database.close()

    def job(self, database: JobConnection, **changes: Any) -> ExportJob:
        return ExportJob(config(self.output, **changes), self.spark, database, ProgressFile(""), database.snapshot())

    def run(self, **changes: Any) -> dict[str, Any]:
        """A whole run; returns its figures."""
        with self.database() as database:
            job = self.job(database, **changes)
            figures = job.run()
            self.warnings = job.progress.warnings
            return figures

    def export(self, **changes: Any) -> dict[str, Any]:
        """A run's export alone, which is most of it; returns its figures."""
        with self.database() as database:
            job = self.job(database, **changes)
            job.ledger.recover()
            export = Export(job.config, self.spark, database, job.end, job.files, job.ledger, job.progress)
            figures = export.run(database.chains())
            self.warnings = job.progress.warnings
            return figures

    def rows(self, table: str = "messages") -> Rows:
        """The rows of a reader that knows the path only."""
        return [row.asDict() for row in self.spark.read.parquet(f"{self.output}/{table}").collect()]

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    def files(self, pattern: str = "messages/**/*.parquet") -> list[str]:
        return sorted(str(path.relative_to(self.output)) for path in self.output.glob(pattern))

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(text.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def etl(spark: SparkSession, transactional_db: None, tmp_path: Path) -> Iterator[Etl]:
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        yield Etl(spark, tmp_path / "out", connection)


@contextmanager
def open_transaction() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A transaction that has its number; it commits when the test says so, else comes to nothing."""
    with psycopg.connect(**connection_parameters()) as connection:
        connection.execute("select pg_current_xact_id()")
        yield connection
        connection.rollback()


def ago(**time: float) -> datetime:
    """A time in the past, UTC."""
    from django.utils import timezone

    return timezone.now() - timedelta(**time)


def hourly() -> str:
    """When a schedule runs every hour, and not in the next minutes: a test may take some."""
    from django.utils import timezone

    return f"{(timezone.now().minute + 30) % 60} * * * *"


__all__ = ["Etl", "ago", "config", "hourly", "open_transaction"]
