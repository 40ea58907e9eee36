"""About how much a run is to read, before Spark is started: a small run is started otherwise than a large one."""

from __future__ import annotations

from queues.etl.job.config import Config
from queues.etl.job.database import DatabaseSnapshot, JobConnection
from queues.etl.job.window import TransactionSnapshot, Window

#: Rows up to which a run is small: with fewer its time is that of starting Java and Spark, and of planning.
SMALL = 100_000
#: Queries that read them, at most: large payloads make more of the same rows.
QUERIES = 16


def is_small(database: JobConnection, end: DatabaseSnapshot, config: Config) -> bool:
    """Whether a run up to this snapshot has few rows to read, as far as the database can tell. Raises DatabaseAway."""
    after = TransactionSnapshot.parse(end.snapshot)
    before = TransactionSnapshot.parse(config.previous) if config.previous else None
    if before is not None and before.xmax > after.xmax:
        before = None  # another database's: everything is read
    partitions = database.archive_partitions(Window(before, after, config.since), config.bodies != "none")
    rows = partitions.rows
    if config.verify != "none":
        rows += sum(chain.end - chain.first for chain in database.chains() if chain.first is not None)
    queries = len(partitions.values) + len(partitions.segments or ())
    # As it was when tallies were last folded: the messages' own tables may be locked for long.
    rows += int(database.rows("select coalesce(sum(ready + leased + delayed + dead), 0) from queues_queuecount")[0][0])
    return rows <= SMALL and queries <= QUERIES
