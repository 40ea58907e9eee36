"""How acknowledgements are parted by how their messages are stored."""

from __future__ import annotations

import copy
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from queues.engine.settle.batches import Part, SettlementKind, Settlements
from queues.engine.settle.partition import partition, segments_to_unpack
from queues.engine.settle.segments import OpenSegments

#: Ids of 100 messages: those from 0, 20, 40 and 60 on are segments of so many, those from 80 on are segments of one.
COUNTS = {0: 10, 20: 20, 40: 1, 60: 15}
SINGLES = range(80, 90)
KEEPS = (0, 1, 2)


def known() -> OpenSegments:
    segments = OpenSegments()
    for first, count in COUNTS.items():
        segments.add(first, count)
    segments.add_singles(SINGLES)
    return segments


def in_segment(id: int) -> bool:
    return any(first <= id < first + count for first, count in COUNTS.items())


def runs() -> st.SearchStrategy[range]:
    ends = st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True).map(sorted)
    return ends.map(lambda ends: range(*ends))


@st.composite
def settlements(draw: st.DrawFn) -> Settlements:
    """Acknowledgements of one consumer, from queues of one retention, as columns and as runs."""
    ids = draw(st.lists(st.integers(0, 99), max_size=30))
    return Settlements(
        SettlementKind.ACKNOWLEDGE, consumer=draw(st.integers(1, 3)), keep=draw(st.sampled_from(KEEPS)), ids=ids,
        delivered=[draw(st.sampled_from((1.0, 5.0))) for _ in ids],
        runs=[(run, 1.0) for run in draw(st.lists(runs(), max_size=3))],
    )  # fmt: skip


def state(part: Part) -> list[object]:
    return [(one.ids[:], one.runs[:], one.delivered[:], one.consumers[:]) for one in part]


@given(st.lists(settlements(), max_size=5))
def test_each_message_is_settled_as_it_is_stored(part: Part) -> None:
    given, segments = state(part), known()
    before = copy.deepcopy(vars(segments))
    found = partition(part, segments)
    assert (state(part), vars(segments)) == (given, before), "nothing that is given is changed"
    slots = {first + n for first, bits in found.ranges.slots.items() for n in range(bits.bit_length()) if bits >> n & 1}
    singles = [id for one in found.singles for id in one.ids]
    rows = [id for one in found.rows for id in one.ids]
    acknowledged = {id for one in part for id in one.all_ids}
    assert slots == {id for id in acknowledged if in_segment(id)}
    assert sorted(singles) == sorted(id for id in acknowledged if id in SINGLES)
    assert {id for id in rows if id not in slots} == {
        id for id in acknowledged if not in_segment(id) and id not in SINGLES
    }
    assert max(Counter(rows).values(), default=1) == 1
    assert sum(high - low + 1 for low, high in zip(found.ranges.lows, found.ranges.highs, strict=True)) == len(slots)
    assert all(not one.runs for one in (*found.singles, *found.rows))


@given(st.lists(settlements(), min_size=1, max_size=5))
def test_without_segments_all_have_rows_as_they_were_acknowledged_last(part: Part) -> None:
    found = partition(part, OpenSegments())
    last = {id: one.consumer for one in part for id in one.all_ids}
    assert (found.singles, found.ranges.firsts) == ([], [])
    assert {id: one.consumer for one in found.rows for id in one.ids} == last


@given(settlements())
def test_segments_are_unpacked_for_what_is_no_range(one: Settlements) -> None:
    segments, full = known(), one.keep == 2
    concerned = {first for first, count in COUNTS.items() if any(first <= id < first + count for id in one.all_ids)}
    singles = set(one.all_ids) & set(SINGLES)
    assert segments_to_unpack([one], segments) == (concerned | singles if full else set())
    returned = Settlements(SettlementKind.RETURN, ids=[21, 80])
    assert segments_to_unpack([returned], segments) == {20, 80}
