"""Tables that take turns: what is delivered at once is only inserted, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from queues.database.sql_files import ALL
from queues.engine.api import Engine, PrefetchedQueue
from queues.engine.node import SLOTS, LocalNode
from queues.engine.settle.batches import SettlementKind, Settlements, settle_parameters
from queues.engine.settle.segments import OpenSegments, as_single
from queues.engine.statements import statement
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import unwritable
from tests.tables import LOCK_WAITS
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds of a turn where a test waits for one, and of one that does not end within a test.
TURN, EVER = 0.2, 600.0
SLOT_TABLES = ("queues_segment", "queues_segmentsettlement", "queues_queuetally")


# Of the node.


def test_the_slot_that_is_emptied_is_the_next_and_the_one_before_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    node = LocalNode(turn=10.0)
    seen = []
    for second in range(0, 40, 10):
        monkeypatch.setattr("time.time", lambda at=second: 1_000_000.0 + at)
        seen.append((node.slot, node.slot_to_empty))
    slots = [slot for slot, _ in seen]
    assert sorted(slots[:SLOTS]) == [1, 2, 3]
    assert slots[SLOTS] == slots[0]
    assert [emptied for _, emptied in seen[:-1]] == slots[1:]


@pytest.mark.parametrize(("more", "single"), [
    ({}, True), ({"results": [b"1"]}, True), ({"consumers": [7]}, True), ({"late": True}, False), ({"keep": 2}, False),
], ids=str)  # fmt: skip
def test_a_late_settlement_or_one_that_keeps_the_payload_needs_a_row(more: dict[str, Any], single: bool) -> None:
    assert as_single(Settlements(SettlementKind.ACKNOWLEDGE, **more)) is single


def test_settlements_of_single_messages_are_told_from_others() -> None:
    known = OpenSegments()
    assert not known
    known.add_singles([1, 2, 5])
    assert known
    mixed, none, all_ = (Settlements(SettlementKind.ACKNOWLEDGE, keep=keep) for keep in range(3))
    mixed.add_many([1, 3, 5], [0.1, 0.3, 0.5])
    none.add_many([4], [0.4])
    all_.add_many([2], [0.2])
    singles, others = known.take_singles([mixed, none, all_])
    assert [(one.ids, one.delivered) for one in singles] == [([1, 5], [0.1, 0.5]), ([2], [0.2])]
    assert [(one.ids, one.delivered) for one in others] == [([3], [0.3]), ([4], [0.4])]
    assert known.having([1, 2, 3]) == {1, 2}
    assert known.having([1, 2, 3], singles=False) == set()
    known.forget({1, 2})
    assert known.having([1, 2, 5]) == {5}
    known.clear()
    assert not known


# In the store.


async def taken(engine: Engine, *bodies: bytes) -> tuple[PrefetchedQueue, list[int]]:
    """Publish messages one by one to a queue with a consumer, and take them: the queue and their tags."""
    buffer = await engine.queue("jobs")
    consumer, tags = Consumer(buffer), list[int]()
    for body in bodies:
        coming = asyncio.ensure_future(consumer.next())
        await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "an empty claim")
        await Producer(engine).publish("jobs", body)
        delivery = await coming
        assert delivery is not None
        assert delivery[1] == body
        tags.append(delivery[0])
    return buffer, tags


def in_slots(store: Store) -> int:
    """Rows in tables that take turns."""
    return sum(
        int(store.rows(f"select count(*) as n from {table} where slot > 0")[0]["n"]) for table in SLOT_TABLES
    )


def ids(store: Store, table: str) -> list[int]:
    return [row["id"] for row in store.rows(f"select first as id from {table} where slot > 0 order by first")]


async def until_settled(engine: Engine, store: Store) -> None:
    await store.until(lambda: engine.settlements.idle, "the settlement")


@contextmanager
def another_session(store: Store) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(store.conninfo, row_factory=tuple_row) as connection:
        yield connection


async def test_of_messages_that_were_delivered_at_once_nothing_is_left_to_vacuum(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer, tags = await taken(engine, b"1", b"2", b"3")
    assert store.rows("select from queues_message") == []
    assert store.counts(queue) == (0, 3, 0, 0)
    assert {row["state"] for row in store.messages(queue)} == {1}
    assert buffer.deliveries.ack_many(tags, 5) == []
    await until_settled(engine, store)
    assert store.messages(queue) == []
    assert store.counts(queue) == (0, 0, 0, 0)
    assert [(row["consumer_id"], row["size"], row["outcome"]) for row in store.archived(queue)] == [(5, 1, 0)] * 3
    assert all(row["published_at"] <= row["delivered_at"] <= row["finished_at"] for row in store.archived(queue))
    assert store.rows("select from queues_queuetally where slot = 0") == []
    assert in_slots(store) > 0, "its turn has not ended"
    engine.maintenance.node.turn = TURN
    await store.until(lambda: in_slots(store) == 0, "the truncation")
    assert store.counts(queue) == (0, 0, 0, 0)
    [counted] = store.rows("select published, settled, completed from queues_queuecount where queue_id = %s", queue)
    assert counted == {"published": 3, "settled": 3, "completed": 3}


async def test_a_message_that_its_consumer_keeps_for_longer_than_a_turn_is_settled_once(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=TURN)
    buffer, tags = await taken(engine, b"1", b"2", b"3")
    assert buffer.deliveries.ack(tags[1])
    await store.until(lambda: len(store.rows("select from queues_message")) == 2, "rows for those that are open")
    await store.until(lambda: in_slots(store) == 0, "the truncation")
    assert store.counts(queue) == (0, 2, 0, 0)
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"1", b"3"]
    assert buffer.deliveries.ack_many([tags[0], tags[2]]) == []
    await until_settled(engine, store)
    assert store.messages(queue) == []
    assert len(store.archived(queue)) == 3
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_of_very_many_open_messages_some_get_rows_at_a_time(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    await taken(engine, b"1", b"2", b"3", b"4")
    slot = engine.maintenance.node.slot
    for rows, unpacked in ((2, 2), (4, 2), (4, 0)):
        parameters = {"slot": slot, "limit": 100, "messages": 2} | ALL
        with another_session(store) as other:
            assert other.execute(statement("unpack_slot"), parameters).fetchone() == (unpacked,)
        assert len(store.rows("select from queues_message where queue_id = %s", queue)) == rows


async def test_an_open_segment_keeps_its_place_in_the_queue_when_its_turn_ends(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.settle.segments.LINGER", EVER)
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=2, turn=EVER)
    buffer, _ = await taken(engine, b"0")
    first = asyncio.ensure_future(Consumer(buffer).next())
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    await Producer(engine).publish("jobs", b"1", b"2", b"3")
    delivery = await first
    assert delivery is not None
    assert buffer.deliveries.ack(delivery[0])
    await until_settled(engine, store)
    places = [(row["id"], bytes(row["payload"])) for row in store.messages(queue)]
    assert [body for _, body in places] == [b"0", b"2", b"3"]
    engine.maintenance.node.turn = TURN
    await store.until(lambda: in_slots(store) == 0, "the truncation")
    assert [(row["id"], bytes(row["payload"])) for row in store.messages(queue)] == places
    assert len(store.archived(queue)) == 1
    assert store.counts(queue) == (0, 3, 0, 0)


async def test_a_transaction_that_reads_for_long_holds_up_no_one_and_counts_stay_cheap(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=TURN)
    with another_session(store) as reader:
        reader.execute("select from queues_openmessage, queues_queuetally limit 1")
        buffer, tags = await taken(engine, b"1", b"2")
        assert buffer.deliveries.ack_many(tags) == []
        await store.until(lambda: store.rows("select from queues_queuetally") == [], "the fold, without a truncation")
        assert in_slots(store) > 0
        buffer, tags = await taken(engine, b"3")
        assert buffer.deliveries.ack_many(tags) == []
        await until_settled(engine, store)
        assert store.counts(queue) == (0, 0, 0, 0)
        reader.rollback()
    await store.until(lambda: in_slots(store) == 0, "the truncation")


async def test_a_pinned_snapshot_keeps_no_table_from_its_truncation(make_engine: MakeEngine, store: Store) -> None:
    store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=TURN)
    with another_session(store) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from queues_queue")
        buffer, tags = await taken(engine, b"1", b"2")
        assert buffer.deliveries.ack_many(tags) == []
        await store.until(lambda: in_slots(store) == 0 and engine.settlements.idle, "the truncation")


async def test_turns_are_short_while_tables_are_large(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.LARGE", 1 << 20)
    monkeypatch.setattr("queues.engine.cluster.periodic.SHORT_TURN", TURN)
    store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    node = engine.maintenance.node
    buffer, tags = await taken(engine, bytes(1 << 20), bytes(1 << 20))
    await until(lambda: node.turn == TURN, "short turns")
    await store.until(lambda: in_slots(store) == 0, "the truncation")
    await until(lambda: node.turn == EVER, "turns of the usual length")
    assert buffer.deliveries.ack_many(tags) == []
    await until_settled(engine, store)


async def test_a_message_that_cannot_be_moved_keeps_no_other_from_it(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer, tags = await taken(engine, b"1", b"poison", b"3")
    async with unwritable(store, "insert"):
        engine.maintenance.node.turn = TURN
        await store.until(lambda: len(store.rows("select from queues_message")) == 2, "the others")
        await store.until(lambda: store.rows("select from queues_queuetally where slot > 0") == [], "the fold")
        assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"1", b"poison", b"3"]
        assert engine.health.isolated["segment whose turn is over"] == 1
    assert buffer.deliveries.ack_many(tags) == []
    await store.until(lambda: in_slots(store) == 0, "the truncation")
    assert len(store.archived(queue)) == 3


@pytest.mark.parametrize("end", ["returned", "buried", "purged"])
async def test_a_message_that_is_not_acknowledged_gets_a_row(
    make_engine: MakeEngine, store: Store, end: str
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer, tags = await taken(engine, b"1", b"2")
    if end == "returned":
        buffer.deliveries.give_back(tags[0], delay=3600.0, error="no")
    elif end == "buried":
        buffer.deliveries.bury(tags[0], "no")
    else:
        engine.settlements.purge([store.messages(queue)[0]["id"]], "an operator")
        buffer.unacked.release(tags[0])
    await until_settled(engine, store)
    assert store.counts(queue) == {
        "returned": (0, 1, 1, 0), "buried": (0, 1, 0, 1), "purged": (0, 1, 0, 0)
    }[end]  # fmt: skip
    assert buffer.deliveries.ack(tags[1])
    await until_settled(engine, store)
    assert [row["outcome"] for row in store.archived(queue)] == [2, 0] if end == "purged" else [0]


async def test_the_result_of_a_job_is_archived(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer = await engine.queue("jobs")
    worker = Worker(buffer)
    worker.grant(1)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    await Producer(engine).publish("jobs", b"1")
    [push] = await worker.take(1)
    assert buffer.deliveries.complete(push.tag, b"done")
    await until_settled(engine, store)
    [row] = store.archived(queue)
    assert (bytes(row["result"]), row["job"]) == (b"done", True)
    assert store.rows("select from queues_message") == []
    assert ids(store, "queues_segmentsettlement") == [row["id"]]


async def test_messages_of_a_dead_node_come_again_in_order_and_no_others(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer, tags = await taken(engine, b"1", b"2", b"3")
    assert buffer.deliveries.ack(tags[1])
    await until_settled(engine, store)
    [row] = store.rows(
        "insert into queues_node (name, host, pid, first_message_id) values ('gone', 'elsewhere', 0, 1) returning id"
    )
    store.rows("update queues_segment set node_id = %s returning 1", row["id"])  # they were that node's all along
    engine.settlements.segments.clear()
    other = await make_engine()
    await store.until(lambda: store.counts(queue) == (2, 0, 0, 0), "the end of the node")
    assert await Consumer(await other.queue("jobs")).bodies(2) == [b"1", b"3"]


async def test_without_segments_each_message_has_a_row(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=0)
    buffer, tags = await taken(engine, b"1", b"2")
    assert len(store.rows("select from queues_message")) == 2
    assert in_slots(store) == 0
    assert buffer.deliveries.ack_many(tags) == []
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_topics_and_many_queues_in_one_commit_are_delivered_and_settled(
    make_engine: MakeEngine, store: Store
) -> None:
    queues = {name: store.queue(name) for name in ("a", "b", "c")}
    for name in queues:
        route = "insert into queues_route (source, target) values ('topic:t', %s) returning 1"
        await store.change(route, f"queue:{name}")
    engine = await make_engine(segment_messages=32, turn=EVER)
    consumers = {name: Consumer(await engine.queue(name)) for name in queues}
    coming = [asyncio.ensure_future(consumer.next()) for name, consumer in consumers.items() if name != "c"]
    served = [consumers[name].buffer for name in "ab"]
    await until(lambda: not any(one.prefetch.may_refill or one.backlog.claiming for one in served), "empty claims")
    producer = Producer(engine)
    await asyncio.gather(producer.publish("topic:t", b"1", b"2"), producer.publish("a", b"3"))
    got = [await one for one in coming]
    assert [delivery and delivery[1] for delivery in got] == [b"1", b"1"]
    assert [bytes(row["payload"]) for row in store.messages(queues["c"])] == [b"1", b"2"]
    assert [row["state"] for row in store.messages(queues["c"])] == [0, 0]
    for name, delivery in zip("ab", got, strict=True):
        assert delivery is not None
        assert consumers[name].buffer.deliveries.ack(delivery[0])
    assert await consumers["a"].bodies(2) == [b"2", b"3"]
    assert await consumers["b"].bodies(1) == [b"2"]
    assert await consumers["c"].bodies(2) == [b"1", b"2"]
    await until_settled(engine, store)
    assert {name: store.counts(queue) for name, queue in queues.items()} == dict.fromkeys(queues, (0, 0, 0, 0))
    assert {name: len(store.archived(queue)) for name, queue in queues.items()} == {"a": 3, "b": 2, "c": 2}


async def test_a_queue_that_keeps_whole_messages_loses_none_beside_one_that_does_not(
    make_engine: MakeEngine, store: Store
) -> None:
    queues = {"plain": store.queue("plain"), "whole": store.queue("whole", retention="full")}
    for name in queues:
        route = "insert into queues_route (source, target) values ('topic:t', %s) returning 1"
        await store.change(route, f"queue:{name}")
    engine = await make_engine(segment_messages=2, turn=EVER)
    consumers = [Consumer(await engine.queue(name)) for name in queues]
    coming = [asyncio.ensure_future(consumer.next()) for consumer in consumers]
    served = [consumer.buffer for consumer in consumers]
    await until(lambda: not any(one.prefetch.may_refill or one.backlog.claiming for one in served), "empty claims")
    await Producer(engine).publish("topic:t", b"1", b"2", b"3")
    for consumer, first in zip(consumers, coming, strict=True):
        delivery = await first
        assert delivery is not None
        assert consumer.buffer.deliveries.ack(delivery[0])
        assert await consumer.bodies(2) == [b"2", b"3"]
    await until_settled(engine, store)
    assert {name: store.counts(queue) for name, queue in queues.items()} == dict.fromkeys(queues, (0, 0, 0, 0))
    kept = {name: [row["payload"] for row in store.archived(queue)] for name, queue in queues.items()}
    assert kept == {"plain": [None] * 3, "whole": [b"1", b"2", b"3"]}


# Between two transactions.


async def test_a_message_that_is_being_settled_is_not_given_a_row(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    await taken(engine, b"1")
    [id] = ids(store, "queues_segment")
    with another_session(store) as settling:
        one = Settlements(SettlementKind.ACKNOWLEDGE, keep=1)
        one.add(id, 0.0)
        found = settling.execute(statement("settle_single"), settle_parameters([one], 0.0) | {"slot": 1}).fetchall()
        assert found == [(id,)]
        unpacking = asyncio.ensure_future(store.change("select queues_unpack_segments(%s) as found", [id]))
        await _waits(store)
        settling.commit()
    assert await unpacking == [{"found": []}]
    assert store.messages(queue) == []
    engine.settlements.segments.clear()


async def test_a_message_that_is_given_a_row_meanwhile_is_settled_by_that(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    buffer, tags = await taken(engine, b"1", b"2")
    with another_session(store) as unpacking:
        unpacking.execute("select queues_unpack_segments(%s)", [ids(store, "queues_segment")[:1]])
        assert buffer.deliveries.ack_many(tags) == []
        await until(lambda: _waiting(unpacking), "the settlement that waits")
        unpacking.commit()
    await until_settled(engine, store)
    assert store.messages(queue) == []
    assert len(store.archived(queue)) == 2
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_a_lost_answer_to_a_settlement_settles_nothing_twice(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=32, turn=EVER)
    node = engine.node
    buffer, tags = await taken(engine, b"1", b"2")
    [first, _] = ids(store, "queues_segment")
    with another_session(store) as locking:  # the settlement waits, and is committed without the engine
        locking.execute("select from queues_segment where first = %s for update", [first])
        assert buffer.deliveries.ack_many(tags) == []
        await until(lambda: _waiting(locking), "the settlement that waits")
        store.rows("select pg_terminate_backend(%s)", engine.connections["fetcher"].info.backend_pid)
        locking.commit()
    await store.until(lambda: engine.node != node and engine.available and engine.settlements.idle, "the new node")
    await store.until(lambda: store.messages(queue) == [], "the settlement")
    assert len(store.archived(queue)) == 2
    assert store.counts(queue) == (0, 0, 0, 0)


@pytest.fixture
def settled_slot(store: Store) -> int:
    """A slot with a segment of which every message is settled."""
    store.rows(f"insert into queues_segment {VALUES} returning 1", 4096, store.queue("jobs"))
    store.rows(f"insert into {SETTLED} returning 1", 4096)
    return 1


VALUES = "(slot, first, queue_id, node_id, count, bodies) values (1, %s, %s, 7, 1, array['x'::bytea])"
SETTLED = "queues_segmentsettlement (slot, first, low, high, kept) values (1, %s, 0, 0, false)"


async def test_a_segment_that_is_stored_while_its_slot_is_about_to_be_emptied_is_kept(
    store: Store, settled_slot: int
) -> None:
    with another_session(store) as late:  # a node whose clock is wrong
        late.execute(f"insert into queues_segment {VALUES}", [8192, store.queue("other")])
        rotation = asyncio.ensure_future(store.change("select queues_rotate_segments(%s) as emptied", settled_slot))
        await until(lambda: rotation.done() or _waiting(late), "the lock on the slot")
        late.commit()
    assert await rotation == [{"emptied": False}]
    assert ids(store, "queues_segment") == [4096, 8192]


async def test_open_segments_in_place_of_as_many_settled_ones_with_the_same_sum_of_ids_are_kept(
    store: Store, settled_slot: int
) -> None:
    queue = store.rows("select id from queues_queue")[0]["id"]
    store.rows(f"insert into queues_segment {VALUES} returning 1", 4098, queue)
    store.rows(f"insert into {SETTLED} returning 1", 4098)
    with another_session(store) as late:
        late.execute("delete from queues_segment")
        for first in (4095, 4099):
            late.execute(f"insert into queues_segment {VALUES}", [first, queue])
        rotation = asyncio.ensure_future(store.change("select queues_rotate_segments(%s) as emptied", settled_slot))
        await until(lambda: rotation.done() or _waiting(late), "the lock on the slot")
        late.commit()
    assert await rotation == [{"emptied": False}]
    assert ids(store, "queues_segment") == [4095, 4099]


async def test_a_slot_whose_check_took_long_is_emptied_when_it_is_not_used_and_no_use_is_waited_for(
    store: Store, settled_slot: int
) -> None:
    empty = f"select queues_truncate(array['queues_segment_{settled_slot}'], now() - interval '1 h')"
    with another_session(store) as rotation, another_session(store) as reader:
        rotation.autocommit = True
        rotation.execute("set statement_timeout = '20s'")
        reader.execute("select count(*) from queues_segment")
        assert rotation.execute(empty).fetchone() == (False,)
        reader.rollback()
        assert rotation.execute(empty).fetchone() == (True,)
    assert ids(store, "queues_segment") == []


async def _waits(store: Store) -> None:
    with another_session(store) as looking:
        await until(lambda: _waiting(looking), "a lock that is waited for")


def _waiting(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute(LOCK_WAITS).fetchone() is not None
