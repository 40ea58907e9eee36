"""Runs in audited queues: deliveries and acknowledgements of messages that go together are ranges from the consumer to
the chain, and the chain tells of each message what happened to it, and who had it."""

from __future__ import annotations

from time import monotonic

import psycopg
import pytest

from queues.engine.api import Engine, PrefetchedQueue
from queues.engine.settle import segments as segments_module
from queues.engine.settle.batches import run_work
from tests.queues.engine.conftest import MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults
from tests.queues.engine.settle.test_audited_queues import Row, add_key, rows, verified
from tests.queues.engine.settle.test_audited_segments import WHOLE, lives, refusing
from tests.queues.engine.settle.test_segments import until_settled
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 30


@pytest.fixture
async def engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(segments_module, "LINGER", 3600.0)
    return await make_engine(segment_messages=2)


async def prefetched(engine: Engine, count: int = COUNT) -> PrefetchedQueue:
    """The queue "jobs" with so many messages in memory, which were published together."""
    buffer = await engine.queue("jobs")
    buffer.deliver_many(monotonic(), count)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    buffer.interest.came(monotonic())
    await Producer(engine).publish("jobs", *[b"%d" % n for n in range(count)])
    assert len(buffer.ready) == count
    return buffer


def take(buffer: PrefetchedQueue, count: int, key: int | None = None) -> range:
    """Deliver messages together; their tags."""
    [(tags, bodies)] = buffer.deliver_many(monotonic(), count, key)
    assert len(bodies) == count
    assert isinstance(tags, range)
    return tags


def shown(store: Store) -> list[tuple[str, str, str, str]]:
    """The rows of the chain, ids counted from that of the first message, without what is said of the queue itself."""
    found: list[Row] = [row for row in rows(store, "jobs", together=True) if not row[1].startswith("queue:")]
    first = min(int(part) for row in found for part in row[1].split("-"))
    return [
        (event, "-".join(str(int(part) - first) for part in id.split("-")), sender, to)
        for event, id, sender, to in found
    ]


async def test_what_is_delivered_and_acknowledged_together_is_a_range_all_the_way(
    engine: Engine, store: Store
) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    tags = take(buffer, 20, key)
    lane = buffer.audited
    assert lane is not None
    [noted] = lane._gathered
    assert ([(len(ids), one) for ids, one in noted.deliveries], noted.ids) == ([(20, key)], [])
    assert buffer.deliveries.ack_many(tags, key) == []
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (20, run_work(range(20)))
    assert len(lane._recipients) == 0
    rest = take(buffer, 10, key)
    assert buffer.deliveries.ack_many(rest, key) == []
    await until_settled(engine, store)
    assert shown(store) == [
        ("publish", "0-29", "", "jobs"), ("deliver", "0-29", "jobs", "clerk"), ("settle", "0-29", "clerk", ""),
    ]  # fmt: skip
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)
    assert {row["consumer_id"] for row in store.archived(queue)} == {key}
    assert store.counts(queue) == (0, 0, 0, 0)
    await verified("jobs")


async def test_deliveries_to_several_consumers_are_recorded_in_their_order(engine: Engine, store: Store) -> None:
    store.queue("jobs", audited=True)
    one, two = add_key(store, "one"), add_key(store, "two")
    buffer = await prefetched(engine)
    tags = [(take(buffer, count, key), key) for count, key in ((8, one), (9, two), (1, one), (12, one))]
    for some, key in reversed(tags):
        assert buffer.deliveries.ack_many(some, key) == []
    await until_settled(engine, store)
    assert shown(store)[1:4] == [
        ("deliver", "0-7", "jobs", "one"), ("deliver", "8-16", "jobs", "two"), ("deliver", "17-29", "jobs", "one"),
    ]  # fmt: skip
    settled = {row[1]: row[2] for row in rows(store, "jobs") if row[0] == "settle"}
    assert [settled[id] for id in sorted(settled, key=int)] == ["one"] * 8 + ["two"] * 9 + ["one"] * 13
    await verified("jobs")


