"""Queues with a single active consumer: one of all consumers is given messages, and order is kept when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queues.engine.api import Engine, PrefetchedQueue
from queues.engine.clock import now
from queues.engine.consume.deadlines import Burst
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting, Worker
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)

BODIES = [b"%d" % n for n in range(1, 9)]


class Poller:
    """A consumer that asks, as a BlipMQ connection does."""

    def __init__(self, buffer: PrefetchedQueue) -> None:
        self.buffer = buffer
        #: Tags by payload.
        self.tags: dict[bytes, int] = {}

    def poll(self, count: int = 1) -> list[bytes]:
        runs = self.buffer.deliver_many(now(), count, None, self)
        self.tags |= {body: tag for tags, bodies in runs for tag, body in zip(tags, bodies, strict=True)}
        return [body for _, bodies in runs for body in bodies]

    async def take(self, *bodies: bytes) -> None:
        """Poll until these have come, in this order, and nothing else."""
        taken: list[bytes] = []

        def complete() -> bool:
            taken.extend(self.poll(len(bodies) - len(taken)))
            return len(taken) >= len(bodies)

        await until(complete, lambda: f"{bodies} (now {taken})")
        assert taken == list(bodies)

    def ack(self, *bodies: bytes) -> list[int]:
        return self.buffer.deliveries.ack_many([self.tags[body] for body in bodies])

    def leave(self, **how: Any) -> None:
        self.buffer.leave(self, keep_tags=True, **how)


def line(store: Store, queue: int) -> list[bool]:
    """Whether each consumer in the line is active, in order."""
    rows = store.rows("select active from queues_consumer where queue_id = %s order by id", queue)
    return [row["active"] for row in rows]


async def in_line(store: Store, queue: int, count: int) -> None:
    """Wait until so many stand in line, the first of them active."""
    wanted = [n == 0 for n in range(count)]
    await store.until(lambda: line(store, queue) == wanted, f"{count} in line (now {line(store, queue)})")


async def workers(buffer: PrefetchedQueue, store: Store, queue: int, count: int, credits: int) -> list[Worker]:
    made = []
    for n in range(count):
        made.append(Worker(buffer))
        made[-1].grant(credits)
        await in_line(store, queue, n + 1)
    return made


def end(worker: Worker, **how: Any) -> None:
    worker.buffer.dispatcher().withdraw(worker)
    worker.buffer.leave(worker, **how)


async def test_only_the_first_consumer_is_given_messages_and_the_next_takes_over_in_order(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q", single_active_consumer=True)
    buffer = await engine.queue("q")
    first, second, third = await workers(buffer, store, queue, 3, 4)
    await producer.publish("queue:q", *BODIES)
    assert await first.bodies(4) == BODIES[:4]
    buffer.deliveries.complete_many([1])
    assert not second.pushed
    assert not third.pushed
    end(first)
    assert await second.bodies(4) == BODIES[1:5]
    assert [push.attempts for push in second.pushed] == []
    end(second)
    taken = await third.take(4)
    assert [push.payload for push in taken] == BODIES[1:5]
    assert [push.attempts for push in taken] == [2, 2, 2, 1]
    await in_line(store, queue, 1)


async def test_waiters_are_served_in_turn(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("q", single_active_consumer=True)
    buffer = await engine.queue("q")
    first, second = Waiting(), Waiting()
    buffer.wait(first)
    await in_line(store, queue, 1)
    buffer.wait(second)
    await producer.publish("queue:q", *BODIES)
    delivery = await asyncio.wait_for(first.delivered, PATIENCE)
    assert delivery is not None
    assert delivery[1] == b"1"
    assert buffer.deliveries.ack(delivery[0])
    assert not second.delivered.done()
    buffer.leave(first)
    delivery = await asyncio.wait_for(second.delivered, PATIENCE)
    assert delivery is not None
    assert delivery[1] == b"2"


async def test_a_consumer_that_may_finish_is_followed_when_it_has(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q", single_active_consumer=True)
    first, second = await workers(await engine.queue("q"), store, queue, 2, 2)
    await producer.publish("queue:q", *BODIES)
    taken = await first.take(2)
    end(first, finish=True)
    buffer = first.buffer
    assert buffer.deliveries.complete_many([taken[0].tag]) == []
    await producer.publish("queue:q", b"9")
    assert not second.pushed
    assert line(store, queue) == [True, False]
    buffer.deliveries.complete(taken[1].tag, None)
    assert await second.bodies(2) == BODIES[2:4]
    await in_line(store, queue, 1)


async def test_one_that_ends_while_it_may_finish_hands_back(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("q", single_active_consumer=True)
    first, second = await workers(await engine.queue("q"), store, queue, 2, 2)
    await producer.publish("queue:q", *BODIES)
    await first.take(2)
    end(first, finish=True)
    first.buffer.leave(first)
    assert await second.bodies(2) == BODIES[:2]


async def test_messages_of_a_consumer_that_ends_too_often_are_given_up(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q", single_active_consumer=True, max_attempts=2)
    buffer = await engine.queue("q")
    await producer.publish("queue:q", b"1", b"2")
    for _ in range(2):
        worker = Worker(buffer)
        worker.grant(1)
        assert await worker.bodies(1) == [b"1"]
        end(worker)
    last = Worker(buffer)
    last.grant(1)
    assert await last.bodies(1) == [b"2"]
    await store.until(lambda: store.counts(queue) == (0, 1, 0, 1), "a dead letter")


async def test_a_handover_without_fault_counts_no_attempt(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("q", single_active_consumer=True)
    first, second = await workers(await engine.queue("q"), store, queue, 2, 1)
    await producer.publish("queue:q", b"1")
    await first.take(1)
    end(first, count=False)
    [push] = await second.take(1)
    assert push.attempts == 0


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
async def test_the_next_consumer_is_on_another_node(make_engine: MakeEngine, store: Store, audited: bool) -> None:
    queue = store.queue("q", single_active_consumer=True, audited=audited)
    here, there = await make_engine(), await make_engine()
    producer = Producer(there)
    first = Poller(await here.queue("q"))
    first.poll()
    await in_line(store, queue, 1)
    second = Poller(await there.prefetched_queues.open(queue, 1000))  # as a subscription's, with tags of its own
    second.poll()
    await in_line(store, queue, 2)
    await producer.publish("queue:q", *BODIES)
    await first.take(*BODIES[:4])
    assert first.ack(b"1") == []
    assert second.poll(10) == []
    first.leave()
    await second.take(*BODIES[1:])
    await in_line(store, queue, 1)
    assert second.ack(*BODIES[1:]) == []
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "all settled")


async def test_a_late_acknowledgement_settles_what_the_next_consumer_has_not_been_given(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q", single_active_consumer=True)
    buffer = await engine.queue("q")
    first, second = Poller(buffer), Poller(buffer)
    await producer.publish("queue:q", *BODIES[:3])
    await first.take(b"1")
    assert second.poll(3) == []
    await first.take(b"2", b"3")
    first.leave()
    second.poll(0)
    await second.take(b"1")
    assert first.ack(b"2") == []
    await second.take(b"3")
    assert first.ack(b"1") == []  # it is with the second one: settled all the same
    assert second.ack(b"3") == []
    await store.until(lambda: store.counts(queue) == (0, 0, 0, 0), "all settled")


async def test_the_deadline_of_a_former_consumer_is_not_the_next_ones(
    engine: Engine, producer: Producer, store: Store
) -> None:
    store.queue("q", single_active_consumer=True, retry_backoff="1 hour")
    buffer = await engine.queue("q")
    first, second = Poller(buffer), Poller(buffer)
    await producer.publish("queue:q", b"1")
    await first.take(b"1")
    tag = first.tags[b"1"]
    made = buffer.unacked[tag][2]
    first.leave()
    await second.take(b"1")
    assert second.tags[b"1"] == tag
    buffer.deliveries.expire(Burst(buffer.deliveries, None, [(tag,)], made), now() + 3600)
    assert tag in buffer.unacked
    buffer.deliveries.expire(Burst(buffer.deliveries, None, [(tag,)], buffer.unacked[tag][2]), now() + 3600)
    assert tag not in buffer.unacked


async def test_a_purge_a_pause_and_priorities_go_on(engine: Engine, producer: Producer, store: Store) -> None:
    queue = store.queue("q", single_active_consumer=True, concurrency_limit=2)
    first, second = await workers(await engine.queue("q"), store, queue, 2, 5)
    await producer.publish("queue:q", *BODIES)
    assert await first.bodies(2) == BODIES[:2]
    assert first.buffer.deliveries.complete_many([1]) == []
    assert await first.bodies(1) == [b"3"]
    store.rows("update queues_queue set paused = true where id = %s returning 1", queue)
    await until(lambda: first.buffer.policy.paused, "the pause is known")
    end(first)
    await in_line(store, queue, 1)
    assert not second.pushed
    store.rows("update queues_queue set paused = false where id = %s returning 1", queue)
    assert await second.bodies(2) == BODIES[1:3]


async def test_the_policy_is_switched_on_and_off_while_consumers_wait(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q")
    buffer = await engine.queue("q")
    first, second = Worker(buffer), Worker(buffer)
    first.grant(10)
    second.grant(10)
    store.rows("update queues_queue set single_active_consumer = true where id = %s returning 1", queue)
    await in_line(store, queue, 2)
    await producer.publish("queue:q", *BODIES[:4])
    assert await first.bodies(4) == BODIES[:4]
    assert not second.pushed
    store.rows("update queues_queue set single_active_consumer = false where id = %s returning 1", queue)
    await store.until(lambda: line(store, queue) == [], "no line")
    for body in BODIES[4:]:
        await producer.publish("queue:q", body)
    await until(lambda: second.pushed and len(first.pushed) + len(second.pushed) == 4, "both are served")


async def test_a_node_that_has_lost_the_database_begins_a_new_line(
    engine: Engine, producer: Producer, store: Store
) -> None:
    queue = store.queue("q", single_active_consumer=True)
    first, second = await workers(await engine.queue("q"), store, queue, 2, 2)
    await producer.publish("queue:q", *BODIES)
    await first.take(2)
    node = engine.node
    store.cut()
    await until(lambda: engine.available and engine.node != node, "the new node")
    await in_line(store, queue, 2)
    first.grant(2)
    assert await first.bodies(2) == BODIES[:2]
    end(first)
    assert await second.bodies(2) == BODIES[:2]


async def test_dead_letters_are_read_by_every_consumer(engine: Engine, producer: Producer, store: Store) -> None:
    store.queue("q", single_active_consumer=True)
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    worker.grant(2)
    await producer.publish("queue:q", b"1", b"2")
    for push in await worker.take(2):
        buffer.deliveries.bury(push.tag, "no")
    dead = await engine.dead_letters("q")
    assert await Consumer(dead).bodies(1, ack=False) == [b"1"]
    assert await Consumer(dead).bodies(1, ack=False) == [b"2"]


async def test_a_queue_that_is_removed_refuses_those_that_wait(engine: Engine, store: Store) -> None:
    queue = store.queue("q", single_active_consumer=True)
    buffer = await engine.queue("q")
    first, second = Waiting(), Waiting()
    buffer.wait(first)
    await in_line(store, queue, 1)
    buffer.wait(second)
    await in_line(store, queue, 2)
    store.rows("delete from queues_queue where id = %s returning 1", queue)
    assert await asyncio.wait_for(second.delivered, PATIENCE) is None
    assert await asyncio.wait_for(first.delivered, PATIENCE) is None
    assert line(store, queue) == []
