"""Which transactions a window has: each of them in one window, whatever commits when."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.etl.job.window import TransactionSnapshot, Window, partition_bounds


@st.composite
def snapshots(draw: st.DrawFn, after: TransactionSnapshot | None = None) -> TransactionSnapshot:
    """A snapshot; `after` another one it is later: what has ended stays ended."""
    xmax = draw(st.integers(after.xmax if after else 1, (after.xmax if after else 1) + 12))
    fresh = range(after.xmax if after else 0, xmax)
    open_before = after.running if after else frozenset()
    return TransactionSnapshot(xmax, frozenset(xid for xid in [*fresh, *sorted(open_before)] if draw(st.booleans())))


def meets(predicate: str, xid: int, finished_at: str = "") -> bool:
    """Whether a row meets a condition, which is read as Python would read it."""
    text = re.sub(r"in \((\d+)\)", r"in (\1,)", predicate).replace("timestamptz ", "")
    return bool(eval(text, {}, {"xid": xid, "finished_at": finished_at}))


def test_a_snapshot_is_read_as_postgresql_writes_it() -> None:
    snapshot = TransactionSnapshot.parse("10:20:10,14,15")
    assert [xid for xid in range(8, 23) if snapshot.sees(xid)] == [8, 9, 11, 12, 13, 16, 17, 18, 19]
    assert TransactionSnapshot.parse("7:7:") == TransactionSnapshot(7)


@pytest.mark.parametrize("text", ["", "1:2", "5:4:", "1:5:7", "3:5:2", "a:b:c"])
def test_an_invalid_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        TransactionSnapshot.parse(text)


@given(st.data())
def test_every_transaction_is_in_exactly_one_of_successive_windows(data: st.DataObject) -> None:
    shots = [data.draw(snapshots())]
    for _ in range(3):
        shots.append(data.draw(snapshots(shots[-1])))
    windows = [Window(before, after) for before, after in zip([None, *shots], shots, strict=False)]
    for xid in range(shots[-1].xmax + 2):
        found = [window.has(xid) for window in windows]
        assert sum(found) == shots[-1].sees(xid)
        if any(found):
            assert shots[found.index(True)].sees(xid)


@given(st.data())
def test_the_queries_of_a_window_read_each_of_its_rows_once_and_no_other(data: st.DataObject) -> None:
    before = data.draw(st.none() | snapshots())
    window = Window(before, data.draw(snapshots(before)))
    predicates = window.predicates(data.draw(st.lists(st.integers(0, 30))))
    for xid in range(window.after.xmax + 2):
        assert sum(meets(predicate, xid) for predicate in predicates) == window.has(xid)


@given(st.data())
def test_with_a_time_rows_from_then_on_are_read_again(data: st.DataObject) -> None:
    before = data.draw(st.none() | snapshots())
    window = Window(before, data.draw(snapshots(before)), since="2026-11-20")
    predicates = window.predicates(data.draw(st.lists(st.integers(0, 30))))
    for xid in range(window.after.xmax + 2):
        for day in ("2026-11-19", "2026-11-20", "2026-11-21"):
            again = window.after.sees(xid) and day >= "2026-11-20"
            wanted = again or (before is not None and window.has(xid))
            assert sum(meets(predicate, xid, day) for predicate in predicates) == wanted


def test_only_what_is_new_is_looked_at_when_an_old_transaction_has_ended() -> None:
    window = Window(TransactionSnapshot(1000, frozenset({3, 900})), TransactionSnapshot(1100, frozenset({900})))
    assert window.predicates([]) == ["xid >= 1000 and xid < 1100", "xid in (3)"]


def test_pieces_are_cut_by_rows_and_by_bytes_and_never_inside_a_transaction() -> None:
    even = [(xid, 1.0, 10.0) for xid in range(100)]
    assert partition_bounds(even, rows=25, size=1e9) == [25, 50, 75]
    assert partition_bounds(even, rows=1e9, size=200) == [20, 40, 60, 80]
    assert partition_bounds([(7, 1.0, 1.0)] * 100, rows=10, size=1e9) == []
