"""Acknowledgements of messages that were delivered together are kept and written as runs, and none is lost by it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.api import Engine, PrefetchedQueue
from queues.engine.settle.batches import FEWEST, SettlementKind, Settlements, run_work
from queues.engine.settle.segments import OpenSegments, Ranges
from tests.queues.engine.conftest import MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults, unwritable
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 20


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine(segment_messages=2)


async def burst(engine: Engine, store: Store, name: str = "jobs", count: int = COUNT) -> tuple[PrefetchedQueue, range]:
    """Publish messages together to a queue that is asked for some: the tags with which they were taken together."""
    buffer = await engine.queue(name)
    buffer.deliver_many(time.monotonic(), count)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    buffer.interest.came(time.monotonic())
    await Producer(engine).publish(name, *[b"%d" % n for n in range(count)])
    [(tags, bodies)] = buffer.deliver_many(time.monotonic(), count)
    assert bodies == [b"%d" % n for n in range(count)]
    assert isinstance(tags, range)
    return buffer, tags


async def until_written(engine: Engine, store: Store) -> None:
    await store.until(lambda: engine.settlements.idle, "the acknowledgements")
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)


async def test_a_run_is_one_range_and_little_work(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, tags = await burst(engine, store)
    assert buffer.deliveries.ack_many(tags) == []
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (COUNT, run_work(range(COUNT)))
    await until_written(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == COUNT
    assert store.rows("select cardinality(lows) as n from queues_archivedsegment") == [{"n": 1}]
    assert engine.counts.acknowledged == COUNT


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
async def test_parts_of_a_run_and_single_messages_of_it(engine: Engine, store: Store, audited: bool) -> None:
    queue = store.queue("jobs", audited=audited)
    buffer, tags = await burst(engine, store)
    assert buffer.deliveries.ack(tags[12])  # what was delivered with it is no run any more
    assert buffer.deliveries.ack_many(tags[:9]) == []
    assert buffer.deliveries.ack_many(tags[9:]) == [tags[12]]
    await until_written(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == COUNT


async def test_a_run_that_cannot_be_written_is_halved(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("jobs")
    engine, faults = await make_engine(segment_messages=2), Faults(monkeypatch)
    buffer, tags = await burst(engine, store)
    faults.put("settle_segments", times=2)
    assert buffer.deliveries.ack_many(tags) == []
    await until_written(engine, store)
    assert faults.hits["settle_segments"] == 2
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == COUNT


async def test_a_run_whose_segment_was_unpacked_elsewhere_is_settled_by_its_rows(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, tags = await burst(engine, store)
    store.rows("select queues_unpack_segments(array(select first from queues_segment))")
    assert buffer.deliveries.ack_many(tags) == []
    await until_written(engine, store)
    assert (store.counts(queue), store.messages(queue), len(store.archived(queue))) == ((0, 0, 0, 0), [], COUNT)


async def test_a_run_of_rows_is_settled_by_its_ids(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs", retention="full")  # its messages have rows
    engine = await make_engine(segment_messages=2)
    buffer, tags = await burst(engine, store)
    assert buffer.deliveries.ack_many(tags) == []
    await until_written(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert sorted(int(bytes(row["payload"])) for row in store.archived(queue)) == list(range(COUNT))


async def push(engine: Engine, store: Store, name: str = "jobs") -> tuple[PrefetchedQueue, range]:
    """Publish jobs together to a queue with a worker: the tags with which they were pushed together."""
    buffer = await engine.queue(name)
    worker = Worker(buffer)
    worker.grant(COUNT)
    await store.until(lambda: buffer.prefetch.wanted(time.monotonic()), "a claim that finds nothing")
    await Producer(engine).publish(f"queue:{name}", *[b"%d" % n for n in range(COUNT)])
    tags = [job.tag for job in await worker.take(COUNT)]
    return buffer, range(tags[0], tags[-1] + 1)


async def test_jobs_that_are_finished_together_are_one_range(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, tags = await push(engine, store)
    assert buffer.deliveries.complete_many(tags, lambda tag: None) == []
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (COUNT, run_work(range(COUNT)))
    await until_written(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert [row["job"] for row in store.archived(queue)] == [True] * COUNT
    assert store.rows("select cardinality(lows) as n from queues_archivedsegment") == [{"n": 1}]


async def test_jobs_with_results_leave_the_others_a_range(engine: Engine, store: Store) -> None:
    with_results, without = store.queue("one"), store.queue("other")
    first, tags = await push(engine, store, "one")
    other, others = await push(engine, store, "other")
    assert first.deliveries.complete(tags[3], b"r")
    assert first.deliveries.complete_many(tags) == [tags[3]]
    assert other.deliveries.complete_many(others) == []
    await until_written(engine, store)
    assert [row["result"] and bytes(row["result"]) for row in store.archived(with_results)] == [
        b"r" if n == 3 else None for n in range(COUNT)
    ]
    assert len(store.archived(without)) == COUNT
    assert store.rows("select queue_id from queues_archivedsegment") == [{"queue_id": without}]


@pytest.mark.parametrize("together", [True, False])
async def test_each_job_that_is_given_up_is_told_once(engine: Engine, store: Store, together: bool) -> None:
    store.queue("jobs")
    buffer, tags = await push(engine, store)
    refused: list[int] = []
    if not together:  # some of them are no run
        assert buffer.deliveries.complete(tags[5], None, refused.append)
    assert buffer.deliveries.complete_many(tags, refused.append) == ([] if together else [tags[5]])
    engine.settlements.forget_history()
    assert sorted(refused) == [*tags]
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)


async def test_only_the_job_of_a_run_that_cannot_be_written_is_refused(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs", retention="metadata")
    engine = await make_engine(segment_messages=2)
    buffer, tags = await push(engine, store)
    store.rows("select queues_unpack_segments(array(select first from queues_segment))")
    refused: list[int] = []
    async with unwritable(store, "delete", b"7"):
        assert buffer.deliveries.complete_many(tags, refused.append) == []
        await until_written(engine, store)
    assert refused == [tags[7]]
    assert (store.counts(queue), len(store.archived(queue))) == ((0, 0, 0, 1), COUNT - 1)


@given(
    st.dictionaries(st.integers(0, 6).map(lambda n: 100 * n), st.integers(1, 40), max_size=4),
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 40)), max_size=6),
)
def test_ranges_have_runs_that_are_open_and_others_are_left(
    segments: dict[int, int], runs: list[tuple[int, int]]
) -> None:
    known = OpenSegments()
    for first, count in segments.items():
        known.add(first, count)
    parts = []
    for start, count in runs:
        parts.append(Settlements(SettlementKind.ACKNOWLEDGE, keep=1, runs=[(range(start, start + count), 1.0)]))
    ranges, others = known.cut_runs(parts)
    found = [first + slot for first, low, high in _slots(ranges) for slot in range(low, high + 1)]
    left = [id for one in others for ids, _ in one.runs for id in ids]
    assert len(set(found)) == len(found)
    assert sorted(found + left) == sorted(id for start, count in runs for id in range(start, start + count))
    inside = {id for first, count in segments.items() for id in range(first, first + count)}
    assert set(found) <= inside
    for one in others:  # it is not in one segment, or some of it is in another run
        [(ids, _)] = one.runs
        whole = any(first <= ids[0] and ids[-1] < first + count for first, count in segments.items())
        assert not whole or set(found) & set(ids)


def _slots(ranges: Ranges) -> list[tuple[int, int, int]]:
    return [*zip(ranges.firsts, ranges.lows, ranges.highs, strict=True)]


def test_a_spread_run_is_as_much_work_as_its_messages() -> None:
    one = Settlements(SettlementKind.ACKNOWLEDGE, runs=[(range(5, 5 + FEWEST), 2.0)])
    assert (one.count, one.work, one.ids) == (FEWEST, 1, [])
    one.spread()
    assert (one.count, one.work, one.ids, one.delivered) == (FEWEST, FEWEST, [*range(5, 5 + FEWEST)], [2.0] * FEWEST)
