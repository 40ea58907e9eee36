"""When periodic jobs run, clock changes included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.formats.cron import InvalidSchedule, cron_problem, explain, next_run, timezone_problem

BERLIN = ZoneInfo("Europe/Berlin")


def runs(cron: str, start: str, end: str, timezone: str = "Europe/Berlin") -> list[str]:
    """All runs after one local time and up to another, as local times with their offsets."""
    zone = ZoneInfo(timezone)
    after, last = (datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC) for text in (start, end))
    found = []
    while (after := next_run(cron, timezone, after)) <= last:
        found.append(f"{after.astimezone(zone):%d %H:%M %z}")
    return found


# Europe/Berlin, 2026: on 29 March 02:00 becomes 03:00, on 25 October 03:00 becomes 02:00.


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
        ("30 3 * * *", ["28 03:30 +0100", "29 03:30 +0200", "30 03:30 +0200"]),
        ("30 1 * * *", ["28 01:30 +0100", "29 01:30 +0100", "30 01:30 +0200"]),
    ],
)
def test_a_nightly_job_whose_hour_is_skipped_in_spring_runs_after_the_change(cron: str, expected: list[str]) -> None:
    assert runs(cron, "2026-03-28 00:00", "2026-03-30 12:00") == expected


def test_several_skipped_times_of_one_job_are_one_run() -> None:
    assert runs("0,20,40 2 * * *", "2026-03-29 00:00", "2026-03-29 23:00") == ["29 03:00 +0200"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        ("30 3 * * *", ["24 03:30 +0200", "25 03:30 +0100", "26 03:30 +0100"]),
        ("0,30 2 25 10 *", ["25 02:00 +0200", "25 02:30 +0200"]),
    ],
)
def test_a_nightly_job_whose_hour_comes_twice_in_autumn_runs_once(cron: str, expected: list[str]) -> None:
    assert runs(cron, "2026-10-24 00:00", "2026-10-26 12:00") == expected


def test_an_hourly_job_runs_every_hour_that_passes_through_both_changes() -> None:
    spring = runs("0 * * * *", "2026-03-29 00:30", "2026-03-29 04:30")
    assert spring == ["29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]
    autumn = runs("0 * * * *", "2026-10-25 00:30", "2026-10-25 03:30")
    assert autumn == ["25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]


def test_a_nightly_job_planned_in_the_repeated_hour_has_run_already() -> None:
    second_time = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert next_run("30 2 * * *", "Europe/Berlin", second_time) == datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN)


@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
def test_a_run_is_later_than_the_one_before_it_to_the_microsecond(microsecond: int) -> None:
    at = datetime(2026, 5, 1, 12, 0, 0, microsecond, tzinfo=UTC)
    assert next_run("* * * * *", "UTC", at) == datetime(2026, 5, 1, 12, 1, tzinfo=UTC)
    assert next_run("* * * * *", "UTC", at - timedelta(seconds=1)) == datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def test_a_schedule_means_the_clock_of_its_time_zone() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert next_run("0 9 * * *", "Asia/Tokyo", at) == datetime(2026, 1, 2, tzinfo=UTC)
    assert next_run("0 9 * * *", "America/New_York", at) == datetime(2026, 1, 1, 14, tzinfo=UTC)


@given(
    st.sampled_from(["*/15 * * * *", "30 2 * * *", "0 0-5 * * *", "0 1-3/2 * * SUN", "59 1,2,3 * 3,10 *"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Africa/Casablanca"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1)),
)
def test_runs_always_go_forward(cron: str, timezone: str, start: datetime) -> None:
    moments = [start.replace(tzinfo=UTC)]
    for _ in range(4):
        moments.append(next_run(cron, timezone, moments[-1]))
    assert all(earlier < later for earlier, later in pairwise(moments))


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("", "It has 0 fields and must have five: minute, hour, day of month, month, day of week."),
        ("* * * *", "It has 4 fields"),
        ("0 * * * * *", "It has 6 fields"),
        ("hourly", "It has 1 field "),
        ("60 * * * *", "The minute '60' cannot be read. It is 0 to 59"),
        ("* 24 * * *", "The hour '24'"),
        ("* * 0 * *", "The day of month '0'"),
        ("* * * JUNE *", "The month 'JUNE' cannot be read. It is 1 to 12 or JAN to DEC"),
        ("* * * * 8", "The day of week '8'"),
        ("*/0 * * * *", "The minute '*/0'"),
        ("5-1 * * * *", "The minute '5-1'"),
        ("0 0 30 2 *", "never comes true"),
        ("0 0 31 2,4,6 *", "never comes true"),
    ],
)
def test_an_invalid_schedule_is_refused_with_the_reason(cron: str, reason: str) -> None:
    assert reason in (cron_problem(cron) or "")
    with pytest.raises(InvalidSchedule):
        next_run(cron, "UTC", datetime(2026, 1, 1, tzinfo=UTC))


@given(st.lists(st.text("0123456789*/,-#LWSUNMOJAFEB²\u0663", max_size=6), min_size=5, max_size=5).map(" ".join))
def test_any_text_is_a_schedule_that_runs_or_one_that_is_explained(cron: str) -> None:
    if cron_problem(cron) is None:
        after = datetime(2026, 1, 1, tzinfo=UTC)
        assert next_run(cron, "Europe/Berlin", after) > after
        assert explain(cron)


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "*/5 9-17 * * MON-FRI", "0 0 L * *", "0 0 * * 5L", "0 12 * * 1#2"])
def test_rare_schedules_are_known(cron: str) -> None:
    assert cron_problem(cron) is None


def test_a_schedule_is_told_in_words() -> None:
    assert explain("0 3 * * MON-FRI") == "At 03:00 on Monday through Friday"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "Is Europe/Berlin meant?"), ("europe/berlin", "Is Europe/Berlin meant?"),
        ("", "is no time zone"), ("../etc/passwd", "is no time zone"), ("Europe", "is no time zone"),
        ("a\0b", "is no time zone"),
    ],
)  # fmt: skip
def test_an_unknown_time_zone_is_refused_with_a_similar_one(name: str, hint: str) -> None:
    assert hint in (timezone_problem(name) or "")
    with pytest.raises(InvalidSchedule, match="time zone"):
        next_run("* * * * *", name, datetime(2026, 1, 1, tzinfo=UTC))
