"""Several engines on one database, and one that loses it."""

from __future__ import annotations

import asyncio

import psycopg

from queues.engine import Engine
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store


async def kill(engine: Engine, store: Store) -> None:
    """End an engine as kill -9 would: its sessions end, and nothing is handed back."""
    assert engine._supervisor is not None
    engine._supervisor.cancel()
    await asyncio.wait([engine._supervisor])
    pids = [connection.info.backend_pid for connection in engine._connections.values()]
    await engine._close()
    await store.until(
        lambda: not store.rows("select from pg_stat_activity where pid = any(%s)", pids), "the end of its sessions"
    )


async def test_a_dead_nodes_messages_are_delivered_by_another_within_a_second(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await Producer(first).publish("orders", b"1", b"2", b"3")
    assert await Consumer(await first.queue("orders")).bodies(1, ack=False) == [b"1"]
    assert store.counts(queue) == (0, 3, 0, 0)
    await kill(first, store)
    async with asyncio.timeout(2):
        assert await Consumer(await second.queue("orders")).bodies(3) == [b"1", b"2", b"3"]
    assert [row["id"] for row in store.rows("select id from queues_node")] == [second.node]


async def test_a_living_node_is_not_reaped(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await Producer(first).publish("orders", b"1")
    await Consumer(await first.queue("orders")).bodies(1, ack=False)
    await asyncio.sleep(1)
    assert store.counts(queue) == (0, 1, 0, 0)
    assert second.counts.dead_nodes == 0


async def test_nodes_share_a_queue_and_each_message_comes_once(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    first, second = await make_engine(), await make_engine()
    producer = Producer(first)
    taken: dict[int, list[bytes]] = {first.node: [], second.node: []}

    async def consume(engine: Engine) -> None:
        consumer = Consumer(await engine.queue("orders"))
        while True:
            taken[engine.node] += await consumer.bodies(1)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(consume(engine)) for engine in (first, second)]
    await store.until(lambda: len(store.rows("select from queues_interest")) == 2, "both nodes' interest")
    sent = [b"%d" % n for n in range(2000)]
    for start in range(0, len(sent), 100):
        await producer.publish("orders", *sent[start : start + 100])
    await store.until(lambda: sum(map(len, taken.values())) >= len(sent), "the last delivery")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(body for bodies in taken.values() for body in bodies) == sorted(sent)
    assert all(len(bodies) > 100 for bodies in taken.values())


async def test_a_consumer_wakes_when_another_node_publishes(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    first, second = await make_engine(), await make_engine()
    waiting = asyncio.create_task(Consumer(await first.queue("orders")).next())
    await store.until(lambda: store.rows("select from queues_interest"), "the interest")
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    await Producer(second).publish("orders", b"1")
    delivery = await waiting
    assert delivery is not None
    assert asyncio.get_running_loop().time() - began < 0.9  # by the notification, not by the slow look


async def test_a_concurrency_limit_holds_over_nodes(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders", concurrency_limit=3)
    engines = [await make_engine(), await make_engine()]
    await Producer(engines[0]).publish("orders", *[b"%d" % n for n in range(60)])
    working, most, done = 0, 0, 0

    async def work(engine: Engine) -> None:
        nonlocal working, most, done
        buffer = await engine.queue("orders")
        consumer = Consumer(buffer)
        while done < 60:
            delivery = await consumer.next()
            assert delivery is not None
            working += 1
            most = max(most, working)
            await asyncio.sleep(0.002)
            working -= 1
            done += 1
            buffer.ack(delivery[0])

    workers = [asyncio.create_task(work(engine)) for engine in engines for _ in range(5)]
    await store.until(lambda: done == 60, "all work done")
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert most <= 3
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "the settlement")


async def test_a_route_acknowledged_on_one_node_misses_nothing_published_later_on_another(
    make_engine: MakeEngine, store: Store
) -> None:
    first, second = await make_engine(), await make_engine()
    producer = Producer(second)
    await producer.publish("topic:news", b"nobody")
    for n in range(20):
        subscription = await first.subscriptions.create(b"news", 1, None)
        await producer.publish("topic:news", b"%d" % n)
        assert [bytes(row["payload"]) for row in store.messages(subscription.buffer.id)] == [b"%d" % n]


async def test_an_engine_that_loses_the_database_comes_back_and_loses_nothing(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    producer, buffer = Producer(engine), await engine.queue("orders")
    await producer.publish("orders", b"held", b"buffered")
    consumer = Consumer(buffer)
    held = await consumer.next()
    assert held is not None
    node = engine.node
    store.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'fivewire%%'")
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    await producer.publish("orders", b"after")
    assert await consumer.bodies(3) == [b"held", b"buffered", b"after"]
    assert not buffer.ack(held[0]) or store.counts(queue) is not None
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "the settlement")


async def test_a_late_acknowledgement_of_a_lost_lease_still_settles_the_message(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    buffer = await engine.queue("orders")
    await Producer(engine).publish("orders", b"held")
    held = await Consumer(buffer).next()
    assert held is not None
    node = engine.node
    store.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fivewire listener'")
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    assert buffer.ack(held[0])
    await store.until(lambda: store.messages(queue) == [], "the settlement")


async def test_a_stop_hands_everything_back_in_its_place(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", b"1", b"2", b"3")
    await Consumer(await engine.queue("orders")).bodies(1, ack=False)
    await engine.stop(5)
    assert [(row["state"], row["attempts"], bytes(row["payload"])) for row in store.messages(queue)] == [
        (0, 0, b"1"), (0, 0, b"2"), (0, 0, b"3"),
    ]  # fmt: skip
    assert store.counts(queue) == (3, 0, 0, 0)
    assert store.rows("select from queues_node") == []


async def test_what_nobody_consumes_any_more_goes_back_to_the_store(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", b"1", b"2")
    await Consumer(await engine.queue("orders")).bodies(1)
    engine.buffers[queue].last_demand -= 100
    await store.until(lambda: store.counts(queue) == (1, 0, 0, 0), "the hand-back")
    assert store.rows("select from queues_interest") == []


async def test_a_paused_queue_delivers_nothing_until_it_is_resumed(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("orders"))
    store.rows("update queues_queue set paused = true returning id")
    await store.until(lambda: consumer.buffer.policy.paused, "the pause")
    await Producer(engine).publish("orders", b"1")
    assert await consumer.nothing()
    store.rows("update queues_queue set paused = false returning id")
    assert await consumer.bodies(1) == [b"1"]


async def test_a_message_that_no_notification_told_of_is_found(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("orders"))
    await Producer(engine).publish("orders", b"1")
    await consumer.bodies(1)
    store.rows(
        "with m as (insert into queues_message (id, queue_id, state, payload) values (1, %s, 0, 'x') returning id) "
        "insert into queues_queuetally (queue_id, ready, published) select %s, 1, 1 from m returning id",
        queue, queue,
    )  # fmt: skip
    assert await consumer.bodies(1) == [b"x"]


async def test_a_policy_change_on_a_dead_connection_is_not_lost(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine()
    buffer = await engine.queue("orders")
    pid = engine._connections["requests"].info.backend_pid
    store.rows("select pg_terminate_backend(%s)", pid)
    store.rows("update queues_queue set paused = true returning id")
    await store.until(lambda: buffer.policy.paused, "the pause")


async def test_a_subscriber_is_not_missed_when_the_only_other_one_was_removed(
    make_engine: MakeEngine, store: Store
) -> None:
    first, second = await make_engine(), await make_engine()
    producer = Producer(second)
    old = await first.subscriptions.create(b"news", 1, None)
    await producer.publish("topic:news", b"1")
    store.rows("delete from queues_subscription where id = %s returning id", old.id)
    store.rows("delete from queues_queue where id = %s returning id", old.buffer.id)
    new = await first.subscriptions.create(b"news", 1, None)
    second.topology.policies.pop(old.buffer.id, None)  # it has heard of the removal
    await producer.publish("topic:news", b"2")
    assert [bytes(row["payload"]) for row in store.messages(new.buffer.id)] == [b"2"]


async def test_a_message_committed_late_is_not_overtaken_by_its_producers_next(
    make_engine: MakeEngine, store: Store
) -> None:
    """One node takes ids and is slow to commit; another, further on by then, must not deliver what follows first."""
    queue = store.queue("q")
    engine = await make_engine()
    consumer, producer = Consumer(await engine.queue("q")), Producer(engine)
    await producer.publish("queue:q", b"warm")
    assert await consumer.bodies(1) == [b"warm"]
    with psycopg.connect(store.conninfo) as slow:
        with slow.transaction():
            slow.execute(b"select pg_current_xact_id()")
            row = slow.execute(b"select nextval('queues_message_id')").fetchone()
            assert row is not None
            slow.execute(
                b"insert into queues_message (id, queue_id, state, payload) values (%s, %s, 0, 'first')",
                (row[0], queue),
            )
            for body in (b"of another", b"of a third"):
                store.insert(queue, body)
                consumer.buffer.more_in_store(consumer.buffer.floor.highest + 1)
                assert await consumer.bodies(1) == [body]
        store.insert(queue, b"second")
    consumer.buffer.more_in_store(consumer.buffer.floor.highest + 1)
    assert await consumer.bodies(2) == [b"first", b"second"]


async def test_the_floor_follows_claims_once_nobody_can_be_late(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("q"))
    for n in range(5):
        store.insert(queue, b"%d" % n)
    consumer.buffer.more_in_store(1)
    assert await consumer.bodies(5) == [b"0", b"1", b"2", b"3", b"4"]
    floor = consumer.buffer.floor
    highest = floor.highest
    await store.until(lambda: not floor.lags, "the floor follows")
    assert floor.value == highest > 0
