"""The export: the window's messages, the new audit rows and the live messages, written and put in place together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from queues.etl.job import compaction, reading, schema
from queues.etl.job.config import Config
from queues.etl.job.continuity import Beginning, begin
from queues.etl.job.database import Chain, DatabaseSnapshot, JobConnection
from queues.etl.job.files import Files
from queues.etl.job.layout import AUDIT, LIVE, MESSAGES
from queues.etl.job.ledger import ExportState, Ledger, MovePlan, Record
from queues.etl.job.progress import ProgressFile
from queues.etl.job.reading import Reader
from queues.etl.job.writing import Layout, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The columns' description, and names of queues by number, deleted queues included.
SCHEMA, QUEUES = "_schema.json", "_queues.json"

MESSAGES_LAYOUT = Layout(MESSAGES, "queue", "finished_at")
AUDIT_LAYOUT = Layout(AUDIT, "chain", "at")


class Export:
    """One run's export. The output does not change before `commit`."""

    def __init__(
        self, config: Config, spark: SparkSession, database: JobConnection, end: DatabaseSnapshot, files: Files,
        ledger: Ledger, progress: ProgressFile,
    ) -> None:  # fmt: skip
        self.config = config
        self.spark = spark
        self.database = database
        self.end = end
        self.files = files
        self.ledger = ledger
        self.progress = progress
        self.reader = Reader(spark, database)
        self.writer = Writer(spark, files, ledger.next_number, config.readers)
        self.last: ExportState | None = ledger.last.state if ledger.last else None

    def run(self, chains: Sequence[Chain]) -> dict[str, Any]:
        """Export; returns the figures. Raises EtlError."""
        beginning = self._begin()
        self.queues, self.keys = self._queues(), self.database.names("queues_apikey")
        tables = {
            MESSAGES: self._messages(beginning),
            AUDIT: self._audit(chains, beginning.another),
            LIVE: self._live(),
        }
        with self.progress.stage("committing"):
            return self._commit(beginning, chains, tables)

    def _begin(self) -> Beginning:
        config = self.config
        beginning = begin(self.database, self.end, self.last, config.output, config.since, config.archive_days)
        if beginning.warning:
            self.progress.warn(beginning.warning)
        if self.last is None and self.files.names(MESSAGES):
            self.progress.warn("The output has files but no record of runs; what it has already is left out.")
            return replace(beginning, again=True)
        return beginning

    def _queues(self) -> dict[int, str]:
        """Names of queues by number, deleted queues included."""
        known = json.loads(self.files.read(QUEUES)) if self.files.exists(QUEUES) else {}
        return {int(id): name for id, name in known.items()} | self.database.names("queues_queue")

    def _messages(self, beginning: Beginning) -> Written:
        config = self.config
        partitions = self.database.archive_partitions(beginning.window, config.bodies != "none")
        with self.progress.stage("messages", self.spark, partitions.rows):
            rows = reading.messages(
                self.reader, beginning.window, partitions, self.queues, self.keys, config.bodies, config.body_schema
            )
            if beginning.again:
                rows = self._unknown(rows, MESSAGES, ["id", "finished_at", "queue_id"], schema.MESSAGES)
            return self.writer.write(rows, MESSAGES_LAYOUT, partitions.rows, self.queues)

    def _unknown(self, rows: DataFrame, table: str, identity: list[str], columns: Sequence[schema.Column]) -> DataFrame:
        """The rows that the output lacks."""
        if not self.files.names(table):
            return rows
        known = self.spark.read.schema(schema.ddl(columns)).parquet(self.files.url(table))
        return rows.join(known.select(*identity), identity, "left_anti")

    def _audit(self, chains: Sequence[Chain], another: bool) -> Written:
        done = dict(self.last.audit) if self.last else {}
        again = another or any(done.get(chain.name, 0) > chain.end for chain in chains)
        if not again:
            self._tell_of_dropped_rows(chains, done)
        if not again and all(done.get(chain.name, 0) == chain.end for chain in chains):
            return Written()
        rows, count = reading.audit(self.reader, chains, {} if again else done)
        if again:
            rows = self._unknown(rows, AUDIT, ["chain_name", "seq", "hash"], schema.AUDIT)
        with self.progress.stage("audit rows", self.spark, count):
            return self.writer.write(rows, AUDIT_LAYOUT, count, {chain.id: chain.name for chain in chains})

    def _tell_of_dropped_rows(self, chains: Sequence[Chain], done: dict[str, int]) -> None:
        for chain in chains:
            first = chain.end if chain.first is None else chain.first
            if done.get(chain.name, first) < first:
                self.progress.warn(
                    f"Rows {done[chain.name]} to {first - 1} of the audit chain {chain.name} were dropped by retention "
                    "before they were exported. Run it more often."
                )

    def _live(self) -> Written:
        with self.progress.stage("live messages", self.spark):
            rows = reading.live(self.reader, self.database.live_bounds(), self.queues, self.keys)
            return self.writer.write_live(rows)

    def _commit(self, beginning: Beginning, chains: Sequence[Chain], tables: dict[str, Written]) -> dict[str, Any]:
        """Put everything in place."""
        token = str(uuid4())
        self.database.note(self.config.output, token)  # fails when the connection, and so the lock, is lost
        moves = [move for written in tables.values() for move in written.moves]
        files = [target for _, target in moves]
        state = self._state(beginning, chains, token, files)
        figures = {
            "number": self.writer.number,
            "window_from": self.last.snapshot if self.last and not beginning.another else "",
            "window_to": state.snapshot,
            "tables": {table: written.figures for table, written in tables.items()},
            "late_rows": self._late_rows(tables[MESSAGES]),
        }
        record = Record(
            number=self.writer.number, kind="run", state=state, files=files, figures=figures,
            hours=self._whole_hours(tables[MESSAGES], beginning),
        )  # fmt: skip
        self._describe(tables[MESSAGES])
        old = [f"{LIVE}/{name}" for name in self.files.names(LIVE) if name.endswith(".parquet")]
        self.ledger.commit(MovePlan(record=record, moves=moves, removals=[path for path in old if path not in files]))
        return figures

    def _state(self, beginning: Beginning, chains: Sequence[Chain], token: str, files: list[str]) -> ExportState:
        end = beginning.end
        small = compaction.add_small(
            self.last.small if self.last else {}, files, f"{end.at:%Y-%m-%d}", self.config.compact_files
        )
        return ExportState(
            snapshot=end.snapshot, at=end.at.astimezone(UTC).isoformat(), system=end.system,
            database=end.database, token=token, audit={chain.name: chain.end for chain in chains}, small=small,
        )  # fmt: skip

    def _late_rows(self, written: Written) -> int:
        """Messages of a day that was over when the last run's window ended."""
        if self.last is None:
            return 0
        day = datetime.fromisoformat(self.last.at).date()
        return sum(rows for hour, rows in written.hours.items() if hour.date() < day)

    def _whole_hours(self, written: Written, beginning: Beginning) -> list[str]:
        """Hours to roll up. A first hour that the window covers only partly is skipped."""
        since = beginning.window.since
        partial = datetime.fromisoformat(since) if since and beginning.window.before is None else None
        return [hour.isoformat() for hour in written.hours if partial is None or hour >= partial]

    def _describe(self, written: Written) -> None:
        """Write the columns' description and the queues' names, which outlast the queues."""
        text = schema.description(self.config.body_schema)
        if not self.files.exists(SCHEMA) or self.files.read(SCHEMA) != text:
            self.files.write(SCHEMA, text)
        known = json.loads(self.files.read(QUEUES)) if self.files.exists(QUEUES) else {}
        named = known | {str(id): self.queues[id] for id in sorted(written.owners) if id in self.queues}
        if named != known:
            self.files.write(QUEUES, json.dumps(named, ensure_ascii=False, indent=0))
