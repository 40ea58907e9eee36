"""Points in time as Overhop writes them: RFC 3339 (docs/protocols/overhop.md, "Shapes")."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

#: Characters of the longest timestamp; the rest could only be digits of a second.
MAX_TEXT: Final = 64

_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ](?:[01][0-9]|2[0-3]):[0-9]{2}:)([0-9]{2})(?:\.[0-9]+)?"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)


def parse_timestamp(text: str) -> datetime:
    """Return the moment in UTC; raise ValueError unless `text` is an RFC 3339 timestamp with its offset.

    Digits after the microseconds are dropped. A leap second (:60) is the first moment of the next minute.
    """
    match = _RFC3339.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(f"not an RFC 3339 timestamp with an offset: {text[:MAX_TEXT]!r}")
    leap = match[2] == "60"
    plain = f"{match[1]}59{match[3]}" if leap else text
    try:
        return datetime.fromisoformat(plain.upper()).astimezone(UTC) + timedelta(seconds=leap)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no such time: {text!r} ({error})") from None


def format_timestamp(moment: datetime) -> str:
    """Return `moment` in UTC with `+00:00`, and with six digits of a second unless they are all zero.

    Raises ValueError for a time without an offset.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a time without an offset is not a point in time: {moment.isoformat()}")
    return moment.astimezone(UTC).isoformat()
