"""Estimates a run's size before Spark starts, because small and large runs start differently."""

from __future__ import annotations

from queues.etl.job.config import Config
from queues.etl.job.database import DatabaseSnapshot, JobConnection
from queues.etl.job.window import TransactionSnapshot, Window

#: Rows up to which a run is small. Such a run mostly starts Java and Spark, and plans.
SMALL = 100_000
#: Limit of queries in a small run. Large payloads need more queries for the same rows.
QUERIES = 16


def is_small(database: JobConnection, end: DatabaseSnapshot, config: Config) -> bool:
    """Whether a run up to this snapshot has few rows to read, as far as the database can tell. Raises DatabaseAway."""
    after = TransactionSnapshot.parse(end.snapshot)
    before = TransactionSnapshot.parse(config.previous) if config.previous else None
    if before is not None and before.xmax > after.xmax:
        before = None  # of another database: the run reads everything
    partitions = database.archive_partitions(Window(before, after, config.since), config.bodies != "none")
    rows = partitions.rows
    if config.verify != "none":
        rows += sum(chain.end - chain.first for chain in database.chains() if chain.first is not None)
    queries = len(partitions.values) + len(partitions.segments or ())
    # The count of the last fold of tallies. The message tables may be locked for long.
    rows += int(database.rows("select coalesce(sum(ready + leased + delayed + dead), 0) from queues_queuecount")[0][0])
    return rows <= SMALL and queries <= QUERIES