@pytest.mark.parametrize("how", ["give_back", "hand_back", "bury"])
async def test_a_message_that_leaves_from_the_middle_of_a_run_is_recorded_by_itself(
    engine: Engine, store: Store, how: str
) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    tags = take(buffer, COUNT, key)
    if how == "give_back":
        buffer.deliveries.give_back(tags[12], delay=3600.0)
    elif how == "bury":
        buffer.deliveries.bury(tags[12], "it does not fit")  # so it was never sent
    else:
        buffer.deliveries.hand_back(tags[12])
    assert buffer.deliveries.ack_many(tags[:10], key) == []
    assert buffer.deliveries.ack_many(tags[10:], key) == [tags[12]]
    await until_settled(engine, store)
    event, sender = ("dead-letter", "jobs") if how == "bury" else ("return", "clerk")
    own = {"give_back": ["deliver", "return"], "hand_back": ["deliver", "return"], "bury": ["dead-letter"]}[how]
    found = lives(store)
    assert found.pop(12) == ["publish", *own]
    assert found == [WHOLE] * (COUNT - 1)
    assert [row[2] for row in rows(store, "jobs") if row[0] == event] == [sender]
    assert {row[2] for row in rows(store, "jobs") if row[0] == "settle"} == {"clerk"}
    assert len(store.archived(queue)) == COUNT - 1
    await verified("jobs")


