"""Moments and how far they are away, in words."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from django.utils import timezone as zones

from queues.formats.cron import timezone_problem

UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def clock(at: datetime, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A moment by the clock of the project, as Django shows times: `TIME_ZONE`, or the zone that is active."""
    return zones.localtime(at).strftime(form)


def zone() -> str:
    """The name of the zone of `clock`."""
    return zones.get_current_timezone_name()


def duration(seconds: float) -> str:
    """A time in its largest unit, such as "4 minutes"."""
    whole = int(abs(seconds))
    for unit, size in UNITS:
        if whole >= size:
            count = whole // size
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    return "0 seconds"


def relative(moment: datetime, now: datetime) -> str:
    """The distance of a moment: "in 4 minutes", "2 hours ago", "now"."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(seconds)} ago"


def local(moment: datetime, timezone: str) -> str:
    """A moment in the local time of a zone, or in UTC if there is no such zone."""
    zone: tzinfo = UTC if timezone_problem(timezone) else ZoneInfo(timezone)
    return f"{moment.astimezone(zone):%a %Y-%m-%d %H:%M %Z}"
