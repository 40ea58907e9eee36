"""The statements that a batch becomes: messages that are waited for take the short way, if nothing is before them."""

from __future__ import annotations

import asyncio

import pytest

from queues.engine.api import Engine, PrefetchedQueue
from tests.queues.engine.conftest import Consumer, Producer, Store
from tests.queues.engine.faults import Faults
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


class Waiting:
    """A consumer that waits, and has found that nothing is ready."""

    def __init__(self, buffer: PrefetchedQueue) -> None:
        self._consumer = Consumer(buffer)
        self._first = asyncio.ensure_future(self._consumer.next())

    async def bodies(self, count: int) -> list[bytes]:
        """The next messages."""
        delivery = await self._first
        assert delivery is not None
        return [delivery[1], *await self._consumer.bodies(count - 1)]


async def waiting(engine: Engine) -> Waiting:
    buffer = await engine.queue("q")
    consumer = Waiting(buffer)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    return consumer


async def test_messages_that_a_consumer_waits_for_are_one_short_statement(
    engine: Engine, store: Store, runs: Faults
) -> None:
    queue = store.queue("q")
    consumer = await waiting(engine)
    await Producer(engine).publish("q", b"1", b"2")
    assert (runs.runs["publish_leased"], runs.runs["publish_one"]) == (1, 0)
    first, second = store.messages(queue)
    assert (bytes(first["payload"]), bytes(second["payload"]), second["id"] - first["id"]) == (b"1", b"2", 1)
    assert store.counts(queue) == (0, 2, 0, 0)
    assert await consumer.bodies(2) == [b"1", b"2"]


async def test_a_message_is_not_delivered_before_one_that_came_to_its_queue_by_another_way(
    engine: Engine, store: Store, runs: Faults
) -> None:
    queue = store.queue("q")
    consumer = await waiting(engine)
    store.rows(
        "insert into queues_message (id, queue_id, state, payload)"
        " values (nextval('queues_message_id'), %s, 0, 'unheard of') returning 1", queue,
    )  # fmt: skip
    await Producer(engine).publish("q", b"1")
    assert (runs.runs["publish_leased"], runs.runs["publish_one"]) == (1, 1)
    assert await consumer.bodies(2) == [b"unheard of", b"1"]


async def test_a_message_for_a_consumer_that_waits_goes_where_its_topic_leads_by_now(
    engine: Engine, store: Store, runs: Faults
) -> None:
    store.queue("q")
    route = "insert into queues_route (source, target) values ('topic:t', %s) returning 1"
    store.rows(route, "queue:q")
    consumer = await waiting(engine)
    producer = Producer(engine)
    await producer.publish("topic:missing", b"0")  # the version of the topology is known now
    await producer.publish("topic:t", b"1")
    other = store.queue("other")
    store.rows(route, "queue:other")
    await producer.publish("topic:t", b"2")
    assert await consumer.bodies(2) == [b"1", b"2"]
    assert [bytes(row["payload"]) for row in store.messages(other)] == [b"2"]
