"""Timestamps: RFC 3339 and nothing like it."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.overhop.codec.timestamps import format_timestamp, parse_timestamp

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01t00:00:00z", NEW_YEAR),
        ("2026-01-01 00:00:00+00:00", NEW_YEAR),
        ("2026-01-01T00:00:00-00:00", NEW_YEAR),
        ("2025-12-31T22:30:00-01:30", NEW_YEAR),
        ("2026-01-01T23:59:00+23:59", NEW_YEAR),
        ("2026-01-01T00:00:00.5Z", NEW_YEAR + timedelta(milliseconds=500)),
        ("2026-01-01T00:00:00.000001Z", NEW_YEAR + timedelta(microseconds=1)),
        ("2026-01-01T00:00:00.123456999Z", NEW_YEAR + timedelta(microseconds=123456)),
        ("2025-12-31T23:59:60Z", NEW_YEAR),
        ("2025-12-31T23:59:60.7Z", NEW_YEAR),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_a_timestamp_is_read_as_its_moment_in_utc(text: str, moment: datetime) -> None:
    assert parse_timestamp(text) == moment
    assert parse_timestamp(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00Z", "20260101T000000Z"),
        *("2026-W01-1T00:00:00Z", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z"),
        *("2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:61Z", "2026-01-01T00:00:00.Z"),
        *("2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+00:60"),
        *("2026-01-01T00:00:00+0000", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01"),
        *("9999-12-31T23:59:60Z", "9999-12-31T23:59:59-00:01", " 2026-01-01T00:00:00Z"),
        *("2026-01-01T00:00:00Z\n", "٢٠٢٦-01-01T00:00:00Z", "2026-01-01T00:00:00." + "1" * 60 + "Z"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an RFC 3339 timestamp|no such"):
        parse_timestamp(text)


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_a_moment_comes_back(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment


@given(st.text(max_size=70) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,12}[Z+-][0-9:]{0,5}"))
def test_any_text_is_a_timestamp_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_timestamp(text).tzinfo is UTC


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (NEW_YEAR, "2026-01-01T00:00:00+00:00"),
        (NEW_YEAR + timedelta(microseconds=120), "2026-01-01T00:00:00.000120+00:00"),
        (NEW_YEAR.astimezone(timezone(timedelta(hours=5))), "2026-01-01T00:00:00+00:00"),
    ],
)
def test_a_moment_is_written_in_utc(moment: datetime, text: str) -> None:
    assert format_timestamp(moment) == text


def test_a_time_without_an_offset_is_not_written() -> None:
    with pytest.raises(ValueError, match="without an offset"):
        format_timestamp(datetime(2026, 1, 1))
