"""When replies may say that a settlement is durable, also while the settlement writer writes other kinds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from queues.engine.api import Engine, PrefetchedQueue
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults
from tests.waiting import PATIENCE


@contextlib.asynccontextmanager
async def settling_held(engine: Engine, store: Store) -> AsyncIterator[None]:
    """A job of another queue is done, and writing that takes until the end of the block."""
    store.queue("other")
    buffer = await engine.queue("other")
    worker = Worker(buffer)
    worker.grant(1)
    await Producer(engine).publish("other", b"done")
    [push] = await worker.take(1)
    with store.connection.transaction():
        store.rows("select from queues_message where id = %s for update", push.id)
        round = engine.settling
        assert buffer.deliveries.complete(push.tag, None)
        engine.hurry_settling()
        await store.until(lambda: engine.settling > round, "the settlement writer writes")
        yield


async def given(engine: Engine, *bodies: bytes, credits: int | None = None) -> tuple[PrefetchedQueue, Worker]:
    """The queue "jobs" with these messages, so many of them pushed to a worker (None: all)."""
    buffer = await engine.queue("jobs")
    worker = Worker(buffer)
    await Producer(engine).publish("jobs", *bodies)
    credits = len(bodies) if credits is None else credits
    worker.grant(credits)
    await worker.until(lambda: len(worker.pushed) == credits)
    return buffer, worker


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
@pytest.mark.parametrize("what", ["fails", "is done", "is a dead letter", "is handed back"])
async def test_a_settlement_during_another_ones_round_is_answered_though_nothing_follows(
    make_engine: MakeEngine, store: Store, what: str, audited: bool
) -> None:
    queue = store.queue("jobs", retry_backoff="1 hour", audited=audited)
    engine = await make_engine()
    buffer, worker = await given(engine, b"1")
    async with settling_held(engine, store):
        tag = worker.pushed[0].tag
        if what == "fails":
            buffer.deliveries.give_back(tag, error="no")
        elif what == "is done":
            assert buffer.deliveries.complete(tag, None)
        elif what == "is a dead letter":
            buffer.deliveries.bury(tag, "no")
        else:
            buffer.deliveries.hand_back(tag)
        round = engine.settling
        assert engine.settles(round)
    await store.until(lambda: not engine.settles(round), "it may be answered")
    counts = {"fails": (0, 0, 1, 0), "is done": (0, 0, 0, 0), "is a dead letter": (0, 0, 0, 1)}
    assert store.counts(queue) == counts.get(what, (1, 0, 0, 0))


async def test_a_failure_that_the_loss_of_the_database_cut_off_is_answered_though_nothing_follows(
    make_engine: MakeEngine, store: Store
) -> None:
    """The node that reaps the lost lease returns the message."""
    queue = store.queue("jobs")
    engine = await make_engine()
    buffer, worker = await given(engine, b"1")
    node = engine.node
    async with settling_held(engine, store):
        buffer.deliveries.give_back(worker.pushed[0].tag, error="no")
        round = engine.settling
        store.rows("select pg_terminate_backend(%s)", engine.connections["settlements"].info.backend_pid)
        await store.until(lambda: not engine.available, "the loss is noticed")
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    await store.until(lambda: not engine.settles(round), "it may be answered")
    assert len(store.messages(queue)) == 1


async def test_a_queue_whose_messages_went_back_while_another_was_settled_is_not_stuck(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("jobs")
    engine = await make_engine()
    buffer, worker = await given(engine, b"1", b"2", b"3", credits=1)
    async with settling_held(engine, store):
        await store.until(
            lambda: not (buffer.ready or buffer.backlog.claiming or buffer.interest.known), "memory is emptied"
        )
    worker.grant(2)
    assert await worker.bodies(3) == [b"1", b"2", b"3"]


async def test_after_the_loss_of_the_database_too_a_worker_that_pauses_gets_the_next_message(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD_SHARED", 3600.0)
    store.queue("jobs")
    engine = await make_engine()
    node = engine.node
    store.rows("select pg_terminate_backend(%s)", engine.connections["settlements"].info.backend_pid)
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    buffer, worker = await given(engine, b"1", b"2", b"3", credits=1)
    assert buffer.ready
    with store.connection.transaction():
        store.rows("select from queues_message where id = %s for update", buffer.ready[0][0])
        monkeypatch.setattr("queues.engine.consume.interest.COLD_SHARED", 0.0)
        buffer.interest.tidy_soon()  # it was to be looked at after the time that held before
        await store.until(lambda: not (buffer.ready or buffer.interest.known), "memory is emptied")
        worker.grant(1)
        await Producer(engine).publish("jobs", b"4")
        assert [push.payload for push in worker.pushed] == [b"1"]
    assert await worker.bodies(2) == [b"1", b"2"]


class Barrier:
    """A reply that waits while too many acknowledgements are unwritten, as a PONG of BlipMQ does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sent = asyncio.Event()
        engine.hold(self)

    def release(self) -> None:
        if not self._engine.behind:
            self.sent.set()


