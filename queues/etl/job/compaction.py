"""Merging small files: of days that are over, those of one directory into one.

It is a change like a run's (`ledger.py`). For the moment between the removal of the small files and the move of the
large one a reader misses rows; it never sees one twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from queues.etl.errors import RowsMissing
from queues.etl.job import schema
from queues.etl.job.layout import AUDIT, LIVE, MESSAGES, compacted, day_of
from queues.etl.job.ledger import Ledger, MovePlan, Record, staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Approximate size of a merged file in bytes.
FILE_BYTES = 256 * 2**20
#: Limit of directories merged in one run. The next run continues.
DIRECTORIES = 200
#: Recent days whose directories may still get files.
KEPT_DAYS = 7


class Unmergeable(Exception):
    """The files' columns have different types, because the decoding of bodies was changed."""


def add_small(small: Mapping[str, list[str]], files: list[str], today: str, least: int) -> dict[str, list[str]]:
    """Add new files to those that may be merged. Old days with few files are dropped."""
    found = {directory: list(names) for directory, names in small.items()}
    for path in files:
        directory, _, name = path.rpartition("/")
        if directory != LIVE:
            found.setdefault(directory, []).append(name)
    over = sorted({day_of(f"{directory}/") for directory in found if day_of(f"{directory}/") < today})
    old = set(over[:-KEPT_DAYS])
    return {
        directory: names
        for directory, names in sorted(found.items())
        if len(names) >= least or day_of(f"{directory}/") not in old
    }


def due(small: Mapping[str, list[str]], today: str, least: int) -> dict[str, list[str]]:
    """Directories of past days with at least `least` small files."""
    found = {directory: names for directory, names in small.items() if day_of(f"{directory}/") < today}
    return dict([item for item in found.items() if len(item[1]) >= least][:DIRECTORIES])


def compact(spark: SparkSession, ledger: Ledger, least: int) -> dict[str, int]:
    """Merge the small files of days before that of the last window's end; returns the numbers of directories, files and
    rows. Raises RowsMissing, OutputUnusable."""
    state = ledger.newest.state
    number = ledger.next_number
    moves: list[tuple[str, str]] = []
    removals: list[str] = []
    small = dict(state.small)
    rows = directories = 0
    for n, (directory, names) in enumerate(due(state.small, state.at[:10], least).items()):
        # The operator may have deleted files.
        names = sorted(set(names) & set(ledger.files.names(directory)))
        staged = f"{staging(number)}/{n:06d}"
        small.pop(directory)
        try:
            rows += _merge(spark, ledger, directory, names, staged) if names else 0
        except Unmergeable:
            continue
        directories += 1
        parts = [path for path, _ in ledger.files.walk(staged) if path.endswith(".parquet")]
        merged = [compacted(directory, number, part) for part in range(len(parts))]
        moves += [(f"{staged}/{path}", target) for path, target in zip(sorted(parts), merged, strict=True)]
        removals += [f"{directory}/{name}" for name in names]
    figures = {"directories": directories, "files": len(removals), "rows": rows}
    if len(small) < len(state.small):
        files = [target for _, target in moves]
        record = Record(
            number=number, kind="compaction", state=replace(state, small=small), files=files, figures=figures
        )
        ledger.commit(MovePlan(record=record, moves=moves, removals=removals))
    return figures


def _merge(spark: SparkSession, ledger: Ledger, directory: str, names: list[str], staged: str) -> int:
    """Write the rows of several files into fewer; returns the number of rows. Raises Unmergeable, RowsMissing."""
    files = ledger.files
    paths = [files.url(f"{directory}/{name}") for name in names]
    size = sum(length for path, length in files.walk(directory) if path in names)
    rows = _read(spark, directory, paths)
    rows.coalesce(1 + size // FILE_BYTES).write.parquet(files.url(staged), mode="overwrite")
    before, after = rows.count(), spark.read.parquet(files.url(staged)).count()
    if before != after:
        raise RowsMissing(f"{directory}: {before} rows in small files, {after} in the merged one")
    return after


def _read(spark: SparkSession, directory: str, paths: list[str]) -> DataFrame:
    """Files by the schema they were written with; later versions have more columns. Raises Unmergeable."""
    assert directory.startswith((MESSAGES, AUDIT))
    # No base path: a directory's own values are not columns of its files.
    reader = spark.read.option("mergeSchema", True).option("basePath", paths[0].rpartition("/")[0])
    try:
        found = reader.parquet(*paths)
    except (PySparkException, Py4JJavaError) as error:
        raise Unmergeable(directory) from error
    columns = schema.MESSAGES if directory.startswith(MESSAGES) else schema.AUDIT
    known = [name for name, _, _ in columns]
    return found.select(*(name for name in known if name in found.columns), *(set(found.columns) - set(known)))
