"""A run of the job, stage by stage. Each leaves the output complete, or the next run completes or undoes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from queues.etl.job import chains, compaction, rollups
from queues.etl.job.config import Config
from queues.etl.job.database import Chain, DatabaseSnapshot, JobConnection
from queues.etl.job.export import Export
from queues.etl.job.files import Files
from queues.etl.job.layout import RUNS
from queues.etl.job.ledger import Ledger, Record
from queues.etl.job.progress import ProgressFile
from queues.etl.job.reading import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Record up to which hours are rolled up, and the database.
ROLLED_UP = f"{RUNS}/_rolled_up"
#: Days whose rollups are computed again in a database that lacks them.
RECOMPUTED_DAYS = 40


@dataclass
class ExportJob:
    """One run. Its caller holds the output's lock in `database`. It reads messages finished up to `end`."""

    config: Config
    spark: SparkSession
    database: JobConnection
    progress: ProgressFile
    end: DatabaseSnapshot
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = Files(self.spark, self.config.output)
        self.ledger = Ledger(self.files)

    def run(self) -> dict[str, Any]:
        """Run all stages; returns the figures. Raises EtlError: the next run goes on from the last complete record."""
        with self.progress.stage("recovering"):
            if self.ledger.recover():
                self.progress.warn("The run before was cut off while it put files in place; that was completed first.")
        found = self.database.chains()
        export = Export(self.config, self.spark, self.database, self.end, self.files, self.ledger, self.progress)
        self.figures |= export.run(found)
        with self.progress.stage("rollups", self.spark):
            self.figures["hours"] = self.roll_up()
        with self.progress.stage("verifying", self.spark, sum(chain.end for chain in found)):
            self.figures["proven"] = self.prove(found)
        with self.progress.stage("compacting", self.spark):
            self.figures["compaction"] = compaction.compact(self.spark, self.ledger, self.config.compact_files)
        return {**self.figures, "seconds": self.progress.seconds}

    def roll_up(self) -> int:
        """Compute rollups of hours with new rows or new dead letters; returns their number."""
        last = self.ledger.newest
        place = f"{last.state.system}/{last.state.database}"  # rollups depend on what it holds
        if hours := self._hours(last, place):
            self.database.clear_drafts(self.config.run)
            rows = rollups.compute(self.spark, self.files, self.config.run, hours)
            Reader(self.spark, self.database).append(rows, "queues_rollupdraft")
            self.database.replace_rollups(self.config.run)
        self.files.write(ROLLED_UP, f"{last.number} {place}\n")
        return len(hours)

    def _hours(self, last: Record, place: str) -> set[str]:
        """Hours whose rollups in this database differ from the output."""
        done, before = (self.files.read(ROLLED_UP).split() if self.files.exists(ROLLED_UP) else ["0", ""])[:2]
        anew = last.number > 1 and not last.figures.get("window_from")  # in a restored database
        elsewhere = before != place or anew
        oldest = (datetime.now(UTC) - timedelta(days=RECOMPUTED_DAYS)).isoformat()
        hours: set[str] = set()
        since = oldest
        for record in self.ledger.earlier():
            if record.number <= int(done):
                since = max(since, record.state.at)
                if not elsewhere or record.state.at < oldest:
                    break
            hours.update(record.hours)
        first = datetime.fromisoformat(oldest if elsewhere else since) - timedelta(minutes=10)
        return hours | rollups.dead_letter_hours(self.spark, self.files, first)

    def prove(self, found: Sequence[Chain]) -> list[dict[str, Any]]:
        """Verify the audit chains, unless the options say not to."""
        if self.config.verify == "none":
            return []
        reader = Reader(self.spark, self.database)
        return [dataclasses.asdict(proven) for proven in chains.prove(reader, found)]
