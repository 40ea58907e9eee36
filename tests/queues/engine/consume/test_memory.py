"""The memory that prefetched messages take, over all queues of a process."""

from __future__ import annotations

from time import monotonic

from queues.engine.api import DetailedMessage, Engine
from queues.engine.consume.memory import OVERHEAD, Memory, weight
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker


def held(engine: Engine) -> int:
    """The weight of all messages in memory, counted anew."""
    return sum(weight(message) for buffer in engine.prefetched_queues.queues.values() for message in buffer.ready)


async def test_many_queues_with_large_messages_take_no_more_memory_than_the_process_may(
    make_engine: MakeEngine, store: Store
) -> None:
    total = 1 << 20
    names = [f"q{n}" for n in range(10)]
    for name in names:
        store.queue(name)
    engine = await make_engine(prefetch_total_bytes=total)
    producer = Producer(engine)
    for name in names:
        await producer.publish(name, *[b"x" * 50_000] * 20)
    consumers = [Consumer(await engine.queue(name)) for name in names]
    most = 0
    for _ in range(20):
        for consumer in consumers:
            await consumer.bodies(1)
            most = max(most, held(engine))
            assert engine.fetcher.limits.memory.used == held(engine)
    assert most < 2 * total, "without the budget it would be ten times as much"
    assert engine.fetcher.limits.memory.used == 0


async def test_headers_keys_and_what_a_message_takes_beside_them_count(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders")
    engine = await make_engine(segment_messages=0)
    producer = Producer(engine)
    await producer.publish("orders", *[b""] * 100)
    await producer.publish_detailed("orders", DetailedMessage(b"", headers={"h": "x" * 50_000}, key="k" * 1000))
    buffer = await engine.queue("orders")
    assert buffer.deliver(monotonic()) is None
    await store.until(lambda: len(buffer.ready) == 101, "all in memory")
    assert buffer.held.bytes > 100 * OVERHEAD + 51_000
    assert sum(len(bodies) for _, bodies in buffer.deliver_many(monotonic(), 101)) == 101
    assert (buffer.held.bytes, engine.fetcher.limits.memory.used) == (0, 0)


async def test_messages_leased_when_stored_and_pushed_ones_are_counted_alike(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("jobs")
    engine = await make_engine()
    buffer = await engine.queue("jobs")
    worker, producer = Worker(buffer), Producer(engine)
    worker.grant(1)
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await producer.publish("jobs", *[b"x" * 10] * 50)
    await producer.publish_detailed("jobs", *[DetailedMessage(b"y", headers={"n": n}) for n in range(50)])
    await worker.take(1)
    assert engine.fetcher.limits.memory.used == held(engine)
    worker.grant(99)
    await worker.take(99)
    await store.until(lambda: not buffer.ready, "all are pushed")
    assert engine.fetcher.limits.memory.used == 0


def test_a_queue_may_hold_what_is_left_for_all_and_one_message_in_any_case() -> None:
    memory = Memory(1000)
    assert memory.room(0) == 500
    memory.hold(500)
    assert memory.room(500) == 0, "one alone gets half"
    assert memory.room(0) == 250, "the next half of the rest"
    memory.hold(500)
    assert memory.room(0) == 1
    assert memory.room(10) == 0
