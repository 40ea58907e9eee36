"""Several engines on one database, and one that loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import psycopg
import pytest

from queues.engine import driver
from queues.engine.api import Destination, DetailedMessage, Engine, PushRun
from queues.engine.cluster import membership as nodes
from queues.engine.cluster import reaper
from queues.engine.cluster.reaper import settle_predecessors
from queues.engine.consume.pace import FEW_AHEAD
from queues.engine.driver import Rows
from queues.engine.node import TRUSTED
from queues.engine.statements import statement
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting, Worker
from tests.tables import LOCK_WAITS
from tests.waiting import PATIENCE, until


async def kill(engine: Engine, store: Store) -> None:
    """End an engine as kill -9 would: its sessions end, and nothing is handed back."""
    assert engine.supervisor.task is not None
    engine.supervisor.task.cancel()
    await asyncio.wait([engine.supervisor.task])
    pids = [connection.info.backend_pid for connection in engine.connections.values()]
    await engine.connections.close()
    await store.until(
        lambda: not store.rows("select from pg_stat_activity where pid = any(%s)", pids), "the end of its sessions"
    )


async def test_a_dead_nodes_messages_are_delivered_by_another(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await Producer(first).publish("orders", b"1", b"2", b"3")
    assert await Consumer(await first.queue("orders")).bodies(1, ack=False) == [b"1"]
    assert store.counts(queue) == (0, 3, 0, 0)
    await kill(first, store)
    assert await Consumer(await second.queue("orders")).bodies(3) == [b"1", b"2", b"3"]
    assert [row["id"] for row in store.rows("select id from queues_node")] == [second.node]
    assert second.counts.dead_nodes == 1


async def test_who_is_killed_is_noted_as_dead_and_who_stops_in_order_is_not(
    make_engine: MakeEngine, store: Store
) -> None:
    first, second, third = [await make_engine() for _ in range(3)]
    stopped, killed = second.node, third.node
    await second.stop()
    await kill(third, store)
    await store.until(lambda: store.rows("select from queues_deadnode where id = %s", killed), "the death")
    assert store.rows("select from queues_deadnode where id = %s", stopped) == []
    assert [row["id"] for row in store.rows("select id from queues_node")] == [first.node]


async def test_a_living_node_is_not_reaped(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await Producer(first).publish("orders", b"1")
    await Consumer(await first.queue("orders")).bodies(1, ack=False)
    await asyncio.sleep(1)
    assert store.counts(queue) == (0, 1, 0, 0)
    assert second.counts.dead_nodes == 0


async def test_nodes_share_a_queue_and_each_message_comes_once(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    producer = Producer(first)
    taken: dict[int, list[bytes]] = {first.node: [], second.node: []}

    async def consume(engine: Engine) -> None:
        consumer = Consumer(await engine.queue("orders"))
        while len(taken[engine.node]) < 1800:  # however slow the other is, the rest is its
            taken[engine.node] += await consumer.bodies(1)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(consume(engine)) for engine in (first, second)]
    await store.until(
        lambda: first.policies.is_shared(queue) and second.policies.is_shared(queue), "each other's interest"
    )
    sent = [b"%d" % n for n in range(2000)]
    for start in range(0, len(sent), 100):
        await producer.publish("orders", *sent[start : start + 100])
    await store.until(lambda: sum(map(len, taken.values())) >= len(sent), "the last delivery")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(body for bodies in taken.values() for body in bodies) == sorted(sent)
    assert all(len(bodies) > 100 for bodies in taken.values())


async def test_a_node_leases_no_more_of_a_shared_queue_than_its_consumers_ask_for(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    here, there = Worker(await first.queue("orders")), Worker(await second.queue("orders"))
    here.grant(3)
    there.grant(2)
    quiet = [
        lambda: first.policies.is_shared(queue) and second.policies.is_shared(queue),
        lambda: not (here.buffer.backlog.unclaimed or there.buffer.backlog.unclaimed),
    ]
    for condition in quiet:
        await store.until(condition, "both nodes know each other, and that the store is empty")
    await Producer(first).publish("orders", *[b"%d" % n for n in range(5)])
    assert not here.buffer.ready, "none waits here that a consumer elsewhere could have"
    assert await here.bodies(3) == [b"0", b"1", b"2"]
    assert await there.bodies(2) == [b"3", b"4"]
    assert (first.counts.claimed, second.counts.claimed) == (0, 2), "stored as leased here, claimed there"


class Greedy(Worker):
    """A worker that acknowledges what it is pushed, and asks for as many again."""

    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        super().push(runs, deadline)
        for run in runs:
            assert self.buffer.deliveries.ack_many(run.tags) == []
            self.grant(len(run))


async def shared_by(engines: list[Engine], queue: int, store: Store) -> None:
    """Wait until the nodes know of each other that they serve the queue, and that the store has nothing of it."""
    await store.until(lambda: all(one.policies.is_shared(queue) for one in engines), "both nodes know each other")
    buffers = [one.prefetched_queues.queues[queue] for one in engines]
    await store.until(lambda: not any(buffer.backlog.unclaimed for buffer in buffers), "the store is empty")


async def test_a_shared_queue_is_in_the_fast_gear_while_consumers_here_keep_pace(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e12)  # however slow the machine is
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    here, there = Greedy(await first.queue("orders")), Greedy(await second.queue("orders"))
    here.grant(FEW_AHEAD)
    there.grant(1)
    await shared_by([first, second], queue, store)
    producer = Producer(first)
    for _ in range(3):
        await producer.publish("orders", *[b""] * FEW_AHEAD)
        await here.take(FEW_AHEAD)
    await producer.publish("orders", *[b""] * 3 * FEW_AHEAD)  # more than they ask for, and as many as they have taken
    await here.take(3 * FEW_AHEAD)
    assert (first.counts.claimed, second.counts.claimed) == (0, 0)


async def test_a_node_without_a_publisher_gets_what_the_publishers_own_consumers_do_not_take(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    here, there = Worker(await first.queue("orders")), Worker(await second.queue("orders"))
    here.grant(2 * FEW_AHEAD)
    there.grant(5 * FEW_AHEAD)
    await shared_by([first, second], queue, store)
    producer = Producer(first)
    await producer.publish("orders", *[b"taken"] * 2 * FEW_AHEAD)
    assert await here.bodies(2 * FEW_AHEAD) == [b"taken"] * 2 * FEW_AHEAD  # a good pace, and no credit is left
    await producer.publish("orders", *[b"%d" % n for n in range(5 * FEW_AHEAD)])
    assert sorted(map(int, await there.bodies(5 * FEW_AHEAD))) == list(range(5 * FEW_AHEAD))


async def test_what_was_taken_ahead_goes_to_another_node_when_the_consumers_here_slow_down(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e12)
    queue, many = store.queue("orders"), 2 * FEW_AHEAD
    first, second = await make_engine(), await make_engine()
    here, there = Worker(await first.queue("orders")), Greedy(await second.queue("orders"))
    here.grant(many)
    there.grant(1)
    await shared_by([first, second], queue, store)
    await Producer(first).publish("orders", *[b""] * many)
    await here.take(many)
    await Producer(first).publish("orders", *[b""] * many)
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e-9)  # nothing was taken since the last sample

    def asked_on() -> bool:
        here.grant(1)  # it still asks, so the queue is not cold here
        return bool(there.pushed)

    await until(asked_on, "the other node has what was ahead")
    assert len(here.pushed) + len(there.pushed) <= many


async def test_consumers_of_all_nodes_get_a_producers_messages_in_order_while_nodes_take_ahead(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e12)
    queue = store.queue("orders")
    engines = [await make_engine(), await make_engine()]
    workers = [Greedy(await engine.queue("orders")) for engine in engines]
    for worker in workers:
        worker.grant(150)
    await shared_by(engines, queue, store)
    producers = [Producer(engine) for engine in engines]
    for n in range(20):  # many at once, so that most of them are more than consumers ask for
        bodies = [[b"%d %d" % (k, 1000 * n + m) for m in range(400)] for k in (0, 1)]
        batches = [producer.send("orders", *some) for producer, some in zip(producers, bodies, strict=True)]
        for producer, batch in zip(producers, batches, strict=True):
            await producer.wait(batch)
    await store.until(lambda: sum(len(worker.pushed) for worker in workers) == 2 * 20 * 400, "all are delivered")
    for worker in workers:
        assert worker.pushed
        for k in (b"0", b"1"):
            numbers = [int(push.payload[2:]) for push in worker.pushed if push.payload[:1] == k]
            assert numbers == sorted(numbers)


async def test_a_consumer_wakes_when_another_node_publishes(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)  # by the notification, not by the slow look
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await second.queue("orders")
    buffer = await first.queue("orders")
    waiting = asyncio.create_task(Consumer(buffer).next())
    await store.until(lambda: not buffer.backlog.unclaimed and second.policies.is_shared(queue), "the interest")
    await Producer(second).publish("orders", b"1")
    delivery = await waiting
    assert delivery is not None
    assert delivery[1] == b"1"


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
            buffer.deliveries.ack(delivery[0])

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
    await producer.publish("topic:news", b"no subscriber")
    for n in range(20):
        subscription = await first.subscriptions.create(b"news", 1, None)
        await producer.publish("topic:news", b"%d" % n)
        assert [bytes(row["payload"]) for row in store.messages(subscription.buffer.id)] == [b"%d" % n]


async def test_an_engine_that_loses_the_database_comes_back_and_loses_nothing(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It waits for the end of its sessions, however long that takes: without, what is published now could come first.
    patient = partial(settle_predecessors, patience=60.0)
    monkeypatch.setattr("queues.engine.cluster.reaper.settle_predecessors", patient)
    queue = store.queue("orders")
    engine = await make_engine()
    producer, buffer = Producer(engine), await engine.queue("orders")
    await producer.publish("orders", b"held", b"buffered")
    consumer = Consumer(buffer)
    held = await consumer.next()
    assert held is not None
    node = engine.node
    store.cut()
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    await producer.publish("orders", b"after")
    assert await consumer.bodies(3) == [b"held", b"buffered", b"after"]
    assert not buffer.deliveries.ack(held[0]) or store.counts(queue) is not None
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "the settlement")


@pytest.mark.parametrize("purpose", ["writer", "settlements", "fetcher", "requests"])
async def test_a_connection_cut_while_idle_is_noticed(
    make_engine: MakeEngine, store: Store, purpose: str
) -> None:
    engine = await make_engine()
    node = engine.node
    store.rows("select pg_terminate_backend(%s)", engine.connections[purpose].info.backend_pid)
    await store.until(lambda: engine.node != node and engine.available, "the new node")


async def test_a_client_that_leaves_while_its_request_runs_does_not_stop_it_at_the_server(
    make_engine: MakeEngine, store: Store
) -> None:
    """A cancellation of one statement may come too late and stop the next one on that connection, another client's."""
    engine = await make_engine()
    made = {"name": "orders", "max_attempts": 3, "retry_backoff": 1.0, "ack_timeout": 30.0}
    with store.connection.transaction():
        store.connection.execute("lock table queues_queue in exclusive mode")
        leaving = asyncio.create_task(engine.request("ensure_queue", **made))
        await store.until(lambda: store.rows(LOCK_WAITS), "the wait for the lock")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        staying = asyncio.create_task(engine.request("ensure_queue", **made | {"name": "others"}))
    await staying
    assert [(await engine.queue(name)).policy.name for name in ("orders", "others")] == ["orders", "others"]
    assert engine.counts.reconnects == 0


