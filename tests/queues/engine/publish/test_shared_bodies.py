"""Messages for several queues with consumers waiting: their bodies are stored once, and each queue has them."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from queues.engine.api import Delivery, Engine, PrefetchedQueue
from queues.engine.consume.memory import OVERHEAD
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

#: A turn that does not end within a test, and one that does.
EVER, TURN = 600.0, 0.2
BODIES = [b"one", b"", b"three", b"four"]


class Taken(NamedTuple):
    """The messages that one queue's consumer has."""

    buffer: PrefetchedQueue
    deliveries: list[Delivery]

    @property
    def bodies(self) -> list[bytes]:
        return [delivery[1] for delivery in self.deliveries]

    @property
    def tags(self) -> list[int]:
        return [delivery[0] for delivery in self.deliveries]


async def taken(engine: Engine, store: Store, *bodies: bytes, served: str = "ab", others: str = "") -> list[Taken]:
    """Publish messages together to a topic with a route to each queue, of which some have consumers: what they get."""
    for name in served + others:
        if not store.rows("select from queues_queue where name = %s", name):
            store.queue(name)
            store.rows("insert into queues_route (source, target) values ('topic:t', %s) returning 1", f"queue:{name}")
    buffers = [await engine.queue(name) for name in served]
    first = [asyncio.ensure_future(Consumer(buffer).next()) for buffer in buffers]
    for buffer in buffers:
        await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "an empty claim")  # noqa: B023
    await Producer(engine).publish("topic:t", *bodies)
    found = []
    for buffer, coming in zip(buffers, first, strict=True):
        deliveries = [await coming] + [await Consumer(buffer).next() for _ in bodies[1:]]
        found.append(Taken(buffer, [delivery for delivery in deliveries if delivery is not None]))
    return found


def kept(store: Store, table: str) -> int:
    return int(store.rows(f"select count(*) as n from {table} where slot > 0")[0]["n"])


def ids_of(store: Store) -> list[int]:
    return [row["id"] for row in store.rows("select id from queues_queue where name in ('a', 'b') order by name")]


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine(segment_messages=2, turn=EVER)


async def test_bodies_are_stored_once_for_all_queues_with_consumers(engine: Engine, store: Store) -> None:
    a, b = await taken(engine, store, *BODIES)
    assert a.bodies == b.bodies == BODIES
    [stored] = store.rows("select bodies from queues_segmentbody")
    assert [bytes(body) for body in stored["bodies"]] == BODIES
    assert store.rows("select from queues_segment where bodies is not null") == []
    for queue in ids_of(store):
        assert [bytes(row["payload"]) for row in store.messages(queue)] == BODIES, "what operators see"
    for got in (a, b):
        assert got.buffer.deliveries.ack_many(got.tags) == []
    await until(lambda: engine.settlements.idle, "the settlements")
    for queue in ids_of(store):
        assert [row["size"] for row in store.archived(queue)] == list(map(len, BODIES))
        assert store.messages(queue) == []
    engine.maintenance.node.turn = TURN
    await store.until(lambda: not kept(store, "queues_segmentbody"), "the truncation of bodies, too")


async def test_a_queue_without_a_consumer_has_a_copy_that_outlives_the_shared_one(engine: Engine, store: Store) -> None:
    a, b = await taken(engine, store, *BODIES, others="c")
    [waiting] = store.rows("select bodies from queues_segment where slot = 0")
    assert [bytes(body) for body in waiting["bodies"]] == BODIES
    for got in (a, b):
        assert got.buffer.deliveries.ack_many(got.tags) == []
    await until(lambda: engine.settlements.idle, "the settlements")
    engine.maintenance.node.turn = TURN
    await store.until(lambda: not kept(store, "queues_segmentbody"), "the truncation of bodies")
    assert await Consumer(await engine.queue("c")).bodies(4) == BODIES


async def test_bodies_of_one_queue_are_stored_with_it(engine: Engine, store: Store) -> None:
    [a] = await taken(engine, store, *BODIES, served="a", others="b")
    assert a.bodies == BODIES
    assert store.rows("select from queues_segmentbody") == []


@pytest.mark.parametrize(("size", "times"), [(5000, 1), (3000, 0)])
async def test_a_single_message_is_shared_when_that_saves_much(
    engine: Engine, store: Store, size: int, times: int
) -> None:
    a, b = await taken(engine, store, bytes(size))
    assert a.bodies == b.bodies == [bytes(size)]
    assert len(store.rows("select from queues_segmentbody")) == times
    for got in (a, b):
        assert got.buffer.deliveries.ack_many(got.tags) == []
    await until(lambda: engine.settlements.idle, "the settlements")
    assert [row["size"] for queue in ids_of(store) for row in store.archived(queue)] == [size, size]


