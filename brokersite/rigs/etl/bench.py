"""The export's pace beside `COPY TO`, the fastest way out that PostgreSQL has: both in one go, same rows.

The rows are made in a database of their own, which is dropped at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg

from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import Figures
from brokersite.rigs.etl.scratch import scratch_database, scratch_directory
from queues.database import connection_parameters
from queues.etl.errors import JobDied
from queues.etl.options import RunOptions, config_for
from queues.etl.runner import LOOK_EVERY, job_process

NAME = "fivewire_etl_bench"
#: Messages of one transaction, as a busy settlement writer writes them.
BATCH = 4000
#: Of a segment, and the percentage of messages that have rows of their own. Bursts of 4 s over BlipMQ and Overhop left
#: segments of 730 to 2,100 messages, on average, in 1.1 to 1.4 ranges, and 0 to 4.5 % of the messages in rows.
SLOTS, SINGLE = 1000, 5

KEY = """insert into queues_apikey (id, name, digest, hint, protocols, publish, consume, manage)
    values (1, 'bench', 'x', '', '{}', '{}', '{}', '{}')"""
QUEUES = """insert into queues_queue (name, uuid, max_attempts, retry_backoff)
    select 'queue-' || n, gen_random_uuid(), 3, '1 s' from generate_series(1, 4) n"""
ROWS = """insert into queues_archivedmessage (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,
        delivered_at, finished_at, size, key, xid)
    select %(start)s + n, 1 + n %% 4, 0, 0, 1, 1, now() - n * interval '1 ms', now() - n * interval '0.5 ms', now(),
        100, null, (select pg_current_xact_id()::text::bigint)
    from generate_series(0, %(messages)s - 1) n"""
#: Every fourth segment was acknowledged in two ranges.
SEGMENTS = """insert into queues_archivedsegment (first, count, queue_id, producer_id, published_at, finished_at, sizes,
        lows, highs, consumers, delivered, jobs, xid)
    select %(start)s + n, slots, 1 + turn, 1, now() - n * interval '1 ms', now(), array_fill(100, array[slots]),
        case ranges when 1 then array[0] else array[0, slots / 2] end,
        case ranges when 1 then array[slots - 1] else array[slots / 2 - 1, slots - 1] end,
        array_fill(1, array[ranges]), array_fill(now() - n * interval '0.5 ms', array[ranges]),
        array_fill(null::boolean, array[ranges]), (select pg_current_xact_id()::text::bigint)
    from (
        select n, turn, slots, case when turn = 3 and slots > 1 then 2 else 1 end as ranges
        from generate_series(0, %(messages)s - 1, %(slots)s) n, lateral (
            select n / %(slots)s %% 4 as turn, least(%(slots)s, %(messages)s - n)::integer as slots) as cut
    ) as segment"""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Rows, and the seconds that each way took; `job` is the whole run, Spark's start included."""

    rows: int
    copy: float
    messages: float
    job: float

    @property
    def figures(self) -> Figures:
        """Rows a second of each way."""
        return {
            "messages": self.rows, "copy_rows_per_s": self.rows / self.copy,
            "export_rows_per_s": self.rows / self.messages, "run_rows_per_s": self.rows / self.job,
        }  # fmt: skip


def measure(rows: int, tell: Callable[[str], None], slots: int = SLOTS, single: int = SINGLE) -> Speeds:
    """Archive so many messages, `single` percent as rows and the others `slots` a segment; take them out both ways.

    Raises EtlError.
    """
    with scratch_database(NAME) as alias, scratch_directory("fivewire-etl-bench-") as directory:
        with psycopg.connect(**connection_parameters(alias), autocommit=True) as connection:
            tell(f"making {rows:,} messages")
            fill(connection, rows, slots, single)
            tell("COPY TO")
            copy = _copy(connection, directory / "copy")
        tell("the job")
        started = monotonic()
        result = _job(alias, directory / "out")
        messages = result["tables"]["messages"]
        if messages["rows_out"] != rows:
            raise BenchError(f"Of {rows:,} rows {messages['rows_out']:,} were exported.")
        return Speeds(rows, copy, result["seconds"]["messages"], monotonic() - started)


def fill(connection: psycopg.Connection[Any], rows: int, slots: int, single: int) -> None:
    """Archive so many messages of four queues as if they had been acknowledged, many a transaction."""
    connection.execute(QUEUES)
    connection.execute(KEY)
    connection.execute("set synchronous_commit = off")
    for start in range(0, rows, BATCH):
        batch = min(BATCH, rows - start)
        alone = batch * single // 100
        with connection.transaction():
            connection.execute(ROWS, {"start": start, "messages": alone})
            connection.execute(SEGMENTS, {"start": start + alone, "messages": batch - alone, "slots": slots})
    connection.execute("checkpoint")


def _copy(connection: psycopg.Connection[Any], path: Path) -> float:
    """Seconds that COPY takes for all rows, into a file."""
    started = monotonic()
    with open(path, "wb") as file, connection.cursor().copy("copy (select * from queues_archive) to stdout") as copy:
        for block in copy:
            file.write(block)
    seconds = monotonic() - started
    path.unlink()
    return seconds


def _job(alias: str, output: Path) -> dict[str, Any]:
    """Run the job to its end; returns its figures."""
    options = RunOptions(bodies="none", body_schema="", verify="none")

    def config(progress: Path) -> str:
        return config_for(0, str(output), options, progress, alias).text()

    result: dict[str, Any] = {}
    with job_process(0, config) as job:
        while True:
            status = job.status
            for line in job.lines():
                result = line.get("result", result)
                if "error" in line:
                    raise JobDied(line["error"])
            if status is not None:
                break
            sleep(LOOK_EVERY)
        if not result:
            raise JobDied(job.last_words)
    shutil.rmtree(output, ignore_errors=True)
    return result
