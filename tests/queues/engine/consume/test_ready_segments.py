"""Messages that wait are stored as segments, too: a backlog is claimed by whole ones, and every rule of rows holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from psycopg import AsyncConnection

from queues.engine.api import DetailedMessage, Engine
from queues.engine.settle import segments as segments_module
from queues.engine.statements import statement
from tests.queues.audit.spans import messages_of
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults, unwritable
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

FOUR = (b"1", b"2", b"3", b"4")


@pytest.fixture
async def engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With segments of any size, none of which lingers while settled in part."""
    monkeypatch.setattr(segments_module, "LINGER", 3600.0)
    return await make_engine(segment_messages=2)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def segments(store: Store, queue: int | None = None) -> list[tuple[bool, int]]:
    """Open segments in order: whether they are ready, and how many messages they were stored with."""
    rows = store.rows("select * from queues_segment where queue_id = coalesce(%s, queue_id) order by first", queue)
    return [(row["node_id"] is None, row["count"]) for row in rows]


def rows_of(store: Store, queue: int) -> list[bytes]:
    found = store.rows("select payload from queues_message where queue_id = %s order by id", queue)
    return [bytes(row["payload"]) for row in found]


async def until_settled(engine: Engine, store: Store) -> None:
    await store.until(lambda: engine.settlements.idle, "the settlement")


async def test_a_backlog_is_stored_claimed_and_finished_as_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    await Producer(engine).publish("jobs", *FOUR)
    assert (segments(store), rows_of(store, queue), store.counts(queue)) == ([(True, 4)], [], (4, 0, 0, 0))
    consumer = Consumer(await engine.queue("jobs"))
    assert await consumer.bodies(1, ack=False) == [b"1"]
    assert (segments(store), store.counts(queue)) == ([(False, 4)], (0, 4, 0, 0))
    assert await consumer.bodies(3) == [b"2", b"3", b"4"]
    assert consumer.buffer.deliveries.ack(1)
    await until_settled(engine, store)
    assert (segments(store), store.counts(queue)) == ([], (0, 0, 0, 0))
    assert [(row["outcome"], row["size"]) for row in store.archived(queue)] == [(0, 1)] * 4
    assert store.rows("select from queues_archivedmessage") == []


async def test_the_order_holds_over_segments_and_rows(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    producer = Producer(engine)
    for start, count in ((0, 5), (5, 1), (6, 1), (7, 4), (11, 2), (13, 1)):
        await producer.publish("jobs", *numbered(count, start))
    assert ([count for _, count in segments(store)], len(rows_of(store, queue))) == ([5, 4, 2], 3)
    assert await Consumer(await engine.queue("jobs")).bodies(14) == numbered(14)
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_what_has_a_higher_priority_comes_before_a_segment(engine: Engine, store: Store) -> None:
    store.queue("jobs")
    producer = Producer(engine)
    await producer.publish("jobs", *FOUR)
    await producer.publish_detailed(
        "jobs", DetailedMessage(b"urgent", priority=3), DetailedMessage(b"later", priority=-3)
    )
    bodies = await Consumer(await engine.queue("jobs")).bodies(6)
    assert bodies == [b"urgent", *FOUR, b"later"]


@pytest.mark.parametrize("new", [[b"c"], [b"c", b"d"]], ids=["row", "segment"])
async def test_new_messages_do_not_overtake_a_segment_that_no_notification_told_of(
    engine: Engine, store: Store, new: list[bytes]
) -> None:
    """The consumer waits and memory is empty, but the store has something older: only the statement can see it."""
    queue = store.queue("jobs")
    consumer = Consumer(await engine.queue("jobs"))
    waiting = asyncio.ensure_future(consumer.bodies(2 + len(new)))
    buffer = consumer.buffer
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "an empty claim")
    store.rows(
        "with s as (insert into queues_segment (first, queue_id, count, bodies)"
        " select nextval('queues_message_id'), %s, 2, %s returning first)"
        " insert into queues_queuetally (queue_id, ready, published) select %s, 2, 2 from s returning 1",
        queue, [b"a", b"b"], queue,
    )  # fmt: skip
    await Producer(engine).publish("jobs", *new)
    assert await waiting == [b"a", b"b", *new]


