"""The engine's support of jobs: pushes for credits, deadlines, priorities, ids, keys, results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import psycopg
import pytest

from queues.engine.api import (
    Content,
    Destination,
    DetailedMessage,
    Engine,
    EngineError,
    QueueNotFound,
    QueuePolicy,
    StoreUnavailable,
)
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.waiting import PATIENCE


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the messages that were claimed for workers in memory, however long these need."""
    monkeypatch.setattr("queues.engine.consume.interest.COLD_SHARED", 3600.0)


class Asker(Producer):
    """A producer that wants to know ids."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.ids: dict[int, int | None] = {}

    def published(self, tokens: list[int], ids: Sequence[int | None], queue: QueuePolicy) -> None:
        self.ids.update(zip(tokens, ids, strict=True))

    async def ask(self, address: str, *messages: bytes | DetailedMessage) -> list[int | None]:
        source = self.engine.publisher(Destination.parse(address))
        batch = 0
        for token, message in enumerate(messages):
            if isinstance(message, DetailedMessage):
                batch = source.publish_detailed(message, self, token, True)
            else:
                batch = source.publish_answered(message, Content.MSGPACK, self, token, None)
        await self.wait(batch)
        return [self.ids.pop(token) for token in range(len(messages)) if token in self.ids]


async def test_a_worker_is_pushed_as_many_messages_as_it_has_credits(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q")
    engine = await make_engine()
    worker = Worker(await engine.queue("q"))
    await Producer(engine).publish("queue:q", b"1", b"2", b"3")
    worker.grant(2)
    assert await worker.bodies(2) == [b"1", b"2"]
    assert worker.credits == 0
    worker.grant(1)
    assert await worker.bodies(1) == [b"3"]


async def test_messages_are_dealt_out_among_the_workers(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    workers = [Worker(buffer) for _ in range(3)]
    for worker in workers:
        worker.grant(100)
    await Producer(engine).publish("queue:q", *(b"%d" % n for n in range(30)))
    for worker in workers:
        await worker.until(lambda worker=worker: len(worker.pushed) >= 10)
    assert [len(worker.pushed) for worker in workers] == [10, 10, 10]


async def test_a_worker_alone_is_pushed_all_at_once_and_several_take_turns(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer, producer = await engine.queue("q"), Producer(engine)
    bodies = [b"%d" % n for n in range(300)]
    alone = Worker(buffer)
    alone.grant(300)
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await producer.publish("queue:q", *bodies)
    assert (await alone.bodies(300), len(alone.deadlines)) == (bodies, 1)
    workers = [Worker(buffer), Worker(buffer)]
    for worker in workers:
        worker.grant(150)
    await producer.publish("queue:q", *bodies)
    for worker, [first, last] in zip(workers, [(b"0", b"249"), (b"100", b"299")], strict=True):
        taken = await worker.bodies(150)
        assert (taken[0], taken[-1], len(worker.deadlines)) == (first, last, 2)


async def test_a_worker_that_withdraws_is_pushed_nothing(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    gone, stays = Worker(buffer), Worker(buffer)
    gone.grant(5)
    stays.grant(5)
    buffer.dispatcher().withdraw(gone)
    await Producer(engine).publish("queue:q", b"1", b"2", b"3")
    assert await stays.bodies(3) == [b"1", b"2", b"3"]
    assert gone.pushed == []
    assert buffer.interest.demand == 2


async def test_a_job_past_its_deadline_is_delivered_to_another_worker(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q", ack_timeout="0.2 s", retry_backoff="0.01 s")
    engine = await make_engine()
    buffer = await engine.queue("q")
    slow, quick = Worker(buffer), Worker(buffer)
    slow.grant(2)
    await Producer(engine).publish("queue:q", b"late", b"done")
    late, done = await slow.take(2)
    assert buffer.deliveries.complete(done.tag, None)
    quick.grant(2)
    [again] = await quick.take(1)
    assert (again.payload, again.attempts, again.id) == (b"late", 1, late.id)
    assert slow.lost == [late.tag]
    assert not buffer.deliveries.complete(late.tag, None)
    assert buffer.deliveries.complete(again.tag, None)


async def test_all_jobs_that_were_pushed_together_have_the_deadline(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q", ack_timeout="0.2 s")
    engine = await make_engine()
    jobs = [DetailedMessage(b"%d" % n, max_attempts=9 if n == 2 else None) for n in range(4)]
    await Producer(engine).publish_detailed("queue:q", *jobs)
    worker = Worker(await engine.queue("q"))
    worker.grant(4)
    pushed = await worker.take(4)
    assert len(worker.deadlines) == 1  # they were one push, of unlike jobs
    await worker.until(lambda: len(worker.lost) == 4)
    assert sorted(worker.lost) == [push.tag for push in pushed]


async def test_a_worker_that_is_still_at_it_keeps_its_message(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q", ack_timeout="0.25 s", retry_backoff="0.01 s")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker, other = Worker(buffer), Worker(buffer)
    worker.grant(1)
    await Producer(engine).publish("queue:q", b"long", b"other")
    [push] = await worker.take(1)
    other.grant(1)
    [forgotten] = await other.take(1)
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert buffer.deliveries.beat(push.tag) is not None
    assert other.lost == [forgotten.tag]  # the clock has run
    assert worker.lost == []
    assert buffer.deliveries.complete(push.tag, None)
    with pytest.raises(KeyError):
        buffer.deliveries.beat(push.tag)


async def test_higher_priorities_come_first_and_within_one_the_first(make_engine: MakeEngine, store: Store) -> None:
    store.queue("q")
    engine = await make_engine()
    worker = Worker(await engine.queue("q"))
    producer = Producer(engine)
    order = [(b"low", -1), (b"a", 0), (b"high 1", 5), (b"b", 0), (b"high 2", 5), (b"top", 100), (b"bottom", -100)]
    await producer.publish_detailed("queue:q", *(DetailedMessage(body, priority=priority) for body, priority in order))
    worker.grant(7)
    assert await worker.bodies(7) == [b"top", b"high 1", b"high 2", b"a", b"b", b"low", b"bottom"]


async def test_messages_published_together_come_by_priority_also_from_memory(
    make_engine: MakeEngine, store: Store, warm: None
) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker, producer = Worker(buffer), Producer(engine)
    worker.grant(1)
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await producer.publish("queue:q", b"first")
    assert await worker.bodies(1) == [b"first"]
    order = [(b"a", 0), (b"high", 5), (b"low", -5), (b"top 1", 100), (b"b", 0), (b"bottom", -100), (b"top 2", 100)]
    await producer.publish_detailed("queue:q", *(DetailedMessage(body, priority=priority) for body, priority in order))
    assert len(buffer.ready) == 7
    worker.grant(7)
    assert await worker.bodies(7) == [b"top 1", b"top 2", b"high", b"a", b"b", b"low", b"bottom"]
    assert engine.counts.claimed == 0


async def test_a_plain_message_goes_before_those_of_a_lower_priority_that_are_in_memory_already(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer, producer = await engine.queue("q"), Producer(engine)
    consumer = Consumer(buffer)
    await producer.publish("queue:q", b"0")
    assert await consumer.bodies(1) == [b"0"]
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await producer.publish_detailed(
        "queue:q", DetailedMessage(b"low", priority=-5), DetailedMessage(b"low too", priority=-5)
    )
    await producer.publish("queue:q", b"plain")
    assert await consumer.bodies(3) == [b"plain", b"low", b"low too"]


async def test_a_high_priority_overtakes_thousands_that_are_in_memory_already(
    make_engine: MakeEngine, store: Store, warm: None
) -> None:
    store.queue("q")
    engine = await make_engine(prefetch=200)
    buffer = await engine.queue("q")
    worker, producer = Worker(buffer), Producer(engine)
    await producer.publish("queue:q", *(b"%d" % n for n in range(1000)))
    worker.grant(1)
    assert await worker.bodies(1) == [b"0"]
    await store.until(lambda: len(buffer.ready) >= 100, "memory is full")
    await producer.publish_detailed("queue:q", DetailedMessage(b"urgent", priority=1))
    await store.until(lambda: buffer.prefetch.overtaken, "the urgent one was heard of")
    worker.grant(2)
    assert await worker.bodies(2) == [b"urgent", b"1"]


async def test_a_worker_that_pauses_gets_the_next_message_also_while_memory_goes_back(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("q")
    engine = await make_engine()
    worker, producer = Worker(await engine.queue("q")), Producer(engine)
    await producer.publish("queue:q", *(b"%d" % n for n in range(1000)))
    handing, go_on = asyncio.Event(), asyncio.Event()
    hand_back = engine.settlements._parts._return

    async def slowly(*arguments: Any) -> None:
        handing.set()
        await go_on.wait()
        await hand_back(*arguments)

    monkeypatch.setattr(engine.settlements._parts, "_return", slowly)
    worker.grant(1)
    assert await worker.bodies(1) == [b"0"]
    async with asyncio.timeout(PATIENCE):
        await handing.wait()
    worker.grant(1)
    await asyncio.sleep(0.1)  # time for what must not happen
    assert worker.pushed == []
    go_on.set()
    assert await worker.bodies(1) == [b"1"]


async def test_a_failed_message_goes_to_the_tail_of_its_own_priority(
    make_engine: MakeEngine, store: Store, warm: None
) -> None:
    store.queue("q", retry_backoff="0 s")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker, producer = Worker(buffer), Producer(engine)
    await producer.publish_detailed(
        "queue:q", DetailedMessage(b"a", priority=3), DetailedMessage(b"b", priority=3), DetailedMessage(b"c")
    )
    worker.grant(1)
    [first] = await worker.take(1)
    buffer.deliveries.give_back(first.tag, error="no")
    await store.until(lambda: buffer.prefetch.overtaken, "it was heard of")
    worker.grant(3)
    assert await worker.bodies(3) == [b"b", b"a", b"c"]


async def test_a_message_may_have_a_retry_interval_of_its_own(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q", retry_backoff="1 hour")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    worker.grant(3)
    await Producer(engine).publish_detailed("queue:q", DetailedMessage(b"soon", retry_interval=20, max_attempts=3))
    for attempts in range(3):
        [push] = await worker.take(1)
        assert push.attempts == attempts
        buffer.deliveries.give_back(push.tag, error="no")
    await store.until(lambda: store.counts(queue)[3] == 1, "it is a dead letter")


async def test_a_message_that_is_handed_back_keeps_its_place_and_its_attempts(
    make_engine: MakeEngine, store: Store, warm: None
) -> None:
    store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    await Producer(engine).publish("queue:q", b"1", b"2")
    worker.grant(1)
    [push] = await worker.take(1)
    buffer.deliveries.hand_back(push.tag)
    await store.until(lambda: buffer.prefetch.overtaken, "it was heard of")
    worker.grant(2)
    first, second = await worker.take(2)
    assert (first.payload, first.attempts, first.id) == (b"1", 0, push.id)
    assert second.payload == b"2"


async def test_the_result_of_a_job_is_kept_with_the_archive(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    worker.grant(2)
    await Producer(engine).publish("queue:q", b"1", b"2", max_attempts=7)
    first, second = await worker.take(2)
    assert buffer.deliveries.complete(first.tag, b"\xc3")
    assert buffer.deliveries.complete(second.tag, None)
    round = engine.settling
    await store.until(lambda: not engine.settles(round), "both are settled")
    rows = [(row["id"], row["job"], row["result"], row["max_attempts"]) for row in store.archived(queue)]
    assert rows == [(first.id, True, b"\xc3", 7), (second.id, True, None, 7)]
    assert store.messages(queue) == []


async def test_a_producer_learns_the_ids_by_which_its_messages_are_found(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    asker = Asker(engine)
    plain = await asker.ask("queue:q", b"\x01", b"\x02")
    assert plain == [row["id"] for row in store.messages(queue)]
    assert {row["content"] for row in store.messages(queue)} == {Content.MSGPACK}
    [prior] = await asker.ask("queue:q", DetailedMessage(b"\x03", priority=7))
    assert store.messages(queue)[0]["origin_id"] == prior


async def test_of_several_queues_that_a_route_reaches_the_id_is_that_of_the_one_published_to(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("copy")
    queue = store.queue("q")
    store.queue("second copy")
    for target in ("queue:copy", "queue:second copy"):
        store.rows("insert into queues_route (source, target) values ('queue:q', %s) returning id", target)
    engine = await make_engine()
    ids = await Asker(engine).ask("queue:q", b"\x01", b"\x02", b"\x03")
    assert ids == [row["id"] for row in store.messages(queue)]


async def test_a_key_that_is_taken_is_told_and_nothing_is_stored(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    asker = Asker(engine)
    [first] = await asker.ask("queue:q", DetailedMessage(b"\x01", key="k"))
    assert await asker.ask("queue:q", DetailedMessage(b"\x02", key="k")) == [None]
    assert [row["id"] for row in store.messages(queue)] == [first]


async def test_a_publish_to_a_queue_that_does_not_exist_is_refused(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine()
    producer = Producer(engine)
    await producer.publish("queue:none", b"1")
    [(token, error)] = producer.failed
    assert token == 0
    assert isinstance(error, QueueNotFound)
    assert isinstance(error, EngineError)


async def test_a_late_delivery_after_a_lost_connection_is_still_settled(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    worker.grant(1)
    await Producer(engine).publish("queue:q", b"1")
    [push] = await worker.take(1)
    buffer.lose_leases()
    assert buffer.deliveries.complete(push.tag, None)
    round = engine.settling
    await store.until(lambda: not engine.settles(round), "it is settled")
    assert store.messages(queue) == []


async def test_a_key_held_by_an_unfinished_transaction_is_refused_and_delays_others_only_briefly(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    asker = Asker(engine)
    with psycopg.connect(store.conninfo) as other:
        other.execute(
            b"insert into queues_message (id, queue_id, state, key, payload)"
            b" values (nextval('queues_message_id'), %s, 0, 'k', '')",
            (queue,),
        )
        given = ((b"1", "k"), (b"2", "free"), (b"3", "k"), (b"4", None))
        messages = [DetailedMessage(body, key=key) for body, key in given]
        ids = await asker.ask("queue:q", *messages)
        other.rollback()
    assert len(ids) == 2
    assert [(token, type(error)) for token, error in asker.failed] == [(0, StoreUnavailable), (2, StoreUnavailable)]
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"2", b"4"]
    [id] = await asker.ask("queue:q", DetailedMessage(b"5", key="k"))
    assert id is not None


async def test_a_worker_that_takes_very_many_messages_leaves_room_for_the_others(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q")
    engine = await make_engine(prefetch=20)
    buffer = await engine.queue("q")
    greedy, modest = Worker(buffer), Worker(buffer)
    await Producer(engine).publish("queue:q", *(b"%d" % n for n in range(100)))
    greedy.grant(60)
    await greedy.until(lambda: len(greedy.pushed) == 60)
    modest.grant(3)
    assert await modest.bodies(3) == [b"60", b"61", b"62"]


async def test_a_backlog_without_consumers_is_not_claimed_again_and_again(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    worker = Worker(buffer)
    await Producer(engine).publish("queue:q", *(b"%d" % n for n in range(200)))
    worker.grant(1)
    await worker.take(1)
    await store.until(
        lambda: not (buffer.interest.known or buffer.ready or buffer.backlog.claiming), "what is left has gone back"
    )
    buffer.backlog.watermark.claimed("10:12:", 2**50, 1)  # as if it had gone back before the floor followed
    await store.until(lambda: store.counts(queue)[0] == 199 and not engine.settles(engine.settling - 1), "it is back")
    news = buffer.backlog.news
    await asyncio.sleep(0.5)
    assert buffer.backlog.news == news
