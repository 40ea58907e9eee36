"""A queue's limits: its maximum length and what goes when it is full, where dead letters go, how many are worked on."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

import psycopg
import pytest

from queues.engine.api import Destination, DetailedMessage, Engine
from queues.engine.errors import QueueFull
from queues.engine.message import Content
from tests.queues.engine.conftest import Answered, Consumer, MakeEngine, Producer, Store, Worker, bury


def bodies(store: Store, queue: int) -> list[bytes]:
    return sorted(bytes(row["payload"]) for row in store.messages(queue))


# Maximum length.


async def test_a_limit_that_is_lifted_while_a_message_is_stored_keeps_it_from_nothing(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    await producer.publish("orders", b"1")
    engine.policies.by_id[queue] = replace(engine.policies.by_id[queue], max_length=1)  # as it was a moment ago
    await producer.publish("orders", b"2")
    assert (producer.failed, engine.health.isolated) == ([], {})
    assert bodies(store, queue) == [b"1", b"2"]


# Dead letters.


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
async def test_dead_letters_that_their_queue_has_no_room_for_stay_with_the_queue_they_died_in(
    make_engine: MakeEngine, store: Store, audited: bool
) -> None:
    graves = store.queue("graves", max_length=2)
    queue = store.queue("orders", dead_letter_queue_id=graves, audited=audited)
    engine = await make_engine()
    await bury(engine, "orders", b"1", b"2", b"3", b"4")
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 2), "two stay")
    await store.until(lambda: store.counts(graves) == (2, 0, 0, 0), "two move")
    assert bodies(store, queue) + bodies(store, graves) == [b"3", b"4", b"1", b"2"]


async def test_a_dead_letter_queue_that_drops_its_oldest_holds_the_last_dead_letters(
    make_engine: MakeEngine, store: Store
) -> None:
    graves = store.queue("graves", max_length=2, overflow="drop-oldest")
    queue = store.queue("orders", dead_letter_queue_id=graves)
    engine = await make_engine()
    await bury(engine, "orders", b"1", b"2", b"3", b"4")
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "all are moved")
    await store.until(lambda: bodies(store, graves) == [b"3", b"4"], "the oldest are dropped")
    assert store.counts(graves) == (2, 0, 0, 0)


async def test_dead_letters_outlive_the_time_to_live_of_their_queue_no_more_than_its_other_messages(
    make_engine: MakeEngine, store: Store
) -> None:
    graves = store.queue("graves", message_ttl="0.1 s")
    store.queue("orders", dead_letter_queue_id=graves)
    engine = await make_engine()
    await bury(engine, "orders", b"1")
    [row] = await store.until(lambda: store.archived(graves), "the expiry")
    assert row["outcome"] == 1


async def test_dead_letters_that_would_come_back_are_refused_by_the_database(store: Store) -> None:
    first = store.queue("first")
    second = store.queue("second", dead_letter_queue_id=first)
    third = store.queue("third", dead_letter_queue_id=second)
    for target in (second, third):
        with pytest.raises(psycopg.errors.CheckViolation, match="the dead letters of queue first would come back"):
            store.rows("update queues_queue set dead_letter_queue_id = %s where id = %s returning id", target, first)


# Dropping the oldest.


async def test_a_job_that_a_full_queue_rejects_is_no_fault_of_the_engine(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", max_length=1)
    producer = Answered(engine)
    source = engine.publisher(Destination.parse("orders"))
    for n in range(2):
        await producer.wait(source.publish_answered(b"[1]", Content.JSON, producer, n, None))
    assert [token for token, _ in producer.failed] == [1]
    assert producer.ids == [row["id"] for row in store.messages(queue)]
    assert not engine.health.isolated


CHANGES = {
    "a route that goes": "delete from queues_route returning 1",
    "an overflow that drops": "update queues_queue set overflow = 'drop-oldest' where name = 'orders' returning 1",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_topic_is_not_refused_for_a_full_queue_that_it_no_longer_leads_to_or_that_drops_now(
    engine: Engine, store: Store, change: str
) -> None:
    store.queue("orders", max_length=1)
    store.rows("insert into queues_route (source, target) values ('topic:prices', 'queue:orders') returning 1")
    producer = Producer(engine)
    await producer.publish("topic:prices", b"1", b"2")
    assert [str(error) for _, error in producer.failed] == [str(QueueFull())]
    store.rows(CHANGES[change])
    await producer.publish("topic:prices", b"3")
    assert len(producer.failed) == 1


async def test_a_full_queue_drops_its_oldest_message_though_a_consumer_is_connected(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", max_length=3, overflow="drop-oldest")
    engine = await make_engine()
    consumer, producer = Consumer(await engine.queue("orders")), Producer(engine)
    await producer.publish("orders", b"1", b"2", b"3")
    assert await consumer.bodies(1, ack=False) == [b"1"]
    await store.until(lambda: store.counts(queue) == (2, 1, 0, 0), "only what is delivered is leased")
    await producer.publish("orders", b"4", b"5")
    assert bodies(store, queue) == [b"1", b"4", b"5"]
    assert await consumer.bodies(2) == [b"4", b"5"]


async def test_a_full_queue_drops_the_oldest_of_the_lowest_priority(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders", max_length=4, overflow="drop-oldest")
    engine = await make_engine()
    producer = Producer(engine)
    for body, priority in ((b"high", 127), (b"low 1", -127), (b"low 2", -127), (b"none", 0)):
        await producer.publish_detailed("orders", DetailedMessage(body, priority=priority))
    await producer.publish("orders", b"new 1")
    assert bodies(store, queue) == [b"high", b"low 2", b"new 1", b"none"]
    await producer.publish("orders", b"new 2", b"new 3")
    assert bodies(store, queue) == [b"high", b"new 1", b"new 2", b"new 3"]
    assert store.counts(queue) == (4, 0, 0, 0)


async def test_prefetched_messages_go_back_when_a_queue_begins_to_drop_its_oldest(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", *[b"x"] * 10)
    buffer = await engine.queue("orders")
    assert await Consumer(buffer).next() is not None
    await store.until(lambda: len(buffer.ready) == 9, "the others in memory")
    await store.change("update queues_queue set max_length = 5, overflow = 'drop-oldest' returning id")
    await store.until(lambda: store.counts(queue) == (4, 1, 0, 0), "they are back, and as many dropped as are too many")


@pytest.mark.parametrize("back", ["handed back", "failed"])
async def test_a_return_to_a_full_queue_drops_the_oldest(
    make_engine: MakeEngine, store: Store, back: str
) -> None:
    """While consumers had the messages, the limit was lowered, and none could be dropped."""
    queue = store.queue("orders", max_length=3, overflow="drop-oldest", retry_backoff="0 s")
    engine = await make_engine()
    buffer, worker = await engine.queue("orders"), Worker(await engine.queue("orders"))
    await Producer(engine).publish("orders", b"1", b"2", b"3")
    worker.grant(3)
    pushes = await worker.take(3)
    await store.change("update queues_queue set max_length = 1 returning id")
    await store.until(lambda: buffer.policy.max_length == 1, "the node knows of it")
    for push in pushes:
        buffer.deliveries.hand_back(push.tag) if back == "handed back" else buffer.deliveries.give_back(push.tag)
    await store.until(lambda: store.counts(queue) == (1, 0, 0, 0), "the oldest are dropped")
    assert bodies(store, queue) == [b"3"]


# Concurrency.


async def test_a_concurrency_limit_set_on_a_busy_queue_holds_for_what_is_in_memory(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine()
    await Producer(engine).publish("jobs", *[b"x"] * 235)
    buffer = await engine.queue("jobs")
    worker = Worker(buffer)
    worker.grant(2)
    pushed = await worker.take(2)
    await store.until(lambda: buffer.ready, "more in memory")
    await store.change("update queues_queue set concurrency_limit = 4 returning id")
    await store.until(lambda: buffer.policy.concurrency_limit == 4, "the limit is heard of")
    worker.grant(300)
    await store.until(lambda: store.counts(queue) == (231, 4, 0, 0), "four are at work")
    pushed += await worker.take(2)
    for push in pushed:
        assert buffer.deliveries.complete(push.tag, None)
    await worker.until(lambda: len(worker.pushed) == 4)
    assert store.counts(queue)[1] <= 4


async def test_a_limit_set_while_messages_are_claimed_holds_for_them(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", *[b"x"] * 20)
    buffer = await engine.queue("orders")
    with psycopg.connect(store.conninfo) as other:  # the claim waits for this message
        other.execute("update queues_message set error = 'x' where id = (select min(id) from queues_message)")
        assert buffer.deliver(monotonic()) is None
        await store.until(lambda: buffer.backlog.claiming, "the claim is under way")
        await store.change("update queues_queue set concurrency_limit = 3 returning id")
        await store.until(lambda: buffer.policy.concurrency_limit == 3, "the limit is heard of")
    await store.until(lambda: not buffer.backlog.claiming, "the claim is done")
    taken = await Consumer(buffer).bodies(3, ack=False)
    assert len(taken) == 3
    await store.until(lambda: store.counts(queue) == (17, 3, 0, 0), "no more are leased")
    assert await Consumer(buffer).nothing()


async def test_deliveries_that_return_by_themselves_count_for_a_concurrency_limit_until_then(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", concurrency_limit=4, ack_timeout=None, retry_backoff="1 hour", max_attempts=0)
    engine = await make_engine()
    await Producer(engine).publish("orders", *[b"x"] * 28)
    buffer = await engine.queue("orders")
    given: list[object] = []

    def poll() -> bool:
        given.extend(body for _, bodies in buffer.deliver_many(monotonic(), 28) for body in bodies)
        return len(given) >= 4 and not buffer.backlog.claiming

    await store.until(poll, "four are given out")
    for _ in range(5):
        buffer.prefetch.want()
        await store.until(lambda: not buffer.backlog.claiming, "a claim that finds no place")
        assert buffer.deliver_many(monotonic(), 28) == []
    assert store.counts(queue) == (24, 4, 0, 0)


async def test_a_delayed_message_that_finds_its_queue_full_at_its_time_has_the_oldest_dropped(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", max_length=1, overflow="drop-oldest")
    engine = await make_engine()
    producer, worker = Producer(engine), Worker(await engine.queue("orders"))
    worker.grant(1)
    await producer.publish("orders", b"1")
    [push] = await worker.take(1)
    await producer.publish_detailed("orders", DetailedMessage(b"2", delay=0.02))
    await store.until(lambda: store.counts(queue) == (0, 1, 0, 0), "only the one that is worked on is left")
    assert worker.buffer.deliveries.complete(push.tag, None)