async def test_a_message_that_is_returned_takes_its_body_along(engine: Engine, store: Store) -> None:
    a, b = await taken(engine, store, *BODIES)
    a.buffer.deliveries.give_back(a.tags[2], delay=0.0, error="failed")
    assert a.buffer.deliveries.ack_many(a.tags[:2]) == []
    again = await Consumer(a.buffer).next()
    assert again is not None
    assert (again[1], again[2]) == (b"three", 1)
    assert a.buffer.deliveries.ack_many([again[0], a.tags[3]]) == []
    assert b.buffer.deliveries.ack_many(b.tags) == []
    await until(lambda: engine.settlements.idle, "the settlements")
    for queue in ids_of(store):
        assert sorted(row["size"] for row in store.archived(queue)) == sorted(map(len, BODIES))
        assert store.messages(queue) == []


async def test_what_consumers_keep_beyond_a_turn_has_its_bodies_when_the_shared_ones_are_gone(
    engine: Engine, store: Store
) -> None:
    a, b = await taken(engine, store, *BODIES)
    assert b.buffer.deliveries.ack_many(b.tags) == []
    engine.maintenance.node.turn = TURN
    await store.until(lambda: not kept(store, "queues_segment") + kept(store, "queues_segmentbody"), "the truncation")
    first, second = ids_of(store)
    assert [bytes(row["payload"]) for row in store.messages(first)] == BODIES
    assert store.messages(second) == []
    a.buffer.deliveries.give_back(a.tags[0], delay=0.0, error="failed")
    again = await Consumer(a.buffer).next()
    assert again is not None
    assert again[1] == b"one"


async def test_messages_of_a_dead_node_come_again_with_their_bodies(make_engine: MakeEngine, store: Store) -> None:
    first = await make_engine(segment_messages=2, turn=EVER, host="first")
    a, b = await taken(first, store, *BODIES)
    assert b.buffer.deliveries.ack_many(b.tags[:2]) == []
    await until(lambda: first.settlements.idle, "the settlement")
    first.connections.hang_up()
    await first.supervisor.stop(5.0)
    await first.connections.close()
    second = await make_engine(segment_messages=2, turn=EVER, host="second")
    assert await Consumer(await second.queue("a")).bodies(4) == BODIES, "a segment of which nothing is settled"
    assert await Consumer(await second.queue("b")).bodies(2) == BODIES[2:], "what is open of the other"
    assert a.bodies == BODIES


async def test_a_slow_queue_holds_shared_bodies_up_to_its_limit_and_the_others_go_on(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(segment_messages=2, turn=EVER, prefetch_bytes=10_000)
    memory = engine.fetcher.limits.memory
    fast, slow = await taken(engine, store, b"first", b"second")
    for one in (fast, slow):
        assert one.buffer.deliveries.ack_many(one.tags) == []
    assert memory.used == 0
    published = []
    for n in range(20):
        bodies = [b"%d %d" % (n, m) + b"x" * 400 for m in range(4)]
        await Producer(engine).publish("topic:t", *bodies)
        assert await Consumer(fast.buffer).bodies(4) == bodies
        published += bodies
    assert 0 < slow.buffer.held.bytes < 10_000 + 4 * (410 + OVERHEAD)
    assert memory.used < 2 * slow.buffer.held.bytes, "what only the slow one has yet is counted"
    assert [fast.buffer.held.bytes, len(fast.buffer.ready)] == [0, 0]
    ready = store.rows("select distinct queue_id from queues_segment where slot = 0")
    assert [row["queue_id"] for row in ready] == [slow.buffer.id]
    assert await Consumer(slow.buffer).bodies(len(published)) == published
    assert memory.used == 0


async def test_shared_bodies_that_are_overtaken_are_counted_as_the_queues_own(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(segment_messages=2, turn=EVER)
    memory = engine.fetcher.limits.memory
    one, other = await taken(engine, store, b"first", b"second")
    await Producer(engine).publish("topic:t", *BODIES)
    shared = memory.used
    first = one.deliveries[0]
    one.buffer.deliveries.hand_back(first[0])  # it belongs before those here
    assert await Consumer(one.buffer).bodies(5) == [first[1], *BODIES]
    assert memory.used == shared, "the other one has them still"
    assert await Consumer(other.buffer).bodies(4) == BODIES
    assert memory.used == 0


async def test_queues_of_several_statements_share_the_bodies_in_memory(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.publish.insert_plan.MAX_STORED_BYTES", 1000)
    engine = await make_engine(segment_messages=2, turn=EVER)
    memory = engine.fetcher.limits.memory
    both = await taken(engine, store, b"first", b"second")
    bodies = [b"x" * 400] * 3
    await Producer(engine).publish("topic:t", *bodies)  # a queue a statement
    assert [one.buffer.held.bytes for one in both] == [3 * (400 + OVERHEAD)] * 2
    assert memory.used == 2 * 3 * 400 + (3 + len(both)) * OVERHEAD
    for one in both:
        assert await Consumer(one.buffer).bodies(3) == bodies
    assert memory.used == 0
