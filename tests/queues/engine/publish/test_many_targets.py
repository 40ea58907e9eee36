"""Messages to many queues in one batch: one statement, each where and with what it belongs."""

from __future__ import annotations

import pytest

from queues.engine.api import Destination, DetailedMessage, Engine
from queues.engine.clock import now
from queues.models import ApiKey
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Consumer, Producer, Store
from tests.queues.engine.faults import Faults

INSERTS = ("publish", "publish_one", "publish_detailed")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


async def test_messages_to_many_queues_are_one_statement(engine: Engine, store: Store, runs: Faults) -> None:
    queues = [store.queue(f"q{n}") for n in range(300)]
    producer = Producer(engine)
    await producer.publish("q0", b"first")  # the others come into the next batch together
    runs.runs.clear()
    batch = [producer.send(f"q{n}", b"%d" % n) for n in range(300)][-1]
    await producer.wait(batch)
    assert {name: runs.runs[name] for name in INSERTS} == {"publish": 1, "publish_one": 0, "publish_detailed": 0}
    assert runs.runs["resolve"] == runs.runs["policies"] == 1
    assert [bytes(store.messages(queue)[-1]["payload"]) for queue in queues] == [b"%d" % n for n in range(300)]
    assert [store.counts(queue) for queue in queues] == [(2, 0, 0, 0)] + 299 * [(1, 0, 0, 0)]


@pytest.fixture
def two_keys(transactional_db: None) -> list[ApiKey]:
    return [create_key(name, publish=["*"])[0] for name in ("one", "other")]


async def test_each_group_of_a_statement_keeps_what_is_its_own(
    two_keys: list[ApiKey], engine: Engine, store: Store, runs: Faults
) -> None:
    one, other = two_keys
    a, b, c = (store.queue(name) for name in "abc")
    for target in "ab":
        store.rows("insert into queues_route (source, target) values ('topic:t', %s) returning 1", f"queue:{target}")
    producer = Producer(engine)
    source = engine.publisher(Destination("queue", b"c"), one.pk)
    for token in range(2):
        source.publish(b"c%d" % token, producer, token, 7)
    wide = engine.publisher(Destination("topic", b"t"), other.pk)
    for token in range(2):
        wide.publish(b"t%d" % token, producer, token)
    await producer.wait(producer.send("a", b"a0"))
    assert {name: runs.runs[name] for name in INSERTS} == {"publish": 1, "publish_one": 0, "publish_detailed": 0}
    stored = {
        queue: [(bytes(row["payload"]), row["producer_id"], row["max_attempts"]) for row in store.messages(queue)]
        for queue in (a, b, c)
    }
    wides = [(b"t0", other.pk, None), (b"t1", other.pk, None)]
    assert stored == {a: [*wides, (b"a0", None, None)], b: wides, c: [(b"c0", one.pk, 7), (b"c1", one.pk, 7)]}
    ids = [row["id"] for queue in (a, b, c) for row in store.messages(queue)]
    assert len(set(ids)) == 7


async def test_of_many_queues_those_with_a_consumer_get_theirs_at_once(engine: Engine, store: Store) -> None:
    served, other = store.queue("served"), store.queue("other")
    queue = await engine.queue("served")
    consumer = Consumer(queue)
    producer = Producer(engine)
    await producer.publish("served", b"first")
    assert await consumer.bodies(1) == [b"first"]
    await store.until(lambda: not queue.backlog.unclaimed and queue.interest.known, "nothing is left to claim")
    queue.interest.came(now())
    batch = [producer.send(name, b"x") for name in ("other", "served")][-1]
    await producer.wait(batch)
    assert (store.counts(other), store.counts(served)[0]) == ((1, 0, 0, 0), 0)
    assert await consumer.bodies(1) == [b"x"]


async def test_a_message_with_details_between_plain_ones_keeps_its_place(
    engine: Engine, store: Store, runs: Faults
) -> None:
    queue = store.queue("q")
    producer = Producer(engine)
    source = engine.publisher(Destination("queue", b"q"))
    source.publish(b"1", producer, 1)
    source.publish_detailed(DetailedMessage(b"2", headers={"n": 2}), producer, 2)
    await producer.wait(source.publish(b"3", producer, 3))
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"1", b"2", b"3"]
    assert (runs.runs["publish_one"], runs.runs["publish_detailed"]) == (2, 1)


async def test_more_rows_than_a_statement_has_ids_for_are_several_statements(
    engine: Engine, store: Store, runs: Faults
) -> None:
    engine.writer.segment_messages = 0
    queues = [store.queue(name) for name in "ab"]
    producer = Producer(engine)
    bodies = [b"%d" % n for n in range(3000)]
    await producer.wait([producer.send(name, *bodies) for name in "ab"][-1])
    assert (runs.runs["publish_one"], runs.runs["publish"]) == (2, 0)
    assert [[bytes(row["payload"]) for row in store.messages(queue)] for queue in queues] == [bodies, bodies]
