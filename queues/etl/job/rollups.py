"""Figures by hour and queue, for charts: computed from the Parquet files, hour by whole hour.

So computing an hour again gives what it gave before, and rows that come late change it as if they had been in time.
Percentiles are approximate by rank, to one in `ACCURACY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queues.etl.job import schema, times
from queues.etl.job.layout import LIVE, MESSAGES
from queues.etl.job.reading import OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from queues.etl.job.files import Files

ACCURACY = 10_000
PERCENTILES = (50, 95, 99)
#: Names in a list of the most active.
TOP = 10
UNKNOWN = "unknown"
#: Characters of a queue's name, at most.
MAX_QUEUE = 255


def compute(spark: SparkSession, files: Files, run: int, hours: Iterable[str]) -> DataFrame:
    """The rollups of these hours (ISO 8601), with the columns of the drafts table."""
    moments = [datetime.fromisoformat(hour) for hour in sorted(set(hours))]
    finished = _finished(spark, files, moments)
    rows = _counts(finished).join(_reasons(_dead(spark, files, finished, moments)), ["hour", "queue"], "full")
    rows = rows.fillna(0, [*OUTCOMES, "dead_letters", "attempts", "bytes"])
    rows = rows.fillna("[]", ["dead_reasons", "producers", "consumers"])
    return rows.withColumn("run", f.lit(run).cast("bigint"))


def dead_letter_hours(spark: SparkSession, files: Files, first: datetime) -> set[str]:
    """Hours, as ISO 8601, in which live dead letters died, from that of `first` on."""
    if not files.names(LIVE):
        return set()
    rows = _live(spark, files)
    hour = times.whole(f.col("dead_at"), times.HOUR).alias("hour")
    hours = rows.where(f.col("dead_at") >= f.lit(first)).select(hour).distinct().collect()
    return {datetime.fromtimestamp(row["hour"] * 3600, UTC).isoformat() for row in hours}


def _live(spark: SparkSession, files: Files) -> DataFrame:
    return spark.read.schema(schema.ddl(schema.LIVE)).parquet(files.url(LIVE))


def _nothing(spark: SparkSession, columns: Sequence[schema.Column]) -> DataFrame:
    """An empty frame, made without a Python process."""
    return spark.range(0).select(*(f.lit(None).cast(kind).alias(name) for name, kind, _ in columns))


def _finished(spark: SparkSession, files: Files, hours: Sequence[datetime]) -> DataFrame:
    """Messages finished in these hours."""
    days = sorted({f"{hour:%Y-%m-%d}" for hour in hours})
    names = set(files.names(MESSAGES))
    paths = [files.url(f"{MESSAGES}/dt={day}") for day in days if f"dt={day}" in names]
    reader = spark.read.schema(schema.ddl(schema.MESSAGES)).option("basePath", files.url(MESSAGES))
    rows = reader.parquet(*paths) if paths else _nothing(spark, schema.MESSAGES)
    rows = rows.withColumns({"hour": times.hour(f.col("finished_at")), "queue": _queue("queue_name", "queue_id")})
    return rows.where(f.col("hour").isin(list(hours)))


def _queue(name: str, number: str) -> Column:
    return f.coalesce(f.col(name), f.concat(f.lit("_deleted-"), f.col(number).cast("string")))


def _dead(spark: SparkSession, files: Files, finished: DataFrame, hours: Sequence[datetime]) -> DataFrame:
    """Dead letters of these hours: the live ones, and finished ones with kept headers."""
    header = f.from_json("headers", "`dead-letter` struct<queue string, error string, at string>")["dead-letter"]
    told = finished.select("id", "finished_at", header.alias("told")).select("id", "finished_at", "told.*")
    at = times.told_time("at", "finished_at")
    past = told.select("id", "queue", f.col("error").alias("reason"), at.alias("at")).where("at is not null")
    rows = _live(spark, files) if files.names(LIVE) else _nothing(spark, schema.LIVE)
    now = rows.where("dead_at is not null").select(
        "id", f.col("dead_queue").alias("queue"), f.col("dead_reason").alias("reason"), f.col("dead_at").alias("at")
    )
    everything = now.unionByName(past).where(f.length("queue") <= MAX_QUEUE).dropDuplicates(["id", "at"])
    everything = everything.withColumn("hour", times.hour(f.col("at")))
    return everything.where(f.col("hour").isin(list(hours)))


def _counts(finished: DataFrame) -> DataFrame:
    acknowledged = f.col("outcome") == "acknowledged"
    published = f.col("published_at").cast("double")
    waits = {
        "deliver": f.when(acknowledged, f.col("delivered_at").cast("double") - published),
        "settle": f.when(acknowledged, f.col("finished_at").cast("double") - published),
    }
    counts = [f.count_if(f.col("outcome") == outcome).alias(outcome) for outcome in OUTCOMES]
    sums = [f.sum("attempts").alias("attempts"), f.sum("size").alias("bytes")]
    most = [_top("producer").alias("producers"), _top("consumer").alias("consumers")]
    shares = [percent / 100 for percent in PERCENTILES]
    found = [f.percentile_approx(wait, shares, ACCURACY).alias(name) for name, wait in waits.items()]
    rows = finished.groupBy("hour", "queue").agg(*counts, *sums, *most, *found)
    for name in waits:
        for n, percent in enumerate(PERCENTILES):
            rows = rows.withColumn(f"{name}_p{percent}", f.col(name)[n])
    return rows.drop(*waits)


def _reasons(dead: DataFrame) -> DataFrame:
    """The number of dead letters, and their most frequent reasons."""
    named = dead.withColumn("reason", f.coalesce("reason", f.lit(UNKNOWN)))
    return named.groupBy("hour", "queue").agg(f.count("*").alias("dead_letters"), _top("reason").alias("dead_reasons"))


def _top(column: str) -> Column:
    """A column's most frequent values as a JSON list. Exact unless the column has very many values."""
    most = f.call_function("approx_top_k", f.col(column), f.lit(TOP + 1))  # it counts null as a value
    named = f.slice(f.filter(most, lambda one: one["item"].isNotNull()), 1, TOP)
    return f.to_json(f.transform(named, lambda one: f.struct(one["item"].alias("name"), one["count"].alias("count"))))
