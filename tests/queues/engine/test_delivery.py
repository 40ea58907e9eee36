"""Publishing, delivering and settling through the engine, on real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from queues.engine.api import DetailedMessage, Engine, QueueFull
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting, Worker
from tests.waiting import PATIENCE


async def test_a_message_is_in_the_store_before_its_publish_counts_as_committed(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    batch = producer.send("orders", b"one")
    assert engine.holds(batch)
    await producer.wait(batch)
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"one"]


async def test_a_waiting_consumer_gets_the_message_without_a_claim(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()  # after the queue: it must not hear late that it was made, and look once more
    buffer = await engine.queue("orders")
    waiting = asyncio.create_task(Consumer(buffer).next())
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await Producer(engine).publish("orders", b"one")
    delivery = await waiting
    assert delivery is not None
    assert delivery[1] == b"one"
    assert engine.counts.claimed == 0
    assert [row["state"] for row in store.messages(queue)] == [1]


async def test_a_confirm_does_not_wait_until_the_message_is_delivered(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine()
    buffer = await engine.queue("orders")
    waiting = Waiting()
    buffer.wait(waiting)
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    delivered_at_release: list[bool] = []

    class Confirmed(Producer):
        batch = 0

        def release(self) -> None:
            if self.batch and not self.engine.holds(self.batch):
                delivered_at_release.append(waiting.delivered.done())
            super().release()

    producer = Confirmed(engine)
    producer.batch = producer.send("orders", b"one")
    await producer.wait(producer.batch)
    async with asyncio.timeout(PATIENCE):
        assert await waiting.delivered is not None
    assert delivered_at_release[0] is False


async def test_an_acknowledged_message_leaves_an_archive_row_with_its_times(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    await producer.publish("orders", b"12345")
    assert await Consumer(await engine.queue("orders")).bodies(1) == [b"12345"]
    (row,) = await store.until(lambda: store.archived(queue), "the archive row")
    assert store.messages(queue) == []
    assert (row["size"], row["outcome"], row["attempts"], row["payload"]) == (5, 0, 0, None)
    assert row["published_at"] <= row["delivered_at"] <= row["finished_at"]


async def test_retention_decides_what_is_kept(engine: Engine, producer: Producer, store: Store) -> None:
    nothing, full = store.queue("nothing", retention="none"), store.queue("full", retention="full")
    for name in ("nothing", "full"):
        await producer.publish(name, b"body")
        await Consumer(await engine.queue(name)).bodies(1)
    (row,) = await store.until(lambda: store.archived(full), "the archive row")
    assert bytes(row["payload"]) == b"body"
    await store.until(lambda: not store.messages(nothing), "the settlement")
    assert store.archived(nothing) == []


async def test_order_survives_the_change_between_store_and_memory(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine(prefetch=20)
    producer = Producer(engine)
    store.queue("orders")
    consumer = Consumer(await engine.queue("orders"))
    sent = [b"%d" % n for n in range(3000)]

    await producer.publish("orders", *sent[:300])  # more than memory takes: a backlog to begin with

    async def publish() -> None:
        for start in range(300, len(sent), 30):
            await producer.publish("orders", *sent[start : start + 30])

    publishing = asyncio.create_task(publish())
    assert await consumer.bodies(len(sent)) == sent
    await publishing
    assert engine.counts.claimed > 0


async def test_a_rejected_delivery_comes_again_after_the_backoff_and_then_dies(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders", max_attempts=2)
    await producer.publish("orders", b"poison")
    buffer = await engine.queue("orders")
    consumer = Consumer(buffer)
    for attempt in range(2):
        delivery = await consumer.next()
        assert delivery is not None
        assert delivery[2] == attempt
        buffer.deliveries.give_back(delivery[0], error="no")
    (row,) = await store.until(lambda: [row for row in store.messages(queue) if row["state"] == 3], "the dead letter")
    assert (row["attempts"], row["error"], row["node_id"]) == (2, "no", None)
    assert row["origin_id"] != row["id"]
    assert store.counts(queue) == (0, 0, 0, 1)


async def test_dead_letters_go_to_the_queue_named_for_them(engine: Engine, producer: Producer, store: Store) -> None:
    graves = store.queue("graves")
    queue = store.queue("orders", max_attempts=1, dead_letter_queue_id=graves)
    await producer.publish("orders", b"poison")
    buffer = await engine.queue("orders")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    buffer.deliveries.give_back(delivery[0], error="no")
    moved = await Consumer(await engine.queue("graves")).next()
    assert moved is not None
    assert moved[1] == b"poison"
    assert moved[3] is not None
    assert moved[3].headers is not None
    assert moved[3].headers["dead-letter"]["queue"] == "orders"
    assert moved[3].headers["dead-letter"]["error"] == "no"
    assert store.counts(queue) == (0, 0, 0, 0)
    assert store.counts(graves) == (0, 1, 0, 0)


async def test_a_delayed_message_comes_when_it_is_due(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("orders")
    consumer = Consumer(await engine.queue("orders"))
    (before,) = store.rows("select clock_timestamp() as now")
    await producer.publish_detailed("orders", DetailedMessage(b"later", delay=3600), DetailedMessage(b"now"))
    assert store.counts(queue)[2] == 1
    assert await consumer.bodies(1) == [b"now"]
    (row,) = store.rows(
        "update queues_message m set due_at = clock_timestamp() + interval '0.4 s' from queues_message old"
        " where m.state = 2 and old.id = m.id returning m.due_at, m.published_at, old.due_at as first_due_at"
    )
    assert before["now"] <= row["first_due_at"] - timedelta(hours=1) <= row["published_at"]
    assert await consumer.bodies(1) == [b"later"]
    (after,) = store.rows("select clock_timestamp() as now")
    assert after["now"] >= row["due_at"]


async def test_headers_and_key_travel_with_a_message(engine: Engine, producer: Producer, store: Store) -> None:
    store.queue("orders")
    consumer = Consumer(await engine.queue("orders"))
    for buffered in (False, True):  # from the store, and from memory
        if buffered:
            assert await consumer.nothing(0.1)
        waiting = asyncio.create_task(consumer.next())
        await asyncio.sleep(0)
        await producer.publish_detailed("orders", DetailedMessage(b"", key=f"k{buffered}", headers={"a": [1]}))
        delivery = await waiting
        assert delivery is not None
        assert delivery[3] is not None
        assert (delivery[3].key, delivery[3].headers) == (f"k{buffered}", {"a": [1]})


async def test_a_key_that_is_taken_makes_a_publish_a_no_op(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("orders")
    await producer.publish_detailed("orders", DetailedMessage(b"first", key="k"))
    await producer.publish_detailed("orders", DetailedMessage(b"second", key="k"), DetailedMessage(b"third", key="l"))
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"first", b"third"]
    assert store.counts(queue) == (2, 0, 0, 0)


async def test_a_message_that_postgresql_cannot_store_harms_no_other(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    producer.send("orders", b"before")
    await producer.publish_detailed("orders", DetailedMessage(b"bad", headers={"x": "\0"}))
    producer.send("orders", b"after")
    await producer.publish("orders", b"last")
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"before", b"after", b"last"]
    assert len(producer.failed) == 1


async def test_a_full_queue_rejects_the_rest_and_keeps_what_it_has(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("small", max_length=3)
    await producer.publish("small", *[b"%d" % n for n in range(5)])
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"0", b"1", b"2"]
    assert [token for token, _ in producer.failed] == [3, 4]
    assert all(isinstance(error, QueueFull) for _, error in producer.failed)
    assert await Consumer(await engine.queue("small")).bodies(1) == [b"0"]
    await store.until(lambda: len(store.messages(queue)) == 2, "the settlement")
    await producer.publish("small", b"5")
    assert len(store.messages(queue)) == 3


async def test_a_full_queue_drops_its_oldest_when_it_is_told_to(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("small", max_length=3, overflow="drop-oldest")
    await producer.publish("small", *[b"%d" % n for n in range(5)])
    await producer.publish("small", b"5")
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"3", b"4", b"5"]
    assert producer.failed == []
    assert [row["outcome"] for row in store.archived(queue)] == [3, 3, 3]


async def test_an_expired_message_is_not_delivered(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("orders", message_ttl="0.3 s")
    await producer.publish("orders", b"stale")
    (row,) = await store.until(lambda: store.archived(queue), "the expiry")
    assert row["outcome"] == 1
    assert store.messages(queue) == []
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_a_message_that_expires_soon_is_delivered_by_a_node_whose_clock_is_ahead(
    engine: Engine, producer: Producer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders", message_ttl="1 hour")
    await producer.publish("orders", b"fresh")
    ahead = time.time() + 7200.0
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert await Consumer(await engine.queue("orders")).bodies(1) == [b"fresh"]
    assert engine.counts.claimed == 1


async def test_a_message_that_was_returned_as_often_as_can_be_counted_is_returned_again(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders", max_attempts=0, retry_backoff="0 s")
    await producer.publish("orders", b"x")
    store.rows("update queues_message set attempts = 32766 where queue_id = %s returning 1", queue)
    buffer = await engine.queue("orders")
    for _ in range(3):
        delivery = await Consumer(buffer).next()
        assert delivery is not None
        buffer.deliveries.give_back(delivery[0], delay=0.0)
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    assert delivery[2] == 32767
    buffer.deliveries.bury(delivery[0], "no")
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 1), "the dead letter")
    assert engine.counts.reconnects == 0


async def test_a_purge_leaves_in_memory_what_was_confirmed_after_it_began(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    buffer = await engine.queue("orders")
    await producer.publish("orders", b"1", b"2")
    await producer.publish_detailed("orders", DetailedMessage(b"low", priority=-1))
    [row] = store.rows("select nextval('queues_message_id') as high")
    await producer.publish("orders", b"later")
    await producer.publish_detailed("orders", DetailedMessage(b"high", priority=1))
    consumer = Consumer(buffer)
    assert await consumer.bodies(1) == [b"high"]
    await store.until(lambda: len(buffer.ready) == 4, "the others in memory")
    text = json.dumps({"purge": queue, "by": "alice", "high": row["high"]})
    store.rows("select queues_instruct(array[%s], array[null::int])::text", text)
    await store.until(lambda: len(buffer.ready) == 1, "the purge is heard of")
    assert await consumer.bodies(1) == [b"later"]
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "all is settled or purged")
    assert sorted(row["outcome"] for row in store.archived(queue)) == [0, 0, 2, 2, 2]


@pytest.mark.parametrize("heard", ["before the hand-back", "after it"])
async def test_a_purge_removes_messages_that_are_being_handed_back(
    engine: Engine, producer: Producer, store: Store, monkeypatch: pytest.MonkeyPatch, heard: str
) -> None:
    queue = store.queue("orders")
    buffer = await engine.queue("orders")
    worker = Worker(buffer)
    await producer.publish("orders", b"1", b"2", b"3")
    worker.grant(2)
    first, _ = await worker.take(2)
    handing, go_on, hand_back = asyncio.Event(), asyncio.Event(), engine.settlements._parts._return

    async def slowly(*arguments: Any) -> None:
        handing.set()
        await go_on.wait()
        await hand_back(*arguments)

    monkeypatch.setattr(engine.settlements._parts, "_return", slowly)
    buffer.deliveries.hand_back(first.tag)
    buffer.prefetch.return_all()
    await handing.wait()
    [row] = store.rows("select max(id) as high from queues_message")  # the purge finds nothing that is ready
    if heard == "after it":
        go_on.set()
        await store.until(lambda: store.counts(queue) == (2, 1, 0, 0), "the hand-back")
    text = json.dumps({"purge": queue, "by": "alice", "high": row["high"]})
    store.rows("select queues_instruct(array[%s], array[null::int])::text", text)
    await store.until(lambda: not engine.settlements._purges.idle or heard == "after it", "the purge is heard of")
    go_on.set()
    await store.until(lambda: store.counts(queue) == (0, 1, 0, 0), "only the one that a consumer has is left")
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"2"]


async def test_counts_are_exact_through_a_life(
    engine: Engine, producer: Producer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 3600.0)  # what is in memory stays there
    queue = store.queue("orders")
    await producer.publish("orders", *[b"x"] * 10)
    assert store.counts(queue) == (10, 0, 0, 0)
    buffer = await engine.queue("orders")
    consumer = Consumer(buffer)
    first = await consumer.next()
    assert first is not None
    assert store.counts(queue) == (0, 10, 0, 0)
    buffer.deliveries.give_back(first[0], delay=60.0)
    await store.until(lambda: store.counts(queue) == (0, 9, 1, 0), "the return")
    await consumer.bodies(4)
    await store.until(lambda: store.counts(queue) == (0, 5, 1, 0), "the settlement")
    await store.until(lambda: not store.rows("select from queues_queuetally"), "the fold")
    assert store.counts(queue) == (0, 5, 1, 0)


async def test_a_message_acknowledged_twice_leaves_one_archive_row(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("orders")
    await producer.publish("orders", b"x")
    buffer = await engine.queue("orders")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    buffer.deliveries.settle_late(buffer.unacked[delivery[0]][0], time.monotonic(), None)
    assert buffer.deliveries.ack(delivery[0])
    await store.until(lambda: store.archived(queue), "the archive row")
    assert len(store.archived(queue)) == 1
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "the settlement")


async def test_a_consumer_that_waited_for_room_in_memory_is_served_as_soon_as_there_is_some(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(prefetch=1)
    store.queue("orders")
    await Producer(engine).publish("orders", b"1", b"2")
    buffer = await engine.queue("orders")
    held = await Consumer(buffer).next()
    assert held is not None
    waiting = asyncio.create_task(Consumer(buffer).next())
    await asyncio.sleep(0.2)
    buffer.deliveries.ack(held[0])
    delivery = await waiting
    assert delivery is not None
    assert delivery[1] == b"2"


async def test_a_backlog_of_large_messages_takes_no_more_memory_than_a_queue_may(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("orders")
    engine = await make_engine(prefetch_bytes=1 << 20)
    bodies = [bytes([n]) * 100_000 for n in range(60)]
    await Producer(engine).publish("orders", *bodies)
    buffer = await engine.queue("orders")
    consumer = Consumer(buffer)
    for body in bodies:
        assert await consumer.bodies(1) == [body]
        assert buffer.held.bytes < 2 << 20
