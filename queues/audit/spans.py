"""Rows of a queue's chain that stand for several messages: the id of such a row is `FIRST-LAST`.

A queue's messages are most often published, delivered and settled together, with ids that follow each other. One row
for all of them costs as much as a row for one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

#: Messages of one row, at most: a search for one looks at rows that begin so far before it.
MAX_SPAN: Final = 4096

_SPAN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def span_ids(*parts: Sequence[int]) -> list[str]:
    """The ids of rows that stand for these messages, in their order: one for those that follow each other, also from
    one part to the next."""
    texts: list[str] = []
    first = beyond = 0  # what follows each other until now
    for ids in parts:
        at = 0
        while at < len(ids):
            end = len(ids) if isinstance(ids, range) and ids.step == 1 else _end(ids, at)
            if ids[at] != beyond:
                texts += _spans(first, beyond)
                first = ids[at]
            beyond = ids[end - 1] + 1
            at = end
    texts += _spans(first, beyond)
    return texts


def parse_span(record: str) -> range | None:
    """The messages that a row of a queue's chain with this id stands for; None if it is no number."""
    if (found := _SPAN.fullmatch(record)) is not None:
        return range(int(found[1]), int(found[2]) + 1)
    return range(int(record), int(record) + 1) if _NUMBER.fullmatch(record) else None


def _spans(first: int, beyond: int) -> Iterator[str]:
    """The ids of rows that stand for the messages from the first on; only ids without a sign are joined."""
    while first < beyond:
        last = first if first < 0 else min(first + MAX_SPAN, beyond) - 1
        yield str(first) if last == first else f"{first}-{last}"
        first = last + 1


def _end(ids: Sequence[int], at: int) -> int:
    """The place after the last of the ids that follow the one in this place without a gap."""
    first, most = ids[at], min(len(ids) - at, MAX_SPAN)
    if first < 0 or most == 1 or ids[at + 1] != first + 1:
        return at + 1
    # In ids that grow, as they do most often, no other one follows behind a gap.
    count = bisect_left(range(most), True, lo=2, key=lambda n: ids[at + n] != first + n)
    if [*ids[at : at + count]] == [*range(first, first + count)]:
        return at + count
    return next(at + n for n in range(2, count) if ids[at + n] != first + n)
