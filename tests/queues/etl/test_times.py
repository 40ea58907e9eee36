"""Times as numbers: what Spark's own calendar and PostgreSQL say of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from queues.etl.job import times
from tests.queues.etl.conftest import Etl

LAST = timedelta(microseconds=1)
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
MOMENTS = [
    MIDNIGHT, MIDNIGHT - LAST, MIDNIGHT + timedelta(hours=5) - LAST, datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1969, 12, 31, tzinfo=UTC),
    datetime(2105, 12, 31, 22, 59, 59, 999_999, UTC),
]  # fmt: skip


def test_days_and_hours_are_those_of_the_calendar(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(moment,) for moment in MOMENTS], "at timestamp")
    at = f.col("at")
    found = rows.select(times.day(at), f.unix_micros(times.hour(at)), times.whole(at, times.HOUR)).collect()
    hours = [moment.replace(minute=0, second=0, microsecond=0).timestamp() for moment in MOMENTS]
    assert [tuple(row) for row in found] == [
        (date(moment.year, moment.month, moment.day), int(hour) * 10**6, int(hour) // 3600)
        for moment, hour in zip(MOMENTS, hours, strict=True)
    ]


def test_seconds_of_postgresql_are_times_to_the_microsecond(etl: Etl, spark: SparkSession) -> None:
    moments = [moment for first in MOMENTS for moment in (first + n * 104_729 * LAST for n in range(300))]
    found = etl.sql("select date_part('epoch', at) from unnest(%s::timestamptz[]) as t (at)", moments)
    rows = spark.createDataFrame([(n, seconds) for n, (seconds,) in enumerate(found)], "n int, seconds double")
    micros = rows.orderBy("n").select(f.unix_micros(times.from_seconds(f.col("seconds")))).collect()
    assert [row[0] for row in micros] == [(one - datetime(1970, 1, 1, tzinfo=UTC)) // LAST for one in moments]