async def test_a_queue_that_is_used_for_the_first_time_while_others_are_tidied_does_not_cost_all_their_connections(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders")
    store.queue("later")
    engine = await make_engine()
    look, looking, go_on = engine.tidying._raise_floors, asyncio.Event(), asyncio.Event()

    async def look_slowly(*arguments: Any) -> None:
        looking.set()
        await go_on.wait()
        await look(*arguments)

    monkeypatch.setattr(engine.tidying, "_raise_floors", look_slowly)
    with store.connection.transaction():
        store.rows("select pg_current_xact_id()")  # until this transaction ends the queue's floor lags
        await Producer(engine).publish("orders", b"1")
        buffer = await engine.queue("orders")
        assert await Consumer(buffer).bodies(1) == [b"1"]
        await looking.wait()
        await engine.queue("later")
    go_on.set()
    await store.until(lambda: not buffer.backlog.watermark.lags, "the floor's rise")
    assert engine.counts.reconnects == 0


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
    store.cut("listener")
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    assert buffer.deliveries.ack(held[0])
    await store.until(lambda: store.messages(queue) == [], "the settlement")


async def test_a_stop_hands_everything_back_in_its_place(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", b"1", b"2", b"3")
    await Consumer(await engine.queue("orders")).bodies(1, ack=False)
    await engine.stop(60)
    assert [(row["state"], row["attempts"], bytes(row["payload"])) for row in store.messages(queue)] == [
        (0, 0, b"1"), (0, 0, b"2"), (0, 0, b"3"),
    ]  # fmt: skip
    assert store.counts(queue) == (3, 0, 0, 0)
    assert store.rows("select from queues_node") == []


async def test_leases_without_a_consumer_go_back_to_the_store(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", b"1", b"2")
    await Consumer(await engine.queue("orders")).bodies(1)
    engine.prefetched_queues.queues[queue].interest.came(monotonic() - 100)
    await store.until(lambda: store.counts(queue) == (1, 0, 0, 0), "the hand-back")
    await store.until(lambda: store.rows("select from queues_interest") == [], "the end of its interest")


async def test_a_paused_queue_delivers_nothing_until_it_is_resumed(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("orders"))
    await store.change("update queues_queue set paused = true returning id")
    await store.until(lambda: consumer.buffer.policy.paused, "the pause")
    await Producer(engine).publish("orders", b"1")
    assert await consumer.nothing()
    await store.change("update queues_queue set paused = false returning id")
    assert await consumer.bodies(1) == [b"1"]


async def test_a_message_that_no_notification_told_of_is_found(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("orders"))
    await Producer(engine).publish("orders", b"1")
    await consumer.bodies(1)
    await store.change(
        "with m as (insert into queues_message (id, queue_id, state, payload) values (1, %s, 0, 'x') returning id) "
        "insert into queues_queuetally (queue_id, ready, published) select %s, 1, 1 from m returning id",
        queue, queue,
    )  # fmt: skip
    assert await consumer.bodies(1) == [b"x"]


async def test_a_policy_change_on_a_dead_connection_is_not_lost(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine()
    buffer = await engine.queue("orders")
    pid = engine.connections["requests"].info.backend_pid
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
    second.policies.by_id.pop(old.buffer.id, None)  # it has heard of the removal
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
                consumer.buffer.prefetch.more_in_store(consumer.buffer.backlog.watermark.highest + 1)
                assert await consumer.bodies(1) == [body]
        store.insert(queue, b"second")
    consumer.buffer.prefetch.more_in_store(consumer.buffer.backlog.watermark.highest + 1)
    assert await consumer.bodies(2) == [b"first", b"second"]


async def test_the_low_watermark_follows_claims_once_no_transaction_can_be_late(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("q"))
    for n in range(5):
        store.insert(queue, b"%d" % n)
    consumer.buffer.prefetch.more_in_store(1)
    assert await consumer.bodies(5) == [b"0", b"1", b"2", b"3", b"4"]
    floor = consumer.buffer.backlog.watermark
    highest = floor.highest
    await store.until(lambda: not floor.lags, "the floor follows")
    assert floor.value == highest > 0


def cut(engine: Engine, store: Store, purpose: str) -> None:
    """End one of its connections at the server."""
    store.rows("select pg_terminate_backend(%s)", engine.connections[purpose].info.backend_pid)


async def test_an_engine_comes_back_also_when_the_database_was_not_fit_at_first(
    make_engine: MakeEngine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby, or a backup that is being restored."""
    store.queue("q")
    engine = await make_engine(publish_timeout=0.1)
    producer = Producer(engine)
    store.connection.execute(b"alter table queues_topology rename to queues_topology_away")
    try:
        cut(engine, store, "requests")
        await store.until(lambda: any("schema" in reason for reason in engine.unready_reasons()), "the reason is known")
        await producer.publish("q", b"1")
        [(_, error)] = producer.failed
        assert "no up-to-date schema" in str(error)
    finally:
        store.connection.execute(b"alter table queues_topology_away rename to queues_topology")
    await store.until(lambda: engine.available, "it is back")
    await producer.publish("q", b"2")
    assert await Consumer(await engine.queue("q")).bodies(1) == [b"2"]
    assert "the database cannot be used: The database has no up-to-date schema" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_queue_that_waited_for_its_claim_when_the_database_went_is_claimed_for_afterwards(
    make_engine: MakeEngine, store: Store
) -> None:
    first, second = store.queue("a"), store.queue("b")
    engine = await make_engine()
    node, a, b = engine.node, await engine.queue("a"), await engine.queue("b")
    store.insert(first, b"a")
    store.insert(second, b"b")
    gone, staying = Waiting(), Waiting()
    with store.connection.transaction():
        store.rows("select from queues_message where queue_id = %s for update", first)
        a.wait(gone)
        b.wait(staying)
        await store.until(lambda: a.backlog.claiming, "the claim for the first")
        a.cancel(gone)
        store.rows("select pg_terminate_backend(%s)", engine.connections["fetcher"].info.backend_pid)
        await store.until(lambda: not engine.available, "the loss is noticed")
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    delivery = await asyncio.wait_for(staying.delivered, PATIENCE)
    assert delivery is not None
    assert delivery[1] == b"b"


async def test_a_loss_while_messages_are_stored_one_by_one_does_not_block_their_queue(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    node, buffer, producer = engine.node, await engine.queue("q"), Producer(engine)
    waiting = asyncio.create_task(Consumer(buffer).next())
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "what comes is leased to it")
    with psycopg.connect(store.conninfo) as other:
        other.execute(
            b"insert into queues_message (id, queue_id, state, key, payload)"
            b" values (nextval('queues_message_id'), %s, 0, 'k', '')",
            (queue,),
        )
        producer.send("q", b"1")
        engine.publisher(Destination.parse("q")).publish_detailed(DetailedMessage(b"2", key="k"), producer, 1)
        await store.until(lambda: store.messages(queue), "the first is stored by itself")
        cut(engine, store, "writer")
        await store.until(lambda: not engine.available, "the loss is noticed")
        other.rollback()
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    delivery = await waiting
    assert delivery is not None
    assert delivery[1] == b"1"


async def test_a_frozen_process_gives_up_one_lock_after_the_other_soon(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.membership.FROZEN", 1.0)
    monkeypatch.setattr("queues.engine.cluster.membership.HELD", 0.5)
    engine = await make_engine()
    take = "select queues_audit_head('peerbus')"
    with frozen_session(store, "mailboxes") as first, frozen_session(store, "delays") as second:
        first.execute(take)
        waiting = asyncio.create_task(asyncio.to_thread(second.execute, take))
        await store.until(lambda: store.rows(LOCK_WAITS), "the wait for the lock")
        await store.change(take)
        await waiting
    assert engine.counts.reconnects == 0


async def test_a_process_that_froze_while_it_was_told_much_gives_up_its_locks(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.membership.FROZEN", 1.0)
    engine = await make_engine()
    take = "select queues_audit_head('peerbus')"
    with frozen_session(store, "mailboxes") as frozen:
        frozen.execute(take)
        frozen.pgconn.send_query(b"select repeat('x', 1000000) from generate_series(1, 100)")
        await store.change(take)
    assert engine.counts.reconnects == 0


@contextmanager
def frozen_session(store: Store, purpose: str) -> Iterator[psycopg.Connection]:
    """A session as the engine has, which the server's own limit does not end in time."""
    with closing(psycopg.connect(store.conninfo, application_name=f"fivewire {purpose}")) as connection:
        yield connection


async def test_a_dead_node_is_reaped_while_old_letters_are_forgotten_and_the_engine_goes_on(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("orders")
    first, second = await make_engine(), await make_engine()
    with psycopg.connect(store.conninfo) as other:
        other.execute("lock table queues_letterseen in access exclusive mode")
        forgetting = asyncio.create_task(second.maintenance._forget_letters(second.connections["upkeep"]))
        await store.until(lambda: store.rows(LOCK_WAITS), "the wait for the lock")
        await kill(first, store)
        await store.until(lambda: len(store.rows("select id from queues_node")) == 1, "the dead node is reaped")
        other.rollback()
    await forgetting
    assert second.counts.reconnects == 0


async def test_leases_of_a_frozen_process_go_to_others_and_it_delivers_none_of_them_when_it_wakes(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders")
    frozen = await make_engine()
    await Producer(frozen).publish("orders", b"1", b"2", b"3")
    asleep = await frozen.queue("orders")
    [first] = await Consumer(asleep).bodies(1, ack=False)
    assert (first, len(asleep.ready)) == (b"1", 2)
    node, silent = frozen.node, asyncio.Event()
    dead_nodes = reaper.dead_nodes

    async def say(connection: Any) -> list[int]:
        if connection is dict(frozen.connections.items()).get("liveness") and frozen.node == node:
            silent.set()
            await asyncio.sleep(3600)
        return await dead_nodes(connection)

    monkeypatch.setattr("queues.engine.cluster.membership.dead_nodes", say)
    monkeypatch.setattr(nodes, "SILENCE", 1.0)
    awake = await make_engine()
    await silent.wait()
    frozen.fetcher.node.trust_from(monotonic() - TRUSTED)  # that long it was frozen
    assert asleep.deliver(monotonic()) is None
    assert asleep.deliver_many(monotonic(), 2) == []
    assert asleep.prefetch.take(monotonic(), 2, inf, None) == []
    assert sorted(await Consumer(await awake.queue("orders")).bodies(3)) == [b"1", b"2", b"3"]
    await store.until(lambda: frozen.node != node and frozen.available, "the one that woke is a new node")
    assert awake.counts.silent_nodes >= 1
    await Producer(awake).publish("orders", b"4")
    assert await Consumer(await frozen.queue("orders")).bodies(1) == [b"4"]


async def test_deliveries_held_back_by_a_slow_database_are_made_when_it_answers(
    engine: Engine, store: Store
) -> None:
    store.queue("orders")
    buffer = await engine.queue("orders")
    await Producer(engine).publish("orders", b"1", b"2")
    assert await Consumer(buffer).bodies(1) == [b"1"]
    engine.fetcher.node.trust_from(monotonic() - TRUSTED)
    assert await Consumer(buffer).bodies(1) == [b"2"]


async def test_deliveries_are_made_also_when_the_trust_ended_while_the_database_took_its_time_to_answer(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders")
    buffer = await engine.queue("orders")
    await Producer(engine).publish("orders", b"1", b"2")
    assert await Consumer(buffer).bodies(1) == [b"1"]
    asked, answer = asyncio.Event(), asyncio.Event()

    async def answer_late(connection: Any) -> list[int]:
        asked.set()
        await answer.wait()
        return []

    monkeypatch.setattr(nodes, "dead_nodes", answer_late)
    await asked.wait()
    engine.fetcher.node.trusted_until = monotonic()  # which is after the question
    waiting = Waiting()
    buffer.wait(waiting)
    assert not waiting.delivered.done()
    answer.set()
    async with asyncio.timeout(PATIENCE):
        delivery = await waiting.delivered
    assert delivery is not None
    assert delivery[1] == b"2"


async def test_a_change_of_a_queue_whose_policy_is_just_being_read_is_obeyed(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("orders", paused=True)
    engine = await make_engine()
    reading, go_on = asyncio.Event(), asyncio.Event()
    fetchall = Rows.fetchall

    async def fetch_late(answer: Rows) -> Any:
        rows = await fetchall(answer)
        if rows and rows[0][:2] == (queue, "orders") and not reading.is_set():
            reading.set()
            await go_on.wait()
        return rows

    monkeypatch.setattr(Rows, "fetchall", fetch_late)
    opening = asyncio.create_task(engine.queue("orders"))
    await reading.wait()
    await store.change("update queues_queue set paused = false where id = %s returning id", queue)
    await asyncio.sleep(0.2)  # until it is heard of
    go_on.set()
    buffer = await opening
    await store.until(lambda: not buffer.policy.paused, "the change is obeyed")


async def test_a_dying_node_that_still_settles_and_the_one_that_reaps_it_do_not_wait_for_each_other(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    first, second = await make_engine(), await make_engine()
    await Producer(first).publish("orders", b"1", b"2", b"3")
    await Consumer(await first.queue("orders")).bodies(3, ack=False)
    node, [held, *_] = first.node, [row["id"] for row in store.messages(queue)]
    with psycopg.connect(store.conninfo) as settling:
        settling.execute("select from queues_message where id = %s for update", (held,))
        await kill(first, store)
        assert await Consumer(await second.queue("orders")).bodies(2) == [b"2", b"3"]
        assert store.rows("select from queues_node where id = %s", node), "it is reaped when all of it can be"
        settling.rollback()
    assert await Consumer(await second.queue("orders")).bodies(1) == [b"1"]
    await store.until(lambda: not store.rows("select from queues_node where id = %s", node), "the node is gone")
    assert second.counts.reconnects == 0


async def test_a_clean_stop_does_not_read_the_whole_table_for_leases(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("orders")
    run: list[str] = []

    def noted(name: str) -> bytes:
        run.append(name)
        return statement(name)

    monkeypatch.setattr(driver, "statement", noted)
    for leased in (0, 1):
        engine = await make_engine()
        await Producer(engine).publish("orders", b"1")
        await Consumer(await engine.queue("orders")).bodies(1, ack=False)
        await store.until(lambda: store.counts(queue)[1] == 1, "the lease")
        if leased:  # as of another node
            store.rows("insert into queues_queuetally (queue_id, leased) values (%s, 1) returning id", queue)
        run.clear()
        await engine.stop()
        assert ("reap_leases" in run) is bool(leased)
        assert [row["state"] for row in store.messages(queue)] == [0]
        store.rows("delete from queues_message returning id")
        store.rows("update queues_queuecount set ready = 0, leased = 0 returning queue_id")
        store.rows("delete from queues_queuetally returning id")
