"""Settlements of one transaction by how their messages are stored. Nothing is written, and nothing given is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queues.engine.settle.batches import Part, SettlementKind, each_once
from queues.engine.settle.segments import OpenSegments, Ranges, as_range, as_single


@dataclass(frozen=True, slots=True)
class Partition:
    """Acknowledgements of segments of one message, of slots of other segments, and of messages with rows."""

    singles: Part
    ranges: Ranges
    rows: Part


def partition(settled: Part, segments: OpenSegments) -> Partition:
    """Acknowledgements, each message once, as acknowledged last. A message in no known segment has a row, or is
    gone."""
    ranges, others = segments.cut_runs(settled) if segments else (Ranges(), settled)
    columns = [one.as_columns() if one in others else replace(one, runs=[]) for one in settled]
    once = [one for one in each_once(columns) if one.ids]
    if not segments:
        return Partition([], ranges, once)
    singles, left = segments.take_singles(once)
    ranges, rows = segments.cut(left, ranges)
    return Partition(singles, ranges, rows)


def segments_to_unpack(part: Part, segments: OpenSegments) -> set[int]:
    """The segments whose messages need rows of their own first: their settlements are no ranges of slots."""
    firsts: set[int] = set()
    for one in part if segments else ():
        acknowledged = one.kind is SettlementKind.ACKNOWLEDGE
        if one.kind is not SettlementKind.DELIVER and not (acknowledged and as_range(one)):
            firsts |= segments.having(one.all_ids, singles=not (acknowledged and as_single(one)))
    return firsts