async def test_each_queue_of_a_topic_has_segments_of_its_own(engine: Engine, store: Store) -> None:
    queues = {name: store.queue(name) for name in "abc"}
    store.queue("kept", retention="full")
    for name in (*queues, "kept"):
        store.rows("insert into queues_route (source, target) values ('topic:t', %s) returning 1", f"queue:{name}")
    waiting = asyncio.ensure_future((first := Consumer(await engine.queue("a"))).bodies(4, ack=False))
    await until(lambda: not first.buffer.prefetch.may_refill and not first.buffer.backlog.claiming, "an empty claim")
    await Producer(engine).publish("topic:t", *FOUR)
    assert await waiting == list(FOUR)
    assert {name: segments(store, queue) for name, queue in queues.items()} == {
        "a": [(False, 4)], "b": [(True, 4)], "c": [(True, 4)],
    }  # fmt: skip
    for name in ("b", "c", "kept"):
        assert await Consumer(await engine.queue(name)).bodies(4) == list(FOUR)
    assert first.buffer.deliveries.ack_many([1, 2, 3, 4]) == []
    await until_settled(engine, store)
    assert all(store.counts(queue) == (0, 0, 0, 0) for queue in queues.values())
    assert len({row["id"] for queue in queues.values() for row in store.archived(queue)}) == 12


