"""Writing a table below staging: by day and queue, counted on the way in and again from the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as f

from queues.etl.errors import RowsMissing
from queues.etl.job import times
from queues.etl.job.database import ROWS_PER_QUERY
from queues.etl.job.files import Files
from queues.etl.job.layout import LIVE, Part, unknown
from queues.etl.job.ledger import staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Files whose footers are read one by one. For more files Spark is faster.
FOOTERS = 200


@dataclass(slots=True)
class Written:
    """A written table: rows, bytes, and the paths of its files."""

    rows_in: int = 0
    rows_out: int = 0
    bytes: int = 0
    moves: list[tuple[str, str]] = field(default_factory=list)
    #: Rows by hour (UTC).
    hours: dict[datetime, int] = field(default_factory=dict)
    owners: set[int] = field(default_factory=set)

    @property
    def figures(self) -> dict[str, int]:
        return {
            "rows_in": self.rows_in, "rows_out": self.rows_out, "bytes": self.bytes, "files": len(self.moves),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table: by the day of `time`, and by the owner's name in directories `column=NAME`."""

    table: str
    column: str
    time: str


class Writer:
    """Writes the files of one run."""

    def __init__(self, spark: SparkSession, files: Files, number: int, readers: int) -> None:
        self.spark = spark
        self.files = files
        self.number = number
        self.readers = readers

    def write(self, rows: DataFrame, layout: Layout, about: int, names: Mapping[int, str]) -> Written:
        """Write `about` rows. Staged files are named by the number in column `owner`, final ones by its name.

        Raises RowsMissing when not all that were read are in the files.
        """
        staged = f"{staging(self.number)}/{layout.table}"
        seen = Observation()
        dated = rows.withColumn("dt", times.day(f.col(layout.time)))
        placed = dated.observe(seen, f.count(f.lit(1)).alias("rows"))
        tasks = min(self.readers, 1 + about // ROWS_PER_QUERY)
        placed.coalesce(tasks).write.partitionBy("dt", "owner").parquet(self.files.url(staged), mode="overwrite")
        written = Written(rows_in=int(seen.get["rows"]))
        for path, size in self.files.walk(staged):
            part = Part.parse(path)
            if part is not None:
                name = names.get(part.owner, unknown(part.owner))
                written.moves.append((f"{staged}/{path}", part.final(layout.table, layout.column, name, self.number)))
                written.owners.add(part.owner)
                written.bytes += size
        self._count(staged, layout.time, written)
        return written

    def _count(self, staged: str, time: str, written: Written) -> None:
        """Count the files' rows by hour, from the footers where a file has one hour only."""
        paths = [f"{staged}/{path}" for path, _ in self.files.walk(staged) if path.endswith(".parquet")]
        hours: Counter[int] = Counter()
        footers = self.files.footers(paths, time) if len(paths) <= FOOTERS else {}
        for path, footer in footers.items():
            hour = footer.only(times.HOUR)
            if hour is not None:
                hours[hour] += footer.rows
                paths.remove(path)
        if paths:
            found = self.spark.read.schema(f"{time} timestamp").parquet(*map(self.files.url, paths))
            counted = found.groupBy(times.whole(f.col(time), times.HOUR).alias("hour")).count().collect()
            hours.update({row["hour"]: row["count"] for row in counted})
        written.hours = {datetime.fromtimestamp(at * 3600, UTC): rows for at, rows in sorted(hours.items())}
        written.rows_out = hours.total()
        self._check(written)

    def write_live(self, rows: DataFrame) -> Written:
        """Write the live messages. Their files replace the last run's."""
        staged = f"{staging(self.number)}/{LIVE}"
        seen = Observation()
        observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"))
        observed.coalesce(self.readers).write.parquet(self.files.url(staged), mode="overwrite")
        written = Written(rows_in=int(seen.get["rows"]))
        parts = sorted((path, size) for path, size in self.files.walk(staged) if path.endswith(".parquet"))
        for n, (path, size) in enumerate(parts):
            written.moves.append((f"{staged}/{path}", f"{LIVE}/run-{self.number:06d}-{n:05d}.parquet"))
            written.bytes += size
        footers = self.files.footers((f"{staged}/{path}" for path, _ in parts), "id")
        written.rows_out = sum(footer.rows for footer in footers.values())
        self._check(written)
        return written

    def _check(self, written: Written) -> None:
        if written.rows_in != written.rows_out:
            raise RowsMissing(f"{written.rows_in} rows were read, {written.rows_out} are in the files")
