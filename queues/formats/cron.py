"""When a periodic job runs: cron expressions and time zones. Neither a clock nor a database is used here."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

#: The fields of an expression, and what each may hold.
FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31, L for the last"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of week", "0 to 7 or SUN to SAT, 0 and 7 are Sunday"),
)
FORMS = "a value, a range such as 1-5, a list such as 1,15, a step such as */5, or *"
#: Any moment will do to see whether an expression can be read.
SOME_DAY = datetime(2024, 1, 1)


class InvalidSchedule(ValueError):
    """A cron expression or time zone that cannot be; the text says why."""


def next_run(cron: str, timezone: str, after: datetime) -> datetime:
    """The first moment later than `after` (aware) that an expression of five fields means, in the given time zone.

    Clock changes are kept as by Debian's cron. A job at fixed hours whose time is skipped in spring runs at once
    after the change, and one whose time comes twice in autumn runs the first time only. With a * at the beginning of
    the minute or hour field the clock is followed as it goes. Raises InvalidSchedule.
    """
    if problem := cron_problem(cron) or timezone_problem(timezone):
        raise InvalidSchedule(problem)
    for moment in CronSim(cron, after.astimezone(ZoneInfo(timezone))):
        # The library forgets which of two equal times of an autumn night it began at, and may offer the one before.
        if (found := moment.astimezone(UTC)) > after:
            return found
    raise InvalidSchedule("It never comes true.")


def cron_problem(cron: str) -> str | None:
    """The problem with a cron expression, as a sentence, or None. It must have five fields and come true some day."""
    fields = cron.split()
    if len(fields) != len(FIELDS):
        names = ", ".join(name for name, _ in FIELDS)
        return f"It has {len(fields)} {'field' if len(fields) == 1 else 'fields'} and must have five: {names}."
    for place, (field, (name, allowed)) in enumerate(zip(fields, FIELDS, strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[place] = field
        if not _readable(alone):
            return f"The {name} {field!r} cannot be read. It is {allowed}: {FORMS}."
    try:
        occurs = next(CronSim(cron, SOME_DAY), None) is not None
    except CronSimError:
        occurs = False
    return None if occurs else "It never comes true: none of these months has such a day."


def _readable(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), SOME_DAY)
    except CronSimError:
        return False
    return True


def explain(cron: str) -> str:
    """A valid expression in English, such as "At 03:00 on Monday"."""
    return CronSim(cron, SOME_DAY).explain()


@cache
def timezone_names() -> frozenset[str]:
    """The time zones this system knows."""
    return frozenset(available_timezones())


def timezone_problem(name: str) -> str | None:
    """The problem with a time zone's name, as a sentence, or None."""
    if name in timezone_names():
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            return f"The time zone {name!r} cannot be read: {error}."
        return None
    problem = f"{name!r} is no time zone; one is named like Europe/Berlin or UTC."
    lower = {known.lower(): known for known in timezone_names()}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"{problem} Is {lower[found[0]]} meant?" if found else problem
