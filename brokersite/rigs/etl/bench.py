"""The export's pace beside `COPY TO`, the fastest way out that PostgreSQL has: both in one go, same rows.

The rows are made in a database of their own, which is dropped at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg

from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import Figures
from brokersite.rigs.etl.scratch import scratch_database, scratch_directory
from queues.database.parameters import connection_parameters
from queues.database.sql_files import statements
from queues.etl.errors import JobDied
from queues.etl.job.class_archive import archive_path
from queues.etl.job.config import Config
from queues.etl.options import RunOptions, config_for
from queues.etl.runner import follow, job_process

_sql = statements(Path(__file__).with_name("sql"))

NAME = "fivewire_etl_bench"
#: Messages of one transaction, as a busy settlement writer writes them.
BATCH = 4000


def measure(rows: int, tell: Callable[[str], None], slots: int, single: int) -> Figures:
    """Archive so many messages, `single` percent as rows and the others `slots` a segment; take them out both ways.

    Returns the rows a second of each; `run` is the whole job, Spark's start included. Raises EtlError.
    """
    with scratch_database(NAME) as alias, scratch_directory("fivewire-etl-bench-") as directory:
        with psycopg.connect(**connection_parameters(alias), autocommit=True) as connection:
            tell(f"making {rows:,} messages")
            fill(connection, rows, slots, single)
            tell("COPY TO")
            copy = _copy(connection, directory / "copy")
        path = archive_path(_config(alias, directory / "out"))
        if path is not None and not path.exists():
            tell("a first job, which leaves Java's classes for the next")
            _job(alias, directory / "out")
        tell("the job")
        started = monotonic()
        result = _job(alias, directory / "out")
        messages = result["tables"]["messages"]
        if messages["rows_out"] != rows:
            raise BenchError(f"Of {rows:,} rows {messages['rows_out']:,} were exported.")
        return {
            "messages": rows, "copy_rows_per_s": rows / copy,
            "export_rows_per_s": rows / result["seconds"]["messages"],
            "run_rows_per_s": rows / (monotonic() - started),
        }  # fmt: skip


def fill(connection: psycopg.Connection[Any], rows: int, slots: int, single: int) -> None:
    """Archive so many messages of four queues as if they had been acknowledged, many a transaction."""
    connection.execute(_sql("queues"))
    connection.execute(_sql("key"))
    connection.execute("set synchronous_commit = off")
    for start in range(0, rows, BATCH):
        batch = min(BATCH, rows - start)
        alone = batch * single // 100
        with connection.transaction():
            connection.execute(_sql("rows"), {"start": start, "messages": alone})
            connection.execute(_sql("segments"), {"start": start + alone, "messages": batch - alone, "slots": slots})
    connection.execute("checkpoint")


def _copy(connection: psycopg.Connection[Any], path: Path) -> float:
    """Seconds that COPY takes for all rows, into a file."""
    started = monotonic()
    with open(path, "wb") as file, connection.cursor().copy("copy (select * from queues_archive) to stdout") as copy:
        file.writelines(copy)
    seconds = monotonic() - started
    path.unlink()
    return seconds


def _config(alias: str, output: Path, progress: Path = Path()) -> Config:
    return config_for(0, str(output), RunOptions(bodies="none", body_schema="", verify="none"), progress, alias)


def _job(alias: str, output: Path) -> dict[str, Any]:
    """Run the job to its end; returns its figures."""
    with job_process(0, lambda progress: _config(alias, output, progress).text()) as job:
        outcome = follow(job)
    if "error" in outcome:
        raise JobDied(outcome["error"])
    shutil.rmtree(output, ignore_errors=True)
    result: dict[str, Any] = outcome["result"]
    return result