async def test_a_large_publish_is_several_segments_of_about_the_same_size(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.publish.insert_plan.MAX_READY", 10)
    store.queue("jobs")
    await Producer(engine).publish("jobs", *numbered(31))
    assert segments(store) == [(True, 8)] * 3 + [(True, 7)]
    monkeypatch.setattr("queues.engine.publish.insert_plan.MAX_READY_BYTES", 50)
    store.queue("large")
    await Producer(engine).publish("large", *[b"x" * 10] * 6)
    assert segments(store)[4:] == [(True, 3)] * 2
    store.queue("larger")
    await Producer(engine).publish("larger", *[b"x" * 30] * 6)
    assert len(segments(store)) == 6, "two of them are too much for a segment"


async def test_of_a_shared_queue_a_node_takes_no_more_than_its_consumers_ask_for(
    make_engine: MakeEngine, engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    other = await make_engine(segment_messages=2)
    here, there = Worker(await engine.queue("jobs")), Worker(await other.queue("jobs"))
    for worker in (here, there):
        worker.grant(1)
    await store.until(lambda: len(store.rows("select from queues_interest")) == 2, "both serve it")
    await until(lambda: here.buffer.interest.shared and there.buffer.interest.shared, "both know")
    await Producer(await make_engine(segment_messages=2)).publish("jobs", *numbered(40))
    assert len(await here.take(1)) == len(await there.take(1)) == 1
    assert len(here.buffer.ready) + len(there.buffer.ready) == 0
    assert (segments(store), store.counts(queue)[0]) == ([], 38)


@pytest.mark.parametrize(
    "change",
    ["concurrency_limit = 1", "audited = true", "retention = 'full'", "max_length = 2, overflow = 'drop-oldest'"],
)
async def test_a_policy_that_comes_later_holds_for_segments_that_wait(
    engine: Engine, store: Store, change: str
) -> None:
    queue = store.queue("jobs")
    buffer = await engine.queue("jobs")
    before = buffer.policy
    await Producer(engine).publish("jobs", *FOUR)
    await store.change(f"update queues_queue set {change} where id = %s returning 1", queue)
    await store.until(lambda: buffer.policy is not before, "the change")
    await Producer(engine).publish("jobs", b"5")
    expected = [b"4", b"5"] if "max_length" in change else [*FOUR, b"5"]
    consumer = Consumer(buffer)
    for body in expected:
        assert await consumer.bodies(1, ack=False) == [body]
        if "concurrency_limit" in change:
            assert store.counts(queue)[1] == 1
        assert buffer.deliveries.ack_many(list(buffer.unacked)) == []
        await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    kept = [row["payload"] and bytes(row["payload"]) for row in store.archived(queue) if row["outcome"] == 0]
    assert kept == ([*FOUR, b"5"] if "retention" in change else [None] * len(expected))
    if "audited" in change:
        settled = store.rows("select record_id from queues_audit where event = 'settle' order by seq")
        ids = [str(row["id"]) for row in store.archived(queue)]
        assert [id for row in settled for id in messages_of(row["record_id"])] == ids


async def test_an_unsettled_segment_of_a_dead_node_is_ready_again_as_a_whole(
    make_engine: MakeEngine, engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    await Producer(engine).publish("jobs", *FOUR)
    await Producer(engine).publish("jobs", b"5", b"6")
    buffer = await engine.queue("jobs")
    assert await Consumer(buffer).bodies(1, ack=False) == [b"1"]
    await until(lambda: len(buffer.ready) == 5, "the rest")
    assert buffer.deliveries.ack(buffer.deliver(0.0)[0])  # type: ignore[index]
    await until_settled(engine, store)
    [row] = store.rows(
        "insert into queues_node (name, host, pid, first_message_id) values ('gone', 'elsewhere', 0, 1) returning id"
    )
    store.rows("update queues_segment set node_id = %s returning 1", row["id"])  # it was that node's all along
    engine.settlements.segments.clear()
    other = await make_engine(segment_messages=2)
    await store.until(lambda: store.counts(queue) == (5, 0, 0, 0), "the end of the node")
    assert (segments(store), rows_of(store, queue)) == ([(True, 2)], [b"1", b"3", b"4"])
    assert await Consumer(await other.queue("jobs")).bodies(5) == [b"1", b"3", b"4", b"5", b"6"]


async def test_messages_of_a_claimed_segment_that_no_consumer_takes_go_back_to_their_places(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 0.2)
    queue = store.queue("jobs")
    await Producer(engine).publish("jobs", *FOUR)
    consumer = Consumer(await engine.queue("jobs"))
    assert await consumer.bodies(1) == [b"1"]
    await store.until(lambda: store.counts(queue) == (3, 0, 0, 0), "the return")
    assert len(store.archived(queue)) == 1
    assert await consumer.bodies(3) == [b"2", b"3", b"4"]


async def test_a_segment_that_memory_has_no_room_for_is_claimed_by_messages(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=2, prefetch_bytes=1 << 18)
    await Producer(engine).publish("jobs", *[b"x" * 1000] * 2000)
    buffer = await engine.queue("jobs")
    assert await Consumer(buffer).bodies(1) == [b"x" * 1000]
    assert buffer.held.bytes < 1 << 19
    assert len(rows_of(store, queue)) > 0


async def test_a_segment_that_memory_has_room_for_is_claimed_as_a_whole_though_the_claim_is_for_fewer(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=2, prefetch_bytes=1 << 19)  # the first claim is for 8 messages
    await Producer(engine).publish("jobs", *[b"x" * 1000] * 2000)
    buffer = await engine.queue("jobs")
    assert await Consumer(buffer).bodies(1) == [b"x" * 1000]
    assert buffer.held.bytes < 1 << 20
    assert rows_of(store, queue) == []


async def test_a_message_of_a_segment_that_cannot_be_claimed_costs_itself_alone(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    await Producer(engine).publish("jobs", b"1", b"2", b"poison", b"4")
    async with unwritable(store, "update", when="new.state = 1"):
        assert await Consumer(await engine.queue("jobs")).bodies(3) == [b"1", b"2", b"4"]
    assert [bytes(row["payload"]) for row in store.messages(queue) if row["state"] == 3] == [b"poison"]


async def test_a_letter_is_never_part_of_a_segment(engine: Engine, store: Store) -> None:
    queue = store.queue("_peer/ann")
    store.rows("insert into queues_route (source, target) values ('queue:in', 'peer:ann') returning 1")
    source = store.queue("in")
    await Producer(engine).publish("in", *FOUR)
    assert (segments(store, source), segments(store, queue)) == ([(True, 4)], [])
    assert rows_of(store, queue) == list(FOUR)


async def test_attempts_of_a_backlog_are_kept(engine: Engine, store: Store) -> None:
    store.queue("jobs")
    await Producer(engine).publish("jobs", *FOUR, max_attempts=7)
    worker = Worker(await engine.queue("jobs"))
    worker.grant(4)
    details: list[Any] = [push.detail for push in await worker.take(4)]
    assert [detail.max_attempts for detail in details] == [7] * 4


async def test_a_claim_of_a_backlog_is_one_statement_for_many_segments(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("jobs")
    producer = Producer(engine)
    for start in range(0, 60, 3):
        await producer.publish("jobs", *numbered(3, start))
    runs = Faults(monkeypatch).runs
    assert await Consumer(await engine.queue("jobs")).bodies(60) == numbered(60)
    assert (runs["claim_alone"], runs["unpack_segments"]) == (1, 0)


async def test_a_message_whose_transaction_lasts_is_not_overtaken_while_segments_of_many_messages_are_claimed(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.low_watermark.MAX_AGAIN", 20)
    queue = store.queue("jobs")
    async with await AsyncConnection.connect(store.conninfo) as other:
        await other.execute(
            "insert into queues_message (id, queue_id, state, payload)"
            " select nextval('queues_message_id'), %s, 0, 'slow' where pg_current_xact_id() is not null", (queue,)
        )  # fmt: skip
        producer, consumer = Producer(engine), Consumer(await engine.queue("jobs"))
        for start in range(0, 50, 10):
            await producer.publish("jobs", *numbered(10, start))
        assert await consumer.bodies(50) == numbered(50)
        assert await consumer.nothing()
        await other.commit()
    await producer.publish("jobs", b"later")
    assert await consumer.bodies(2) == [b"slow", b"later"]


@pytest.mark.parametrize("locked", ["claimed", "unpacked"])
async def test_a_claim_takes_nothing_that_comes_behind_a_segment_which_another_transaction_has_locked(
    engine: Engine, store: Store, locked: str
) -> None:
    """Its messages may be ready still when that has ended, and would come after later ones."""
    queue = store.queue("jobs")
    producer = Producer(engine)
    for start in range(0, 10, 2):
        await producer.publish("jobs", *numbered(2, start))
    parameters: dict[str, Any] = {"queue": queue, "low": 0, "limit": 4, "node": engine.node, "limited": False}
    parameters |= {"most_packed": 0, "overhead": 0}

    async def claim(connection: AsyncConnection[Any], limit: int) -> tuple[list[bytes], int]:
        cursor = await connection.execute(statement("claim"), parameters | {"limit": limit}, binary=True)
        (_, _, more, _, _), *claimed = await cursor.fetchall()
        return [body for row in claimed for body in row[4] or [row[1]]], more

    async with (
        await AsyncConnection.connect(store.conninfo) as first, await AsyncConnection.connect(store.conninfo) as second
    ):  # fmt: skip
        if locked == "claimed":
            assert await claim(first, 2) == (numbered(2), 1)
        else:
            await first.execute("select queues_unpack_ready(%s, 1)", (queue,))
        assert await claim(second, 4) == ([], 1)
        await second.rollback()
        await first.commit()
        assert await claim(second, 4) == (numbered(4, 2) if locked == "claimed" else numbered(2), 1)


async def test_a_row_that_another_transaction_has_locked_does_not_hold_up_the_segments_behind_it(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    producer = Producer(engine)
    await producer.publish("jobs", b"locked")
    await producer.publish("jobs", *FOUR)
    async with await AsyncConnection.connect(store.conninfo) as other:
        await other.execute("select from queues_message where queue_id = %s for update", (queue,))
        await store.change("update queues_queue set concurrency_limit = 100 where id = %s returning 1", queue)
        # A claim without a limit would wait for the row.
        await store.until(lambda: engine.policies.by_id[queue].concurrency_limit == 100, "the limit")
        consumer = Consumer(await engine.queue("jobs"))
        assert await consumer.bodies(4) == list(FOUR)
    assert await consumer.bodies(1) == [b"locked"]


async def test_a_segment_that_can_be_neither_claimed_nor_unpacked_is_passed_over_and_reported(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    producer = Producer(engine)
    await producer.publish("jobs", *FOUR)
    store.rows("update queues_segment set bodies = bodies || array['poison']::bytea[], count = 5 returning 1")
    await producer.publish("jobs", b"5", b"6")
    async with (
        unwritable(store, "update", when="new.state = 1"),
        await AsyncConnection.connect(store.conninfo, autocommit=True) as connection,
    ):
        await connection.execute(
            b"create trigger no_row before insert on queues_message for each row when (new.payload = 'poison')"
            b" execute function fail_on_poison()"
        )
        try:
            assert await Consumer(await engine.queue("jobs")).bodies(2) == [b"5", b"6"]
        finally:
            await connection.execute(b"drop trigger no_row on queues_message")
    assert engine.health.isolated["claim"] > 0
    assert segments(store, queue)[0] == (True, 5)
