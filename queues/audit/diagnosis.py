"""Faults of a chain: their kinds, and the kind of a row that does not follow from the row before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from queues.audit.events import AuditEvent, hash_after

#: Rows that are looked at after the first wrong one, for where it belongs.
WINDOW = 1000


class ChainRow(NamedTuple):
    """One row of a chain."""

    seq: int
    event: AuditEvent
    hash: bytes
    at: datetime


class FindingKind(StrEnum):
    """A fault of a chain."""

    ALTERED = "altered row"
    MISSING = "missing rows"
    BEGINNING = "missing beginning"
    SWAPPED = "swapped rows"
    INSERTED = "inserted row"
    DUPLICATE = "duplicate seq"
    TAIL_CUT = "tail cut off"
    HEAD = "wrong head"
    TIME = "wrong time"
    REWRITTEN = "rewritten chain"
    SIGNATURE = "anchor with a wrong signature"
    UNKNOWN_KEY = "anchor signed by an unknown key"
    ANCHOR_MISSING = "missing anchor"
    ANCHOR_REPLACED = "replaced anchor"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: the first seq it concerns, and what it is in words."""

    kind: FindingKind
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def judge(before: str, rows: Sequence[ChainRow], end: int) -> Finding:
    """Find out why `rows[0]` does not follow the hash `before`; `end` is the seq where the head says the chain ends.

    `rows` are the first wrong one and some after it, in order of seq.
    """
    row = rows[0]
    if row.seq >= end:
        return Finding(FindingKind.INSERTED, row.seq, f"row {row.seq} lies beyond the head, which ends before {end}")
    for there, other in enumerate(rows[1:], 1):
        right = hash_after(before, other.event)
        if right == other.hash.hex():
            return _misplaced(rows, there)
        # Only what happened changed places, not the hashes. An equal event further on is no proof of that.
        if right == row.hash.hex() and hash_after(rows[there - 1].hash.hex(), row.event) == other.hash.hex():
            return _swapped(row, other)
    return _altered(before, rows)


def _misplaced(rows: Sequence[ChainRow], there: int) -> Finding:
    """The row at `there` belongs here: rows were inserted before it, or swapped."""
    row, other = rows[0], rows[there]
    # A row that changed places with `other` follows from the one that is now before `other`; a new one follows nothing.
    before = rows[there - 1] if there > 1 else other
    if hash_after(before.hash.hex(), row.event) == row.hash.hex():
        return _swapped(row, other)
    where = f"row {row.seq} was" if there == 1 else f"rows {row.seq} to {other.seq - 1} were"
    return Finding(FindingKind.INSERTED, row.seq, f"{where} put in before the row that belongs here")


def _swapped(row: ChainRow, other: ChainRow) -> Finding:
    return Finding(FindingKind.SWAPPED, row.seq, f"rows {row.seq} and {other.seq} have changed places")


def _altered(before: str, rows: Sequence[ChainRow]) -> Finding:
    row = rows[0]
    right = hash_after(before, row.event)
    if len(rows) > 1 and hash_after(right, rows[1].event) == rows[1].hash.hex():
        return Finding(FindingKind.ALTERED, row.seq, f"the hash of row {row.seq} was altered; the event is as it was")
    return Finding(
        FindingKind.ALTERED,
        row.seq,
        f"row {row.seq} does not follow from the row before: its event, or more, was altered",
    )
