"""Points in time as Overhop writes them: RFC 3339 (docs/protocols/overhop.md, "Shapes")."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

#: Characters of the longest timestamp; the rest could only be digits of a second.
MAX_TEXT: Final = 64

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


def parse_timestamp(text: str) -> datetime:
    """Return the moment in UTC; raise ValueError unless `text` is an RFC 3339 timestamp with its offset.

    Digits after the microseconds are dropped. A leap second (:60) is the first moment of the next minute.
    """
    match = _RFC3339.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(f"not an RFC 3339 timestamp with an offset: {text[:MAX_TEXT]!r}")
    *numbers, fraction, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = map(int, numbers)
    leap = second == 60
    offset = _offset(sign, hours, minutes) if sign else UTC
    microsecond = int(fraction[:6].ljust(6, "0")) if fraction else 0
    try:
        moment = datetime(year, month, day, hour, minute, second - leap, 0 if leap else microsecond, offset)
        return moment.astimezone(UTC) + timedelta(seconds=leap)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no such time: {text!r} ({error})") from None


def _offset(sign: str, hours: str, minutes: str) -> timezone:
    if hours > "23" or minutes > "59":
        raise ValueError(f"no such offset: {sign}{hours}:{minutes}")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if sign == "-" else offset)


def format_timestamp(moment: datetime) -> str:
    """Return `moment` in UTC with `+00:00`, and with six digits of a second unless they are all zero.

    Raises ValueError for a time without an offset.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a time without an offset is not a point in time: {moment.isoformat()}")
    return moment.astimezone(UTC).isoformat()