async def test_what_a_consumer_without_a_key_acknowledges_is_settled_by_those_who_had_it(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs", audited=True)
    one, two = add_key(store, "one"), add_key(store, "two")
    buffer = await prefetched(engine)
    for some in [take(buffer, count, key) for count, key in ((10, one), (10, None), (10, two))]:
        assert buffer.deliveries.ack_many(some) == []
    await until_settled(engine, store)
    settled = {row[1]: row[2] for row in rows(store, "jobs") if row[0] == "settle"}
    assert [settled[id] for id in sorted(settled, key=int)] == ["one"] * 10 + [""] * 10 + ["two"] * 10
    assert [row["consumer_id"] for row in store.archived(queue)] == [one] * 10 + [None] * 10 + [two] * 10


async def test_runs_beside_single_messages_are_all_settled(engine: Engine, store: Store) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    one, two = take(buffer, 15, key), take(buffer, 15)
    assert buffer.deliveries.ack(two[14])  # it breaks its run up
    assert buffer.deliveries.ack_many(one) == []
    assert buffer.deliveries.ack_many(two[:14]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * COUNT
    assert [row["consumer_id"] for row in store.archived(queue)] == [key] * 15 + [None] * 15


async def test_a_run_whose_segment_was_unpacked_elsewhere_is_recorded_as_far_as_it_is_there(
    engine: Engine, store: Store
) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    tags = take(buffer, COUNT, key)
    store.rows("select queues_unpack_segments(array(select first from queues_segment))")
    [gone] = store.rows("select min(id) + 3 as id from queues_message")
    await store.change("delete from queues_message where id = %s returning id", gone["id"])
    assert buffer.deliveries.ack_many(tags, key) == []
    await until_settled(engine, store)
    found = lives(store)
    assert found.pop(3) == ["publish", "deliver"]
    assert found == [WHOLE] * (COUNT - 1)
    assert shown(store)[2:] == [("settle", "0-2", "clerk", ""), ("settle", "4-29", "clerk", "")]
    assert store.messages(queue) == []
    await verified("jobs")


@pytest.mark.parametrize("where", ["settle_segments", "audit_append"])
async def test_a_run_that_cannot_be_written_at_first_is_recorded_once(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    engine, faults = await make_engine(segment_messages=2), Faults(monkeypatch)
    buffer = await prefetched(engine)
    faults.put(where, times=2)
    assert buffer.deliveries.ack_many(take(buffer, COUNT, key), key) == []
    await until_settled(engine, store)
    assert faults.hits[where] == 2
    assert lives(store) == [WHOLE] * COUNT
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)
    assert len(store.archived(queue)) == COUNT
    await verified("jobs")


async def test_a_run_of_messages_with_rows_of_their_own_is_recorded(make_engine: MakeEngine, store: Store) -> None:
    queue, key = store.queue("jobs", audited=True, retention="full"), add_key(store, "clerk")
    engine = await make_engine(segment_messages=2)
    buffer = await prefetched(engine)
    assert buffer.deliveries.ack_many(take(buffer, COUNT, key), key) == []
    await until_settled(engine, store)
    assert [(event, id) for event, id, *_ in shown(store)] == [(event, "0-29") for event in WHOLE]
    assert sorted(int(bytes(row["payload"])) for row in store.archived(queue)) == list(range(COUNT))


async def test_runs_wait_for_a_chain_that_takes_no_rows(engine: Engine, store: Store) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    tags = take(buffer, COUNT, key)
    async with refusing(store, "new.event = 'settle'"):
        assert buffer.deliveries.ack_many(tags[:20], key) == []
        await store.until(lambda: engine.settlements._audited[queue].waits, "it has been tried")
        assert buffer.deliveries.ack_many(tags[20:], key) == []
        assert store.counts(queue) == (0, COUNT, 0, 0)
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * COUNT
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)


async def test_runs_that_wait_when_audit_is_switched_off_are_written_without_a_record(
    engine: Engine, store: Store
) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    lane = buffer.audited
    assert lane is not None
    with store.connection.transaction():
        store.rows("select from queues_audithead for update")
        [first] = take(buffer, 1)
        await until(lambda: lane.writing, "the record of the first delivery is being written")
        tags = take(buffer, COUNT - 2, key)
        [last] = take(buffer, 1, key)
        for some in ([first], tags, [last]):
            assert buffer.deliveries.ack_many(some, key) == []
        async with await psycopg.AsyncConnection.connect(store.conninfo, autocommit=True) as other:
            await other.execute(b"update queues_queue set audited = false where id = %s", (queue,))
        await until(lambda: buffer.audited is None, "the news")
    await until_settled(engine, store)
    assert lives(store) == [["publish", "deliver"], *[["publish"]] * (COUNT - 1)]
    assert store.messages(queue) == []
    assert len(store.archived(queue)) == COUNT
    assert {row["consumer_id"] for row in store.archived(queue)} == {key}
    assert engine.counts.reconnects == 0
    await verified("jobs")


async def test_runs_that_wait_when_the_leases_are_lost_are_settled_late(engine: Engine, store: Store) -> None:
    queue, key = store.queue("jobs", audited=True), add_key(store, "clerk")
    buffer = await prefetched(engine)
    one, two = take(buffer, 15, key), take(buffer, 15)
    assert buffer.deliveries.ack(two[3])
    assert buffer.deliveries.ack_many(one, key) == []
    assert buffer.deliveries.ack_many(two[4:]) == []
    assert buffer.deliveries.ack_many(two[:3]) == []
    for connection in engine.connections.values():  # before the settlement writer has its turn
        store.rows("select pg_terminate_backend(%s)", connection.info.backend_pid)
    await store.until(lambda: engine.counts.reconnects and engine.available, "the engine's return")
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * COUNT
    assert store.messages(queue) == []
    settled = {row[1]: row[2] for row in rows(store, "jobs") if row[0] == "settle"}
    assert [settled[id] for id in sorted(settled, key=int)] == ["clerk"] * 15 + [""] * 15
    assert (engine.settlements.unsettled, engine.settlements.unwritten) == (0, 0)
    await verified("jobs")


async def test_messages_that_no_consumer_has_seen_are_settled_by_the_next_one(engine: Engine, store: Store) -> None:
    store.queue("jobs", audited=True)
    buffer = await engine.queue("jobs")
    workers = [Worker(buffer), Worker(buffer)]
    for worker, name in zip(workers, ("one", "two"), strict=True):
        worker.key = add_key(store, name)
    workers[0].grant(20)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    await Producer(engine).publish("jobs", *[b"%d" % n for n in range(20)])
    pushes = await workers[0].take(20)
    buffer.deliveries.undeliver(pushes[12:])
    workers[1].grant(20)
    pushes[12:] = await workers[1].take(8)
    assert buffer.deliveries.complete_many([push.tag for push in pushes]) == []
    await until_settled(engine, store)
    settled = {row[1]: row[2] for row in rows(store, "jobs") if row[0] == "settle"}
    assert [settled[str(push.id)] for push in pushes] == ["one"] * 12 + ["two"] * 8
    assert buffer.audited is not None
    assert len(buffer.audited._recipients) == 0
