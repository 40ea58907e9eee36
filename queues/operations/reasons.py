"""Dead letters by reason: those that differ in numbers, ids and quoted values alone are one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db import DEFAULT_DB_ALIAS, OperationalError
from psycopg.errors import QueryCanceled

from queues.formats.reasons import MAX_REASON, fingerprint
from queues.store.queries import query_within

#: Milliseconds; dead letters that are looked at, the newest, by a page that is about them and by one beside the rest.
LIMIT, MAX_LETTERS, FEW_LETTERS = 2000, 20_000, 2000
#: The factor by which the second try of a look that took too long is smaller.
NARROWER = 50
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Failures with one `reason` (a fingerprint): dead letters of one queue, or rows of another kind, the last of which
    has the `id`. `example` is one of their texts."""

    queue: int
    reason: str
    count: int
    first: datetime | None
    last: datetime | None
    example: str
    id: int = 0


def dead_reasons(
    queues: Sequence[int], letters: int, *, moved: bool = False, using: str = DEFAULT_DB_ALIAS
) -> list[ReasonGroup]:
    """The groups of the newest dead letters of some queues, at most `letters` in all; the largest group first.

    With `moved` of those in dead-letter queues. One query, or a smaller second one where the first takes longer than
    two seconds. Raises django.db.OperationalError when that does too.
    """
    if not queues:
        return []
    each = max(1, letters // len(queues))
    parameters = {"queues": list(queues), "length": MAX_REASON, "moved": moved}
    try:
        rows = query_within("dead_reasons", using, LIMIT, letters=each, **parameters)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        rows = query_within("dead_reasons", using, LIMIT, letters=max(1, each // NARROWER), **parameters)
    return grouped(
        ReasonGroup(queue, text or "", count, first or _time(first_told), last or _time(last_told), text or "")
        for queue, text, count, first, last, first_told, last_told in rows
    )


def grouped(reasons: Iterable[ReasonGroup]) -> list[ReasonGroup]:
    """Groups by queue and fingerprint out of reasons as they are, the largest first."""
    groups: dict[tuple[int, str], list[ReasonGroup]] = defaultdict(list)
    for one in reasons:
        groups[one.queue, fingerprint(one.reason)].append(one)
    joined = [
        replace(
            max(found, key=lambda one: (one.id, one.last or LONG_AGO)), reason=reason,
            count=sum(one.count for one in found),
            first=min((one.first for one in found if one.first is not None), default=None),
            last=max((one.last for one in found if one.last is not None), default=None),
        )
        for (_, reason), found in groups.items()
    ]  # fmt: skip
    return sorted(joined, key=lambda group: (-group.count, group.queue, group.reason))


def _time(told: str | None) -> datetime | None:
    """A time of a header, which might be anything."""
    try:
        time = datetime.fromisoformat(told or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
