"""The periodic cost of many queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from unittest.mock import Mock

import psycopg
import pytest

from queues.engine.api import DetailedMessage, Engine
from queues.engine.clock import now
from queues.engine.consume.deadlines import DEADLINES, IDLE, Burst, Deadlines, DeadlineTimer
from queues.engine.consume.interest import COLD, Interest
from queues.engine.consume.subscriptions import TAGS, LocalSubscription
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting
from tests.queues.engine.faults import Faults


def test_deadlines_give_each_thing_at_its_time_and_things_of_one_time_in_their_order() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at, thing in ((5.0, "z"), (2.0, "b"), (5.0, "a"), (4.0, "c")):
        deadlines.at(at, thing)
    assert deadlines.due(1.9) == []
    assert deadlines.due(4.0) == [(2.0, "b"), (4.0, "c")]
    assert len(deadlines) == 2
    deadlines.at(4.5, "d")
    assert deadlines.due(10.0) == [(4.5, "d"), (5.0, "z"), (5.0, "a")]
    deadlines.at(1.0, "e")
    deadlines.clear()
    assert (deadlines.due(10.0), len(deadlines)) == ([], 0)


class Clock:
    """In place of the loop: notes after how long it is to call."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def call_later(self, delay: float, function: Callable[[], None]) -> Mock:
        self.pauses.append(delay)
        return Mock()


def test_a_process_that_has_delivered_nothing_rarely_looks_for_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, deliveries = Clock(), Deadlines[Burst]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    monkeypatch.setattr("queues.engine.consume.deadlines.until_tick", lambda period: period)
    timer = DeadlineTimer(deliveries, Mock(), lambda: False)
    timer.start()
    deliveries.at(now() + 60, Burst(Mock(), None, []))
    timer.start()
    assert clock.pauses == [IDLE, DEADLINES]


async def test_idle_queues_with_consumers_are_not_looked_at_each_time(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = []
    for n in range(50):
        store.queue(f"q{n}")
        buffers.append(await engine.queue(f"q{n}"))
        buffers[-1].wait(Waiting())
    await store.until(
        lambda: all(buffer.interest.known and not buffer.backlog.unclaimed for buffer in buffers), "all are served"
    )
    assert store.rows("select count(*) from queues_interest")[0]["count"] == 50
    looked: list[Interest] = []
    monkeypatch.setattr(Interest, "is_cold", lambda interest, now: looked.append(interest))
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 3600.0)
    soon = time.monotonic() + 60
    engine.tidying._cold(soon)
    first = len(looked)
    for n in range(500):
        engine.tidying._cold(soon + n * 0.1)
    assert (first, len(looked)) == (50, 50)


async def test_a_queue_whose_last_consumer_leaves_is_looked_at_as_soon_as_it_may_be_cold(
    engine: Engine, store: Store
) -> None:
    store.queue("q")
    buffer = await engine.queue("q")
    waiting = [Waiting(), Waiting()]
    for one in waiting:
        buffer.wait(one)
    await store.until(lambda: buffer.interest.known and not buffer.backlog.unclaimed, "it is served")
    looked = buffer.interest._next_look  # the job may have had a look since
    engine.tidying._cold(looked)  # consumers wait: the next look is late
    assert buffer.interest._next_look > looked + 50
    buffer.cancel(waiting[0])
    assert buffer.interest._next_look > looked + 50
    buffer.cancel(waiting[1])
    assert buffer.interest._next_look < now() + COLD + 1
    due = engine.prefetched_queues.schedule.idle.due(now() + COLD + 1)
    assert [queue for at, queue in due if queue.interest.begin_look(at)] == [buffer]  # by the sooner look alone
    later = engine.prefetched_queues.schedule.idle.due(looked + 100)
    assert not any(queue.interest.begin_look(at) for at, queue in later)


async def test_delayed_messages_are_looked_for_by_one_statement_while_none_is_due(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch)
    await store.until(lambda: faults.runs["next_due"] >= 5, "looks")
    assert faults.runs["promote_due"] == 0
    queue = store.queue("q")
    await Producer(engine).publish_detailed("q", DetailedMessage(b"x", delay=0.1))
    await store.until(lambda: [row["state"] for row in store.messages(queue)] == [0], "its time")


