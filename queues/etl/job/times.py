"""Times as numbers. Spark's calendar is slow for millions of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

#: In microseconds, as Spark and Parquet count.
HOUR = 3600 * 10**6
DAY = 24 * HOUR


def whole(time: Column, unit: int) -> Column:
    """Whole units of `unit` microseconds from 1970 to a time (UTC), rounded down."""
    micros = f.unix_micros(time)
    return ((micros - f.pmod(micros, f.lit(unit))) / unit).cast("bigint")


def day(time: Column) -> Column:
    """The day (UTC) of a time."""
    return f.date_from_unix_date(whole(time, DAY).cast("int"))


def hour(time: Column) -> Column:
    """The beginning of a time's hour (UTC)."""
    return f.timestamp_micros(whole(time, HOUR) * HOUR)


def from_seconds(seconds: Column) -> Column:
    """The time that is `seconds` (a double) after 1970, to the microsecond."""
    return f.timestamp_micros(f.floor(seconds * 1e6 + 0.5))


#: A time as PostgreSQL writes it into JSON.
TOLD = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?[+-][0-9]{2}:[0-9]{2}$"


def told_time(text: str, until: str) -> Column:
    """The time in a column of header texts; null for other texts and for times after `until`."""
    time = f.when(f.col(text).rlike(TOLD), f.col(text)).try_cast("timestamp")
    return f.when(time <= f.col(until), time)