async def test_a_barrier_does_not_wait_for_the_record_of_another_audited_queue(
    make_engine: MakeEngine, store: Store
) -> None:
    """A client acknowledges what the barrier has told it of, and the time for that runs."""
    taken = []
    for name in ("first", "second"):
        store.queue(name, audited=True)
    engine = await make_engine(most_unsettled=1)
    for name in ("first", "second"):
        buffer = await engine.queue(name)
        await Producer(engine).publish(name, b"1")
        delivery = await Consumer(buffer).next()
        assert delivery is not None
        taken.append((buffer, delivery[0]))
    await store.until(lambda: engine.settlements.idle, "the deliveries are recorded")
    head = "select from queues_audithead where chain_id = (select id from queues_auditchain where name = %s) for update"
    with store.connection.transaction():
        store.rows(head, "queue:second")
        assert all(buffer.deliveries.ack(tag) for buffer, tag in taken)
        barrier = Barrier(engine)
        assert engine.behind
        async with asyncio.timeout(PATIENCE):
            await barrier.sent.wait()
        assert engine.settlements.unsettled == 1
    engine.unhold(barrier)
    await store.until(lambda: engine.settlements.idle, "the other record")


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
async def test_a_message_that_was_acknowledged_late_is_not_delivered_again_while_that_is_written(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, audited: bool
) -> None:
    engine, faults = await make_engine(), Faults(monkeypatch)
    subscription = await engine.subscriptions.create(b"t", 1, None)
    buffer = subscription.buffer
    if audited:
        store.rows("update queues_queue set audited = true where id = %s returning id", buffer.id)
        await store.until(lambda: buffer.audited, "the queue is audited")
    await Producer(engine).publish("topic:t", b"1")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    buffer.deliveries.give_back(delivery[0], delay=0.0, keep_tag=True)
    faults.put("lock_late", "53100", times=1000)  # the server refuses it for now
    assert await engine.subscriptions.ack_late(subscription, [delivery[0]], None) == set()
    await faults.until_hit("lock_late")
    await Producer(engine).publish("topic:t", b"2")
    assert await Consumer(buffer).bodies(1) == [b"2"]
    faults.clear()
    await store.until(lambda: not store.messages(buffer.id), "the settlements")
    assert store.counts(buffer.id) == (0, 0, 0, 0)


async def test_acknowledgements_of_several_queues_and_keys_are_one_statement_and_archived_by_queue(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = {name: store.queue(name, retention=name) for name in ("full", "metadata", "none")}
    engine, faults = await make_engine(), Faults(monkeypatch)
    taken: list[tuple[PrefetchedQueue, int]] = []
    for name in queues:
        await Producer(engine).publish(name, b"1", b"2")
        buffer = await engine.queue(name)
        for _ in range(2):
            delivery = await Consumer(buffer).next()
            assert delivery is not None
            taken.append((buffer, delivery[0]))
    async with settling_held(engine, store):
        before = faults.runs["settle"]
        for n, (buffer, tag) in enumerate(taken):
            assert buffer.deliveries.ack(tag, 1 + n % 2)
    await store.until(lambda: engine.settlements.idle, "the settlement")
    assert faults.runs["settle"] == before + 1
    assert [store.counts(queue) for queue in queues.values()] == [(0, 0, 0, 0)] * 3
    kept = {
        name: [(row["consumer_id"], row["payload"] and bytes(row["payload"])) for row in store.archived(queue)]
        for name, queue in queues.items()
    }
    assert kept == {"full": [(1, b"1"), (2, b"2")], "metadata": [(1, None), (2, None)], "none": []}
    assert all(row["delivered_at"] and not row["job"] for row in store.archived(queues["full"]))