async def test_many_quiet_queues_are_looked_at_by_one_statement(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.MANY", 10)
    buffers = []
    for n in range(20):
        store.queue(f"q{n}")
        buffers.append(await engine.queue(f"q{n}"))
        buffers[-1].wait(Waiting())
    await store.until(lambda: all(b.interest.known and not b.backlog.unclaimed for b in buffers), "all are served")
    faults = Faults(monkeypatch)
    await engine.tidying._look_for_unseen(engine.connections["upkeep"])
    assert (faults.runs["unseen"], faults.runs["unseen_of_many"]) == (0, 1)


async def test_only_queues_with_deadlines_are_looked_at(engine: Engine, store: Store) -> None:
    names = [f"q{n}" for n in range(20)]
    for name in names:
        store.queue(name, ack_timeout="3600 s")
    buffers = [await engine.queue(name) for name in names]
    await Producer(engine).publish("q0", b"x")
    await store.until(lambda: buffers[0].deliver_many(time.monotonic(), 1), "the delivery")
    deliveries = engine.prefetched_queues.schedule.deliveries
    assert len(deliveries) == 1
    assert deliveries.due(time.monotonic() + 3000) == []
    [(_, burst)] = deliveries.due(time.monotonic() + 4000)
    assert burst.deliveries is buffers[0].deliveries


async def test_after_a_reconnect_publishes_do_not_walk_over_what_was_settled_before(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    taken = asyncio.create_task(Consumer(buffer).bodies(2))
    for n in range(2):  # after the first nothing is claimed any more: they are leased as they are stored
        await store.until(lambda: buffer.interest.demand and not buffer.backlog.unclaimed, "it has looked")
        await Producer(engine).publish("q", b"%d" % n)
    assert await taken == [b"0", b"1"]
    await store.until(lambda: engine.settlements.idle, "both are settled: else they come again")
    node = engine.node
    store.rows("select pg_terminate_backend(%s)", engine.connections["fetcher"].info.backend_pid)
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    waiting = asyncio.create_task(Consumer(buffer).bodies(1))
    await store.until(lambda: buffer.backlog.watermark.value == engine.fetcher.node.horizon, "the floor's rise")
    await Producer(engine).publish("q", b"2")
    assert await waiting == [b"2"]


async def test_a_message_that_took_its_id_before_the_node_began_and_is_committed_later_is_not_passed_over(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)  # by the floor's look, not by the slow one
    monkeypatch.setattr("queues.engine.consume.low_watermark.TIMEOUT", 3600.0)
    queue = store.queue("q")
    with store.connection.transaction():
        store.rows("select pg_current_xact_id()")
        store.insert(queue, b"early")
        engine = await make_engine()
        buffer = await engine.queue("q")
        waiting = asyncio.create_task(Consumer(buffer).bodies(1))
        await store.until(
            lambda: buffer.backlog.watermark.lags and not buffer.backlog.unclaimed, "it has looked in vain"
        )
    assert await waiting == [b"early"]


async def test_overdue_messages_of_an_old_transaction_become_ready_and_expire(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.ALL_DUE", 0.2)
    monkeypatch.setattr("queues.engine.cluster.periodic.ALL_EXPIRED", 0.2)
    queue = store.queue("q")
    await asyncio.sleep(1.5)  # some looks later, which begin where the one before has ended
    sql = (
        "insert into queues_message (id, queue_id, state, due_at, expires_at, payload) "
        "select nextval('queues_message_id'), %s, %s, now() - interval '1 h', "
        "case when %s then now() - interval '1 h' end, 'x' returning id"
    )
    store.rows(sql, queue, 2, False)
    store.rows(sql, queue, 0, True)
    await store.until(lambda: [row["state"] for row in store.messages(queue)] == [0], "one ready, one expired")


async def test_subscribes_that_wait_are_made_in_one_transaction_and_one_that_cannot_be_spoils_no_other(
    engine: Engine, store: Store
) -> None:
    create = engine.subscriptions.create
    made = await asyncio.gather(
        *(create(b"t/%d" % n, n % 2, None) for n in range(150)), create(b"t/x", 1, 1 << 40), return_exceptions=True
    )
    assert isinstance(made.pop(), psycopg.errors.ForeignKeyViolation)  # the key was removed meanwhile
    rows = store.rows(
        "select id, topic, qos, queue_id, next_tag, xmin::text as by from queues_subscription order by id"
    )
    found = [(row["id"], bytes(row["topic"]), row["qos"], row["queue_id"]) for row in rows]
    assert found == [(one.id, one.topic, one.qos, one.buffer.id) for one in made if isinstance(one, LocalSubscription)]
    assert [topic for _, topic, *_ in found] == [b"t/%d" % n for n in range(150)]
    assert {row["next_tag"] for row in rows} == {TAGS + 1}
    assert len({row["by"] for row in rows}) < 20
    consumer = asyncio.create_task(Consumer(made[7].buffer).bodies(1))  # type: ignore[union-attr]
    await Producer(engine).publish("topic:t/7", b"x")
    assert await consumer == [b"x"]


async def test_the_counts_of_a_long_transaction_are_folded_without_a_restart(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FOLDS_BEHIND", 1), ("SWEEP", 0.05), ("ALL_EXPIRED", 0.5)):
        monkeypatch.setattr(f"queues.engine.cluster.periodic.{name}", value)
    queue = store.queue("q")
    with store.connection.transaction():
        store.rows("insert into queues_queuetally (queue_id, ready) values (%s, 5) returning id", queue)
        engine = await make_engine()
        with psycopg.connect(store.conninfo, autocommit=True) as other:
            for _ in range(3):
                other.execute("insert into queues_queuetally (queue_id, leased) values (%s, 1)", (queue,))
                await store.until(lambda: not other.execute("select from queues_queuetally").fetchall(), "its fold")
    await store.until(lambda: not store.rows("select from queues_queuetally"), "the late one's fold")
    assert (store.counts(queue), engine.counts.reconnects) == ((5, 3, 0, 0), 0)
