"""The segments of which this node has open messages, and settlements as ranges of their slots.

A segment is one row that stores plain messages which were published together and leased to this node at once. The
message in slot n (0, 1, …) has the segment's first id + n. The publish writer adds a segment once it is committed. The
settlement writer turns acknowledgements into ranges of slots (`cut`), writes them, and takes note of it (`settled`).
Whatever else becomes of a message is written to a row of its own: before that, its segment is unpacked, and forgotten
here (`forget`). So is a segment that stays settled in part (`lingering`): what is settled of it is not yet
in the archive. A message whose segment is not known here has a row of its own, or soon has: other nodes unpack the
segments of dead ones.

A message that was stored as a segment by itself is settled as such, with others of its kind (`take_singles`): no
ranges are made of these.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, takewhile
from operator import attrgetter, gt
from typing import Any

from queues.database.sql_files import array
from queues.engine.settle.batches import KEPT, Part, Settlements, time_array

#: Unpack a partly settled segment after LINGER seconds. Bounds how late the archive shows a message, unless unpacking
#: very many segments would hold up their consumers.
LINGER, MANY = 1.0, 100
#: Seconds by which deliveries in one range may differ. The range has the time of its first message.
SAME_TIME = 0.01


def bits(low: int, high: int) -> int:
    """The slots from `low` to `high` as bits."""
    return (2 << high) - (1 << low)


@dataclass(slots=True)
class Ranges:
    """Settled slots, as columns."""

    firsts: list[int] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    consumers: list[int | None] = field(default_factory=list)
    delivered: list[float | None] = field(default_factory=list)
    jobs: list[bool] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    #: The slots settled now, as bits, by the first id of their segment.
    slots: dict[int, int] = field(default_factory=dict)

    def add(self, first: int, low: int, high: int, settlements: Settlements, delivered: float | None) -> None:
        """Settle the slots from `low` to `high`."""
        self.firsts.append(first)
        self.lows.append(low)
        self.highs.append(high)
        self.consumers.append(settlements.consumer)
        self.delivered.append(delivered)
        self.jobs.append(settlements.job)
        self.kept.append(settlements.keep > 0)
        self.slots[first] = self.slots.get(first, 0) | bits(low, high)


class OpenSegments:
    """The first ids of segments with open messages, in order; how many messages each has, and its open slots as bits;
    since when (monotonic) some are settled in part, the longest first."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._counts: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._partly: dict[int, float] = {}
        self._singles: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._firsts or self._singles)

    def add(self, first: int, count: int) -> None:
        """Add a stored segment, whose messages are all leased to this node."""
        if self._firsts and first < self._firsts[-1]:
            insort(self._firsts, first)
        else:
            self._firsts.append(first)
        self._counts[first] = count
        self._open[first] = bits(0, count - 1)

    def add_singles(self, ids: Iterable[int]) -> None:
        """Add stored segments of one message each, leased to this node."""
        self._singles.update(ids)

    def take_singles(self, settled: Part) -> tuple[Part, Part]:
        """Acknowledgements of segments of one message, and the others."""
        if not self._singles:
            return [], settled
        singles: Part = []
        others: Part = []
        for one in settled:
            found = self._singles.intersection(one.ids)
            if len(found) == len(one.ids):
                singles.append(one)
            elif not found:
                others.append(one)
            else:
                singles.append(one.only(found))
                others.append(one.part([n for n, id in enumerate(one.ids) if id not in found]))
        return singles, others

    def cut_runs(self, settled: Part) -> tuple[Ranges, Part]:
        """Runs of acknowledgements as ranges of slots, and the settlements with a run that cannot be one range."""
        ranges, others = Ranges(), list[Settlements]()
        for one in settled:
            places = [self._place(ids, ranges) for ids, _ in one.runs]
            if None in places or not _are_disjoint([ids for ids, _ in one.runs]):
                others.append(one)
                continue
            for first, (ids, delivered) in zip(places, one.runs, strict=True):
                assert first is not None
                ranges.add(first, ids[0] - first, ids[-1] - first, one, delivered)
        return ranges, others

    def _place(self, ids: range, ranges: Ranges) -> int | None:
        """The segment in which all these messages are open. None: there is no such segment, or `ranges` settles
        some."""
        first = self._segment(ids[0])
        if first is None or ids[-1] >= first + self._counts[first]:
            return None
        wanted = bits(ids[0] - first, ids[-1] - first)
        return None if wanted & ~(self._open[first] & ~ranges.slots.get(first, 0)) else first

    def cut(self, settled: Part, ranges: Ranges | None = None) -> tuple[Ranges, Part]:
        """Acknowledgements as ranges of slots, beside those in `ranges`, and those of messages that have rows of their
        own."""
        ranges, rows = Ranges() if ranges is None else ranges, list[Settlements]()
        for one in settled:
            left = self._cut(one, ranges)
            if len(left) == len(one.ids):
                rows.append(one)
            elif left:
                rows.append(one.part(left))
        return ranges, rows

    def _cut(self, one: Settlements, ranges: Ranges) -> Sequence[int]:
        """Add the ranges of one batch; returns the places of the others."""
        ids, delivered = one.ids, one.delivered
        places: Sequence[int] = range(len(ids))
        if any(map(gt, ids, islice(ids, 1, None))):
            places = sorted(places, key=ids.__getitem__)
            ids, delivered = [ids[n] for n in places], [delivered[n] for n in places]
        left: list[int] = []
        at = 0
        while at < len(ids):
            first = self._segment(ids[at])
            if first is None:
                left.append(places[at])
                at += 1
                continue
            end = self._run(ids, delivered, at, first + self._counts[first])
            open = self._open[first] & ~ranges.slots.get(first, 0)
            if bits(ids[at] - first, ids[end - 1] - first) & ~open:  # some are settled already, so slot by slot
                end = at + 1
                if not open >> (ids[at] - first) & 1:
                    left.append(places[at])
                    at = end
                    continue
            ranges.add(first, ids[at] - first, ids[end - 1] - first, one, delivered[at])
            at = end
        return left

    def _segment(self, id: int) -> int | None:
        n = bisect_right(self._firsts, id) - 1
        if n < 0:
            return None
        first = self._firsts[n]
        return first if id < first + self._counts[first] else None

    @staticmethod
    def _run(ids: Sequence[int], delivered: Sequence[float | None], at: int, beyond: int) -> int:
        """The place after the last one of a run of ids, below `beyond`, that were delivered at about the same time."""
        id, time = ids[at], delivered[at]
        end = min(len(ids), at + beyond - id)
        if ids[end - 1] - id == end - 1 - at and delivered[at:end].count(time) == end - at:  # sorted: it is all there
            return end
        end = at + 1
        while end < len(ids) and ids[end] == ids[end - 1] + 1 and ids[end] < beyond:
            when = delivered[end]
            if when != time and (when is None or time is None or abs(when - time) > SAME_TIME):
                break
            end += 1
        return end

    def parameters(self, ranges: Ranges, clock: float) -> dict[str, Any]:
        """Parameters of settle_segments.sql; `clock` added to a monotonic time makes a Unix time."""
        whole = {first for first, slots in ranges.slots.items() if slots == self._open[first]}
        return {
            "firsts": array(ranges.firsts), "lows": array(ranges.lows), "highs": array(ranges.highs),
            "consumers": array(ranges.consumers),
            "delivered": time_array(ranges.delivered, clock),
            "jobs": array(ranges.jobs), "kept": array(ranges.kept),
            "whole": array(sorted(whole)), "parts": array(sorted(ranges.slots.keys() - whole)),
        }  # fmt: skip

    def settled(self, ranges: Ranges, time: float) -> None:
        """Note that these ranges are durable since this monotonic time."""
        finished = list[int]()
        for first in ranges.slots.keys() & self._open.keys():
            self._open[first] &= ~ranges.slots[first]
            if self._open[first]:
                self._partly.setdefault(first, time)
            else:
                finished.append(first)
        self.forget(finished)

    def lingering(self, time: float) -> list[int]:
        """The segments that at this monotonic time have been partly settled for too long."""
        before = time - self._linger
        return [first for first, _ in takewhile(lambda one: one[1] <= before, self._partly.items())]

    @property
    def _linger(self) -> float:
        return LINGER * max(1.0, len(self._partly) / MANY)

    def lingering_in(self, time: float) -> float | None:
        """Seconds until there is such a segment. None: not before something is settled."""
        since = next(iter(self._partly.values()), None)
        return None if since is None else max(0.0, since + self._linger - time)

    def stay(self, first: int) -> None:
        """Keep a segment that cannot be unpacked until all its messages are settled."""
        self._partly.pop(first, None)

    def having(self, ids: Collection[int], singles: bool = True) -> set[int]:
        """The segments that have these messages; those of one message, if wanted."""
        found = self._singles.intersection(ids) if singles else set()
        if self._firsts:
            found |= {first for id in ids if (first := self._segment(id)) is not None}
        return found

    def only(self, settled: Part, firsts: Collection[int]) -> Part:
        """The settlements of messages in these segments, as columns."""
        whole = [replace(one) for one in settled]
        for one in whole:
            one.spread()
        found = [one.part([n for n, id in enumerate(one.ids) if self._segment(id) in firsts]) for one in whole]
        return [one for one in found if one.ids]

    def forget(self, firsts: Collection[int]) -> None:
        """Forget segments that left the store or are finished. Their open messages have rows."""
        self._singles.difference_update(firsts)
        for first in self._counts.keys() & firsts:
            del self._counts[first], self._open[first]
            self._partly.pop(first, None)
            del self._firsts[bisect_right(self._firsts, first) - 1]

    def clear(self) -> None:
        """The leases are lost."""
        self._firsts.clear()
        self._counts.clear()
        self._open.clear()
        self._partly.clear()
        self._singles.clear()


def _are_disjoint(runs: list[range]) -> bool:
    """Whether no message is in two of these runs: it may be acknowledged again after another delivery."""
    return all(one.stop <= other.start for one, other in pairwise(sorted(runs, key=attrgetter("start"))))


def as_range(one: Settlements) -> bool:
    """Whether acknowledgements can be written as ranges: the archive keeps only their consumer, time and whether they
    were jobs."""
    return as_single(one) and not (one.results or one.consumers)


def as_single(one: Settlements) -> bool:
    """Whether acknowledgements can be written for segments of one message: the archive keeps no payload of these."""
    return not (one.late or one.keep == KEPT["full"])
