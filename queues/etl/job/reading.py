"""From PostgreSQL to the columns of the output: each table as many short queries over JDBC."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queues.etl.job import schema
from queues.etl.job.bodies import with_bodies, with_content_names
from queues.etl.job.database import ROWS_PER_QUERY, SESSION_SETTINGS, Chain, JobConnection, ReadPartitions
from queues.etl.job.times import from_seconds, told_time
from queues.etl.job.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Bytes that make a payload large; rows with large payloads fetched at a time.
LARGE = 32 * 1024
FETCH_LARGE = 2

OUTCOMES = ("acknowledged", "expired", "purged", "dropped", "removed")
STATES = ("ready", "leased", "delayed", "dead", "dead")
CONTENTS = {
    1: "application/msgpack",
    2: "application/json",
    3: "application/vnd.peerbus.v1+json",
    4: "application/vnd.fivewire.celery",
}

# Times are read as seconds, because the driver makes calendar objects of times. A double is exact to the microsecond
# until 2106.
ARCHIVE = """(select id, queue_id, outcome, attempts, producer_id, consumer_id,
    date_part('epoch', published_at) as published, date_part('epoch', delivered_at) as delivered,
    date_part('epoch', finished_at) as finished, finished_at, due_at, size, key, headers::text as headers, content, job,
    xid, payload, result from queues_archivedmessage) as archive"""
# One row per range of slots acknowledged together, with the sizes of its messages.
RANGES = """(select s.first + low as id, s.queue_id, s.outcome, s.producer_id, consumer_id,
    date_part('epoch', s.published_at) as published, date_part('epoch', delivered_at) as delivered,
    date_part('epoch', s.finished_at) as finished, s.finished_at, s.content, job, s.sizes[low + 1:high + 1] as sizes,
    s.xid from queues_archivedsegment s, unnest(s.lows, s.highs, s.consumers, s.delivered, s.jobs)
        as r (low, high, consumer_id, delivered_at, job)) as ranges"""
#: Columns that are always null for messages in segments.
NEVER = ("due_at", "key", "headers", "body", "body_json", "result", "result_json")
AUDIT = """(select chain_id, seq, at, event, record_id as id, sender, recipient, encode(hash, 'hex') as hash
    from queues_audit) as audit"""
# In a dead-letter queue the reason is in a header, in the message's own queue it is in the row. Spark casts the
# header's time; a text that is not a time becomes null.
LIVE = """(select m.id as place, m.segment, coalesce(m.origin_id, m.id) as id, m.queue_id, m.state, m.attempts,
    m.producer_id, m.published_at, m.due_at,
    m.dead_at, m.headers->'dead-letter'->>'at' as moved_at,
    case when m.state not in (3, 4) then m.headers->'dead-letter'->>'queue' end as moved_from,
    case when m.state in (3, 4) then m.error else m.headers->'dead-letter'->>'error' end as dead_reason,
    octet_length(m.payload) as size, m.key, statement_timestamp() as seen_at from queues_openmessage m) as live"""
#: Above every id. Ids have 64 bits.
FIRST_ID, LAST_ID = -(2**63), 2**63 - 1
#: Messages of a segment, at most.
MAX_SEGMENT = 4096


class Reader:
    """Reads over JDBC from the server that `database` is connected to."""

    def __init__(self, spark: SparkSession, database: JobConnection) -> None:
        self.spark = spark
        self._url = database.jdbc_url
        info = database.connection.info
        settings = "; ".join(f"set {name} = '{value}'" for name, value in SESSION_SETTINGS.items())
        self._properties = {
            "user": info.user, "password": info.password or "", "driver": "org.postgresql.Driver",
            "sessionInitStatement": f"{settings}; set default_transaction_read_only = on",
        }  # fmt: skip

    def table(self, source: str, predicates: Sequence[str], fetch: int = 0) -> DataFrame:
        """The rows of a table or a named subquery that meet one of some conditions: each is one query.

        A query's rows are taken at once, so that it is over however long they take to be written; with `fetch`, so
        many at a time.
        """
        properties = {**self._properties, "fetchsize": str(fetch)}
        return self.spark.read.jdbc(self._url, source, predicates=list(predicates) or ["false"], properties=properties)

    def archive(self, predicates: Sequence[str], payloads: bool) -> DataFrame:
        """Rows of the archive. Large payloads are read separately, few at a time."""
        if not payloads:
            return self.table(ARCHIVE, predicates)
        length = "coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0)"
        others = self.table(ARCHIVE, [f"({one}) and {length} < {LARGE}" for one in predicates])
        large = self.table(ARCHIVE, [f"({one}) and {length} >= {LARGE}" for one in predicates], FETCH_LARGE)
        return others.unionAll(large)

    def append(self, frame: DataFrame, table: str) -> None:
        """Append rows to a table."""
        writable = {name: value for name, value in self._properties.items() if name != "sessionInitStatement"}
        frame.write.jdbc(self._url, table, mode="append", properties={**writable, "batchsize": "1000"})


def messages(
    reader: Reader, window: Window, partitions: ReadPartitions, queues: dict[int, str], keys: dict[int, str],
    bodies: str, fields: str,
) -> DataFrame:
    """The archive's messages of a window: its rows, and those of its segments."""
    rows = reader.archive(window.predicates(partitions.values), payloads=bodies != "none")
    named = _named(rows.withColumn("attempts", f.col("attempts").cast("int")), queues, keys)
    columns = [f.col("queue_id").alias("owner"), *(f.col(name) for name, _, _ in schema.MESSAGES)]
    extra = [f.col("data")] if fields else []
    found = with_bodies(named, bodies, fields).select(*columns, *extra)
    if partitions.segments is None:
        return found
    exploded = _messages_of(_named(reader.table(RANGES, window.predicates(partitions.segments)), queues, keys))
    if fields:
        exploded = exploded.withColumn("data", f.lit(None).cast(found.schema["data"].dataType))
    return found.unionAll(exploded.select(*columns, *extra))


