"""A fault costs only the unit that it hits: faults in each statement, rows that no statement may change, sessions
that raise. The node is the same before and after, and a neighbour's messages go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queues.engine.api import Delivery, Destination, Engine
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting, Worker
from tests.queues.engine.faults import Faults, unwritable
from tests.queues.engine.mailbox.test_service import Peer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture
def peers_key() -> int:
    return create_key("peers")[0].pk


async def until_new(engine: Engine, store: Store, node: int) -> None:
    await store.until(lambda: engine.available and engine.node != node, "the new node")


async def goes_on(engine: Engine, queue: str = "neighbour") -> None:
    """A neighbour publishes, consumes and acknowledges as if nothing were."""
    producer, buffer = Producer(engine), await engine.queue(queue)
    await producer.publish(queue, b"1", b"2")
    assert await Consumer(buffer).bodies(2) == [b"1", b"2"]
    assert not producer.failed


async def settled(engine: Engine, store: Store, queue: int) -> None:
    await store.until(lambda: engine.settlements.idle and not store.messages(queue), "the settlement")


async def test_a_server_that_refuses_for_now_keeps_publishes_and_acknowledgements_until_it_takes_them(
    make_engine: MakeEngine, store: Store, faults: Faults
) -> None:
    engine = await make_engine()
    queue, _ = store.queue("orders"), store.queue("later")
    producer, buffer = Producer(engine), await engine.queue("orders")
    node, consumer = engine.node, Consumer(buffer)
    await producer.publish("orders", b"before")
    taken = await consumer.next()
    assert taken is not None
    faults.put("publish_one", "53100", times=1000)
    batch = producer.send("later", b"after")
    await faults.until_hit("publish_one", 2)
    assert any("the database's disk is full" in reason for reason in engine.unready_reasons())
    assert buffer.deliveries.ack(taken[0])
    await store.until(lambda: store.archived(queue), "what frees the disk: acknowledgements go on")
    faults.clear()
    await producer.wait(batch)
    assert await Consumer(await engine.queue("later")).bodies(1) == [b"after"]
    assert (engine.node, engine.counts.reconnects, producer.failed) == (node, 0, [])
    await store.until(lambda: not engine.unready_reasons(), "it is ready again")


async def test_a_deadlock_is_done_again_and_costs_nothing(
    make_engine: MakeEngine, store: Store, faults: Faults
) -> None:
    engine = await make_engine()
    store.queue("orders")
    producer = Producer(engine)
    faults.put("publish_one", "40P01", times=2)
    await producer.publish("orders", b"1")
    assert (faults.hits["publish_one"], producer.failed, sum(engine.health.isolated.values())) == (2, [], 0)


@pytest.mark.parametrize("state", ["53100", "40P01"])
async def test_a_claim_of_one_message_that_the_server_refuses_for_now_does_not_stop_its_queue(
    make_engine: MakeEngine, store: Store, faults: Faults, state: str
) -> None:
    engine = await make_engine()
    store.queue("orders", concurrency_limit=1)  # so that no more is claimed than is asked for
    await Producer(engine).publish("orders", b"1")
    faults.put("claim", state)
    consumer = Consumer(await engine.queue("orders"))
    delivery = await consumer.next()
    assert delivery is not None
    assert (faults.hits["claim"], engine.counts.reconnects) == (1, 0)


async def test_a_message_that_cannot_be_stored_is_refused_and_the_rest_of_its_batch_is_not(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    producer = Producer(engine)
    async with unwritable(store, "insert"):
        await producer.publish("orders", *[b"%d" % n for n in range(300)], b"poison", *[b"%d" % n for n in range(300)])
    assert [token for token, _ in producer.failed] == [300]
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"%d" % n for n in range(300)] * 2
    assert engine.health.isolated == {"publish": 1}
    assert engine.counts.reconnects == 0


async def test_a_message_that_cannot_be_removed_becomes_a_dead_letter_and_the_rest_is_settled(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    producer, buffer = Producer(engine), await engine.queue("orders")
    await producer.publish("orders", b"1", b"poison", b"2")
    async with unwritable(store, "delete"):
        assert await Consumer(buffer).bodies(3) == [b"1", b"poison", b"2"]
        await store.until(lambda: store.counts(queue) == (0, 0, 0, 1), "the dead letter")
    assert engine.settlements.unsettled == 0
    assert (engine.health.isolated, engine.counts.reconnects) == ({"settlement": 1}, 0)


async def test_a_message_that_cannot_be_returned_becomes_a_dead_letter_and_the_rest_is_returned(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    producer, buffer = Producer(engine), await engine.queue("orders")
    await producer.publish("orders", b"1", b"poison", b"2")
    consumer = Consumer(buffer)
    async with unwritable(store, "update", when="new.state = 2"):
        for _ in range(3):
            delivery = await consumer.next()
            assert delivery is not None
            buffer.deliveries.give_back(delivery[0], delay=3600.0)
        await store.until(lambda: store.counts(queue) == (0, 0, 2, 1), "the dead letter, and the others' return")
    assert (engine.health.isolated, engine.counts.reconnects) == ({"return": 1}, 0)


async def test_a_message_that_cannot_be_claimed_becomes_a_dead_letter_and_the_queue_goes_on(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    await Producer(engine).publish("orders", *[b"%d" % n for n in range(50)], b"poison", b"last")
    async with unwritable(store, "update", when="new.state = 1"):
        bodies = await Consumer(await engine.queue("orders")).bodies(51)
    assert bodies == [*[b"%d" % n for n in range(50)], b"last"]
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 1), "the dead letter")
    assert engine.counts.reconnects == 0


async def test_a_letter_that_cannot_be_stored_ends_its_senders_connection_and_no_others(
    make_engine: MakeEngine, store: Store, peers_key: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine(mailboxes=True)
    key = peers_key
    bad, good, reader = [await Peer(engine, name, key).here() for name in ("bad", "good", "reader")]
    async with unwritable(store, "insert", b"body of poison"):
        bad.post("reader", "poison")
        await good.send("reader", "a", "b")
        await bad.until(lambda: "refused" in bad.told)
    assert await reader.got(2) == ["a", "b"]
    assert (good.error, reader.error, engine.counts.reconnects) == (None, None, 0)
    assert engine.health.isolated["letter"] == engine.mailboxes.dropped["failed"] == 1
    assert "one letter failed" in caplog.text


class Broken(Waiting):
    """A consumer whose session raises."""

    ended = False

    def deliver(self, delivery: Delivery) -> None:
        raise AssertionError("a session's mistake")

    def break_off(self) -> None:
        self.ended = True


async def test_a_consumer_that_raises_loses_its_connection_and_the_next_gets_the_message(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    store.queue("orders")
    buffer, broken = await engine.queue("orders"), Broken()
    buffer.wait(broken)
    await Producer(engine).publish("orders", b"1", b"2")
    assert sorted(await Consumer(buffer).bodies(2)) == [b"1", b"2"]
    assert broken.ended
    assert (engine.health.isolated["session"], engine.counts.reconnects) == (1, 0)


class BrokenWorker(Worker):
    def push(self, messages: list[Any], deadline: float | None) -> None:
        raise TypeError("a session's mistake")


async def test_a_worker_that_raises_gets_no_more_and_another_gets_its_messages(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    store.queue("orders")
    buffer = await engine.queue("orders")
    broken, worker = BrokenWorker(buffer), Worker(buffer)
    broken.grant(10)
    await Producer(engine).publish("orders", b"1")
    await store.until(lambda: engine.health.isolated["session"], "the failure")
    worker.grant(10)
    assert await worker.bodies(1) == [b"1"]
    assert (broken.credits, engine.counts.reconnects) == (0, 0)


async def test_a_publisher_that_raises_when_it_is_told_keeps_no_other_from_its_answer(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    store.queue("orders")

    class BrokenProducer(Producer):
        def publish_failed(self, token: int, error: Any) -> None:
            raise ValueError("a session's mistake")

        def release(self) -> None:
            raise UnicodeError("a session's mistake")

    broken, good = BrokenProducer(engine), Producer(engine)
    source = engine.publisher(Destination.parse("nowhere"))
    source.publish(b"1", broken, 1)
    source.publish(b"2", good, 2)
    await good.wait(engine.open_batch)
    assert [token for token, _ in good.failed] == [2]
    await good.publish("orders", b"3")
    assert engine.counts.reconnects == 0


async def test_an_engine_that_loses_its_connections_again_and_again_is_not_ready(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine()
    for _ in range(3):
        assert not engine.unready_reasons()
        node = engine.node
        store.cut("writer")
        await until_new(engine, store, node)
    assert any("3 times" in reason for reason in engine.unready_reasons())
    monkeypatch.setattr("queues.engine.health.RESTARTS_WITHIN", 0.0)
    assert engine.unready_reasons() == []


async def test_a_queue_goes_on_though_it_cannot_be_told_at_once_which_message_cannot_be_claimed(
    make_engine: MakeEngine, store: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)
    engine = await make_engine()
    queue = store.queue("orders")
    for body in (b"1", b"poison", b"2"):
        store.insert(queue, body)
    faults.put("first_ready", "40P01")
    async with unwritable(store, "update", when="new.state = 1"):
        assert await Consumer(await engine.queue("orders")).bodies(2) == [b"1", b"2"]
    assert (faults.hits["first_ready"], engine.counts.reconnects) == (1, 0)


async def test_a_peer_gets_its_letters_though_it_cannot_be_told_at_once_which_one_cannot_be_fetched(
    make_engine: MakeEngine, store: Store, faults: Faults, peers_key: int
) -> None:
    engine = await make_engine(mailboxes=True)
    sender, reader = await Peer(engine, "sender", peers_key).here(), await Peer(engine, "reader", peers_key).here()
    reader.leave()
    await sender.send("reader", "a", "poison", "b")
    faults.put("first_ready", "40P01")
    async with unwritable(store, "update", b"body of poison", when="new.state = 1"):
        reader = await Peer(engine, "reader", peers_key).here()
        assert await reader.got(2) == ["a", "b"]
    assert (faults.hits["first_ready"], reader.error, engine.counts.reconnects) == (1, None, 0)


async def test_a_dead_letter_that_cannot_be_read_does_not_keep_the_node_busy(
    make_engine: MakeEngine, store: Store, faults: Faults
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    store.insert(queue, b"poison")
    await store.change("update queues_message set state = 3, dead_at = now() returning 1")
    async with unwritable(store, "update"):
        waiting = Waiting()
        (await engine.dead_letters("orders")).wait(waiting)
        await store.until(lambda: engine.health.isolated["claim"], "the failure")
        await goes_on_after(engine, store)
        assert engine.health.isolated["claim"] == 1, "it is looked at again in some seconds"


async def goes_on_after(engine: Engine, store: Store) -> None:
    """As `goes_on`, for a queue that there is not yet; some claims are made meanwhile."""
    await asyncio.to_thread(store.queue, "neighbour")
    await goes_on(engine)


async def test_upkeep_that_fails_for_ever_keeps_no_other_from_being_done(
    make_engine: MakeEngine, store: Store, faults: Faults
) -> None:
    faults.put("make_partitions", times=1000)
    engine = await make_engine(idle_subscription_days=7, idle_subscription_notice=0)
    await store.until(lambda: faults.runs["forget_letters"], "what comes after it")
    assert all(faults.runs[name] for name in ("drop_partitions", "drop_old_log_lines", "drop_idle_subscriptions"))
    assert (engine.health.isolated["upkeep"], engine.counts.reconnects) == (1, 0)
