"""Counts of messages that routes have carried: each message once for every route on its way, at no statement more than
one in some seconds."""

from __future__ import annotations

import pytest

from queues.engine.api import DetailedMessage, Engine
from queues.engine.publish import route_tallies
from tests.queues.engine.conftest import MakeEngine, Producer, Store
from tests.queues.engine.faults import Faults

ROUTE = "insert into queues_route (source, target) values (%s, %s) returning id"
CARRIED = "select source || ' ' || target as route, sum(carried)::int as carried from queues_routetally" \
    " join queues_route r on r.id = route_id group by 1"  # fmt: skip


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written but when a test says so, or at the stop."""
    monkeypatch.setattr(route_tallies, "WRITE", 3600.0)


def add(store: Store, *routes: str) -> None:
    for route in routes:
        store.rows(ROUTE, *route.split())


async def carried(engine: Engine, store: Store) -> dict[str, int]:
    """The messages that each route has carried, once they are written."""
    await engine.route_tallies.write(engine.connections["requests"])
    return {row["route"]: row["carried"] for row in store.rows(CARRIED)}


async def test_each_route_on_the_way_of_a_message_counts_it_once(engine: Engine, store: Store) -> None:
    for name in "abcd":
        store.queue(name)
    # Two ways from a to d, and a route of another address.
    add(store, "queue:a queue:b", "queue:a queue:c", "queue:b queue:d", "queue:c queue:d", "topic:t queue:d")
    producer = Producer(engine)
    await producer.publish("a", b"1", b"2", b"3")
    await producer.publish("b", b"4")
    await producer.publish("d", b"5")
    assert await carried(engine, store) == {
        "queue:a queue:b": 3, "queue:a queue:c": 3, "queue:b queue:d": 4, "queue:c queue:d": 3
    }  # fmt: skip


async def test_messages_that_a_full_queue_refused_or_no_queue_took_were_carried_by_no_route(
    engine: Engine, store: Store
) -> None:
    store.queue("a", max_length=2, overflow="reject")
    store.queue("b")
    add(store, "queue:a queue:b", "queue:nowhere queue:b")
    producer = Producer(engine)
    await producer.publish("a", b"1", b"2", b"3", b"4")
    await producer.publish("nowhere", b"5")
    assert len(producer.failed) == 3
    assert await carried(engine, store) == {"queue:a queue:b": 2}


async def test_messages_with_details_and_whole_segments_are_counted_too(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine(segment_messages=10)
    store.queue("a")
    add(store, "topic:t queue:a")
    producer = Producer(engine)
    await producer.publish("topic:t", *[b"x"] * 100)
    await producer.publish_detailed("topic:t", *(DetailedMessage(b"x", headers={"n": n}) for n in range(7)))
    assert await carried(engine, store) == {"topic:t queue:a": 107}


async def test_any_number_of_publishes_is_one_statement_and_none_is_none(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("a")
    add(store, "topic:s queue:a", "topic:t queue:a")
    faults, producer = Faults(monkeypatch), Producer(engine)
    for n in range(20):
        await producer.publish(f"topic:{'st'[n % 2]}", b"1")
    before = faults.runs["tally_routes"]
    await carried(engine, store)
    await carried(engine, store)
    assert (before, faults.runs["tally_routes"]) == (0, 1)


async def test_what_could_not_be_written_is_written_the_next_time(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("a")
    add(store, "topic:t queue:a")
    producer = Producer(engine)
    await producer.publish("topic:t", b"1")
    faults = Faults(monkeypatch)
    faults.put("tally_routes")
    with pytest.raises(Exception, match="injected"):
        await carried(engine, store)
    await producer.publish("topic:t", b"2")
    assert await carried(engine, store) == {"topic:t queue:a": 2}


async def test_a_stop_writes_what_was_carried_last(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine()
    store.queue("a")
    add(store, "topic:t queue:a")
    await Producer(engine).publish("topic:t", b"1", b"2")
    await engine.stop()
    assert [row["carried"] for row in store.rows(CARRIED)] == [2]


async def test_a_route_that_was_removed_meanwhile_costs_the_others_nothing(engine: Engine, store: Store) -> None:
    store.queue("a")
    add(store, "topic:t queue:a", "topic:t topic:u")
    await Producer(engine).publish("topic:t", b"1")
    store.rows("delete from queues_route where target = 'topic:u' returning id")
    assert await carried(engine, store) == {"topic:t queue:a": 1}


async def test_a_fold_keeps_the_last_minute_and_the_totals_of_routes_that_are_left(
    engine: Engine, store: Store
) -> None:
    add(store, "topic:t queue:a", "topic:u queue:a")
    tally = "insert into queues_routetally (route_id, carried, at)" \
        " select id, %s, now() - %s::interval from queues_route where source = %s returning id"  # fmt: skip
    for count, age, source in ((5, "2 min", "topic:t"), (6, "2 h", "topic:t"), (7, "30 s", "topic:t"),
                               (8, "2 min", "topic:u")):  # fmt: skip
        store.rows(tally, count, age, source)
    store.rows("delete from queues_route where source = 'topic:u' returning id")
    for _ in range(2):
        await engine.route_tallies.fold(engine.connections["requests"])
        assert [row["carried"] for row in store.rows("select carried from queues_routecount")] == [11]
        assert [row["carried"] for row in store.rows("select carried from queues_routetally")] == [7]