def _named(rows: DataFrame, queues: dict[int, str], keys: dict[int, str]) -> DataFrame:
    """Add times, names of queues, keys and contents, and words for outcomes."""
    return with_content_names(rows, CONTENTS).withColumns({
        "outcome": _label(f.col("outcome"), OUTCOMES), "queue_name": _name(queues, "queue_id"),
        "producer": _name(keys, "producer_id"), "consumer": _name(keys, "consumer_id"),
        **{f"{name}_at": from_seconds(f.col(name)) for name in ("published", "delivered", "finished")},
    })  # fmt: skip


def _name(names: dict[int, str], column: str) -> Column:
    """The name of a number; null if it has no name."""
    # One literal map, which Spark looks up by hash. A join would cost a job of its own.
    text = json.dumps([{"key": number, "value": name} for number, name in sorted(names.items())])
    entries = f.from_json(f.lit(text), "array<struct<key bigint, value string>>")
    return f.map_from_entries(entries)[f.col(column).cast("bigint")]


def _messages_of(ranges: DataFrame) -> DataFrame:
    """The messages of ranges. This comes last, so that earlier steps run once per range."""
    types = {name: kind for name, kind, _ in schema.MESSAGES}
    kept = [name for name in ranges.columns if name not in ("id", "sizes")]
    slots = ranges.select("id", *kept, f.posexplode("sizes").alias("slot", "size"))
    return slots.withColumns({
        "id": f.col("id") + f.col("slot"), "attempts": f.lit(0),
        **{name: f.lit(None).cast(types[name]) for name in NEVER},
    })  # fmt: skip


def _label(column: Column, labels: Sequence[str]) -> Column:
    """The label of a small number; the number itself if it has no label."""
    return f.coalesce(f.element_at(f.array(*map(f.lit, labels)), column.cast("int") + 1), column.cast("string"))


def audit(reader: Reader, chains: Sequence[Chain], done: dict[str, int]) -> tuple[DataFrame, int]:
    """The rows of the audit chains from the seqs in `done` on, and how many there are."""
    names = {chain.id: chain.name for chain in chains}
    pieces = list(audit_pieces(chains, done))
    rows = reader.table(AUDIT, audit_predicates(pieces))
    named = rows.withColumn("chain_name", _name(names, "chain_id"))
    columns = [f.col(name) for name, _, _ in schema.AUDIT]
    return named.select(f.col("chain_id").alias("owner"), *columns), sum(high - low for _, low, high in pieces)


def audit_pieces(chains: Sequence[Chain], done: dict[str, int]) -> list[tuple[int, int, int]]:
    """Short parts of chains to read, as (chain, first seq, seq after the last)."""
    pieces = []
    for chain in chains:
        low = max(done.get(chain.name, 0), chain.end if chain.first is None else chain.first)
        for start in range(low, chain.end, ROWS_PER_QUERY):
            pieces.append((chain.id, start, min(chain.end, start + ROWS_PER_QUERY)))
    return pieces


def audit_predicates(pieces: Sequence[tuple[int, int, int]]) -> list[str]:
    """One condition per query. Small parts share a query."""
    found: list[str] = []
    together: list[str] = []
    rows = 0
    for chain, low, high in pieces:
        if together and rows + high - low > ROWS_PER_QUERY:
            found.append(" or ".join(together))
            together, rows = [], 0
        together.append(f"(chain_id = {chain} and seq >= {low} and seq < {high})")
        rows += high - low
    return [*found, " or ".join(together)] if together else found


def _live_between(low: int, high: int) -> str:
    """Condition for live messages with ids from `low` to `high`, and for the segments that may have them."""
    return f"place between {low} and {high} and segment between {max(low - MAX_SEGMENT, FIRST_ID)} and {high}"


def live(reader: Reader, bounds: Sequence[int], queues: dict[int, str], keys: dict[int, str]) -> DataFrame:
    """The live messages. Each part is read at its own moment; a message that moves meanwhile appears once."""
    edges = [FIRST_ID, *bounds]
    ends = [*(bound - 1 for bound in bounds), LAST_ID]
    rows = reader.table(LIVE, [_live_between(low, high) for low, high in zip(edges, ends, strict=True)])
    named = (
        rows.withColumn("dead_at", f.coalesce("dead_at", told_time("moved_at", "seen_at")))
        .withColumn("state", _label(f.col("state"), STATES))
        .withColumn("attempts", f.col("attempts").cast("int"))
        .withColumn("queue_name", _name(queues, "queue_id"))
        .withColumn("producer", _name(keys, "producer_id"))
        .withColumn("dead_queue", f.coalesce("moved_from", f.when(f.col("state") == "dead", f.col("queue_name"))))
    )
    if not bounds:  # one query sees one moment, in which nothing moves
        return named.select(*(name for name, _, _ in schema.LIVE))
    latest = named.groupBy("id").agg(f.max_by(f.struct(*(name for name, _, _ in schema.LIVE)), "place").alias("row"))
    return latest.select("row.*")
