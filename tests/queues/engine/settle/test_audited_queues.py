"""Audited queues: each event of a message has a row in the queue's chain, in the transaction of what happened."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import psycopg
import pytest
from django.db import connections, transaction

from queues import api
from queues.audit.verify import Verification, verify
from queues.engine.api import Destination, DetailedMessage, Engine, PrefetchedQueue, StoreUnavailable, Unstorable
from queues.engine.settle.part_writer import PartWriter
from queues.engine.settle.writer import SettlementWriter
from queues.models import State
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from tests.queues import moving
from tests.queues.audit.spans import messages_of
from tests.queues.engine.cluster.test_membership import kill
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.settle.test_writer import settling_held
from tests.waiting import PATIENCE

T = TypeVar("T")
Row = tuple[str, str, str, str]


def add_key(store: Store, name: str) -> int:
    """An API key; returns its id."""
    sql = (
        "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
        " values (%s, %s, '', '{}', '{}', '{}', '{}') returning id"
    )
    return int(store.rows(sql, name, name)[0]["id"])


def rows(store: Store, queue: str = "orders", together: bool = False) -> list[Row]:
    """A queue's chain: event, id, from, to. Unless `together`, a row that several messages share is one for each."""
    found = store.rows(
        "select event, record_id, sender, recipient from queues_audit join queues_auditchain c on c.id = chain_id"
        " where c.name = %s order by seq", f"queue:{queue}",
    )  # fmt: skip
    return [
        (row["event"], id, row["sender"], row["recipient"])
        for row in found
        for id in ([row["record_id"]] if together else messages_of(row["record_id"]))
    ]


def happened(store: Store, queue: str = "orders") -> list[str]:
    """The events of a queue's chain, without those that say that it is audited."""
    return [row[0] for row in rows(store, queue) if not row[0].startswith("audit-")]


async def until_happened(store: Store, *events: str, queue: str = "orders") -> list[Row]:
    """Wait until exactly these events are recorded; their rows."""
    try:
        await store.until(lambda: happened(store, queue) == list(events), "the events")
    except AssertionError:
        raise AssertionError(f"{list(events)}, not {happened(store, queue)}") from None
    return [row for row in rows(store, queue) if not row[0].startswith("audit-")]


async def publish(engine: Engine, address: str, *bodies: bytes, key: int | None = None) -> Producer:
    """Publish with an API key, and wait for the commit."""
    producer = Producer(engine)
    source = engine.publisher(Destination.parse(address), key)
    await producer.wait([source.publish(body, producer, n) for n, body in enumerate(bodies)][-1])
    engine.unhold(producer)
    return producer


async def in_django(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Do something over Django's connection, in a thread that has one of its own."""

    def run() -> T:
        try:
            return work(*arguments, **named)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


async def verified(queue: str = "orders") -> Verification:
    outcome = await in_django(verify, f"queue:{queue}", ())
    assert outcome.ok, outcome.finding
    return outcome


# Records.


async def test_a_message_is_recorded_from_its_publish_to_its_end_with_the_names_of_the_keys(
    engine: Engine, store: Store
) -> None:
    store.queue("orders", audited=True)
    shop, clerk = add_key(store, "shop"), add_key(store, "clerk")
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"one", key=shop)
    await store.until(lambda: buffer.deliver(monotonic(), consumer=clerk), "the delivery")
    assert buffer.deliveries.ack(1, clerk)
    published, delivered, settled = await until_happened(store, "publish", "deliver", "settle")
    id = published[1]
    assert published == ("publish", id, "shop", "orders")
    assert delivered == ("deliver", id, "orders", "clerk")
    assert settled == ("settle", id, "clerk", "")
    assert [row["id"] for row in store.archived(buffer.id)] == [int(id)]
    assert store.archived(buffer.id)[0]["consumer_id"] == clerk
    assert store.counts(buffer.id) == (0, 0, 0, 0)
    assert (await verified()).rows == 4  # and that it is audited


async def test_deliveries_from_memory_are_recorded_like_claimed_ones(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", audited=True)
    engine = await make_engine()  # after the queue: it must not hear late that it was made, and look once more
    buffer = await engine.queue("orders")
    waiting = asyncio.create_task(Consumer(buffer).bodies(1))
    await store.until(lambda: buffer.prefetch.wanted(monotonic()), "the look that finds nothing")
    await publish(engine, "orders", b"one")
    assert await waiting == [b"one"]
    assert engine.counts.claimed == 0
    (id,) = {row[1] for row in await until_happened(store, "publish", "deliver", "settle")}
    assert [row["id"] for row in store.archived(queue)] == [int(id)]


async def test_several_messages_at_once_are_delivered_with_a_row_each(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True)
    clerk = add_key(store, "clerk")
    buffer = await engine.queue("orders")
    await publish(engine, "orders", *[b"%d" % n for n in range(5)])
    await store.until(lambda: buffer.deliver_many(monotonic(), 1, clerk), "the first delivery")
    await store.until(lambda: len(buffer.ready) == 4, "the others in memory")
    assert sum(len(bodies) for _, bodies in buffer.deliver_many(monotonic(), 4, clerk)) == 4
    found = await until_happened(store, *["publish"] * 5, *["deliver"] * 5)
    assert [row[1] for row in found[:5]] == [row[1] for row in found[5:]]
    assert {row[3] for row in found[5:]} == {"clerk"}


async def test_a_failed_delivery_goes_back_and_at_last_becomes_a_dead_letter(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True, max_attempts=2)
    clerk = add_key(store, "clerk")
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"poison")
    for _ in range(2):
        delivery = await store.until(lambda: buffer.deliver(monotonic(), consumer=clerk), "the delivery")
        buffer.deliveries.give_back(delivery[0], error="no")
    found = await until_happened(store, "publish", "deliver", "return", "deliver", "dead-letter")
    assert len({row[1] for row in found}) == 1  # always its first id
    assert found[2][2:] == ("clerk", "orders")
    assert found[4][2:] == ("orders", "")
    letters = await engine.dead_letters("orders")
    for end in (letters.deliveries.give_back, lambda tag: letters.deliveries.ack(tag, clerk)):
        dead = await Consumer(letters).next()
        assert dead is not None
        end(dead[0])
    found = (await until_happened(store, *(row[0] for row in found), "deliver", "return", "deliver", "settle"))[5:]
    assert {row[1] for row in found} == {rows(store)[1][1]}
    assert found[-1][2:] == ("clerk", "")


async def test_a_dead_letter_that_goes_elsewhere_is_in_both_chains(engine: Engine, store: Store) -> None:
    graves = store.queue("graves", audited=True)
    store.queue("orders", audited=True, max_attempts=1, dead_letter_queue_id=graves)
    store.queue("plain", max_attempts=1, dead_letter_queue_id=graves)
    for name in ("orders", "plain"):
        buffer = await engine.queue(name)
        await publish(engine, name, b"poison")
        delivery = await Consumer(buffer).next()
        assert delivery is not None
        buffer.deliveries.give_back(delivery[0], error="no")
        await store.until(lambda: engine.settlements.idle, "the burial")
    found = await until_happened(store, "publish", "deliver", "dead-letter")
    assert found[2] == ("dead-letter", found[0][1], "orders", "graves")
    arrived = await until_happened(store, "dead-letter", "dead-letter", queue="graves")
    assert arrived[0] == found[2]
    assert arrived[1][2:] == ("plain", "graves")
    assert rows(store, "plain") == []
    assert await Consumer(await engine.queue("graves")).bodies(2) == [b"poison", b"poison"]
    found = await until_happened(
        store, "dead-letter", "dead-letter", "deliver", "deliver", "settle", "settle", queue="graves"
    )
    assert Counter(row[1] for row in found) == dict.fromkeys({row[1] for row in arrived}, 3)


async def test_expired_and_dropped_messages_are_recorded(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True, message_ttl="0.2 s")
    store.queue("small", audited=True, max_length=2, overflow="drop-oldest")
    await publish(engine, "orders", b"stale")
    await publish(engine, "small", b"1", b"2", b"3")
    await in_django(api.publish, "small", b"4")
    published, expired = await until_happened(store, "publish", "expire")
    assert expired == ("expire", published[1], "orders", "")
    found = await until_happened(store, *["publish"] * 3, "drop", "publish", "drop", queue="small")
    assert [row[1] for row in found if row[0] == "drop"] == [found[0][1], found[1][1]]
    assert found[3] == ("drop", found[0][1], "small", "")


async def test_deliveries_that_are_handed_back_are_recorded_and_what_was_never_delivered_is_not(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", audited=True)
    engine = await make_engine()
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3", b"4")
    first = await Consumer(buffer).next()
    second = await Consumer(buffer).next()
    assert first is not None
    assert second is not None
    buffer.deliveries.hand_back(first[0])
    buffer.deliveries.bury(second[0], "it does not fit")  # so it was never sent
    await engine.stop()
    assert [row["state"] for row in store.messages(queue)] == [0, 0, 0, 3]
    found = await until_happened(store, *["publish"] * 4, "deliver", "dead-letter", "return")
    assert [row[1] for row in found[4:]] == [found[0][1], found[1][1], found[0][1]]


async def test_a_message_handed_back_is_the_next_one_though_its_record_is_not_written_yet(
    engine: Engine, store: Store
) -> None:
    store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    first = await Consumer(buffer).next()
    assert first is not None
    await store.until(lambda: len(buffer.ready) == 2, "the others in memory")
    await until_happened(store, *["publish"] * 3, "deliver")
    head = "select from queues_audithead where chain_id = (select id from queues_auditchain where name = %s) for update"
    with store.connection.transaction():
        store.rows(head, "queue:orders")
        buffer.deliveries.hand_back(first[0])
        waiting = asyncio.create_task(Consumer(buffer).bodies(3))
        await store.until(lambda: engine.settlements._audited[buffer.id].writing, "the record is being written")
        assert buffer.deliver(monotonic()) is None
        assert buffer.prefetch.in_transit
    assert await waiting == [b"1", b"2", b"3"]


async def test_a_stop_hands_back_deliveries_with_a_row_each(make_engine: MakeEngine, store: Store) -> None:
    store.queue("orders", audited=True)
    engine = await make_engine()
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2")
    assert await Consumer(buffer).next() is not None
    await engine.stop()
    found = await until_happened(store, "publish", "publish", "deliver", "return")
    assert found[3] == ("return", found[0][1], "", "orders")


async def test_jobs_are_recorded_with_their_workers_keys(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True, retention="full")
    buffer = await engine.queue("orders")
    worker = Worker(buffer)
    worker.key = add_key(store, "works")
    worker.grant(10)
    await publish(engine, "orders", b"1", b"2", b"3")
    one, two, three = await worker.take(3)
    assert buffer.deliveries.complete(one.tag, b"\xc3")
    assert buffer.deliveries.complete_many([two.tag, three.tag]) == []
    found = await until_happened(store, *["publish"] * 3, *["deliver"] * 3, *["settle"] * 3)
    assert {row[3] for row in found[3:6]} == {row[2] for row in found[6:]} == {"works"}
    archived = store.archived(queue)
    assert [row["result"] and bytes(row["result"]) for row in archived] == [b"\xc3", None, None]
    assert [bytes(row["payload"]) for row in archived] == [b"1", b"2", b"3"]
    assert all(row["job"] for row in archived)


async def test_retention_decides_what_the_archive_keeps_and_not_what_is_recorded(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("orders", audited=True, retention="none")
    await publish(engine, "orders", b"1")
    await Consumer(await engine.queue("orders")).bodies(1)
    await until_happened(store, "publish", "deliver", "settle")
    assert store.archived(queue) == []
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_only_what_was_really_there_gets_a_row(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    tags = [(await store.until(lambda: buffer.deliver(monotonic()), "the delivery"))[0] for _ in range(3)]
    await until_happened(store, *["publish"] * 3, *["deliver"] * 3)
    await store.change("delete from queues_message where queue_id = %s returning id", queue)
    buffer.deliveries.ack(tags[0])
    buffer.deliveries.give_back(tags[1])
    buffer.deliveries.hand_back(tags[2])
    await store.until(lambda: engine.settlements.idle, "the settlement")
    assert happened(store) == [*["publish"] * 3, *["deliver"] * 3]
    assert engine.settlements.unsettled == 0


async def test_a_topic_and_a_route_reach_audited_queues_beside_others(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True)
    store.queue("copies")
    await store.change("insert into queues_route (source, target) values ('topic:t', 'queue:orders') returning id")
    await store.change("insert into queues_route (source, target) values ('topic:t', 'queue:copies') returning id")
    shop = add_key(store, "shop")
    await publish(engine, "topic:t", *[b"%d" % n for n in range(3)], key=shop)
    producer = Producer(engine)
    await producer.publish_detailed(
        "topic:t", DetailedMessage(b"4", key="k", priority=5), DetailedMessage(b"5", key="k")
    )
    await until_happened(store, *["publish"] * 4)
    ids = [row["origin_id"] or row["id"] for row in store.messages((await engine.queue("orders")).id)]
    assert sorted(int(row[1]) for row in rows(store) if row[0] == "publish") == sorted(ids)
    assert rows(store, "copies") == []


async def test_queues_that_are_not_audited_leave_no_row(engine: Engine, store: Store) -> None:
    store.queue("orders", max_attempts=1)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    await in_django(api.publish, "orders", b"4")
    assert await Consumer(buffer).bodies(2) == [b"1", b"2"]
    for end in (buffer.deliveries.give_back, buffer.deliveries.hand_back):
        delivery = await Consumer(buffer).next()
        assert delivery is not None
        end(delivery[0])
    await in_django(message_operations.purge, "orders", [State.READY, State.DEAD], by="alice")
    await store.until(lambda: engine.settlements.idle, "the settlement")
    assert store.rows("select from queues_audit") == []
    assert store.rows("select from queues_auditjournal") == []
    assert store.rows("select from queues_auditchain") == []


# Operators' actions.


async def test_operators_stand_in_the_chain_with_what_they_did_to_each_message(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True, max_attempts=1)
    store.queue("other", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"dies")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    buffer.deliveries.give_back(delivery[0])
    (dead,) = await store.until(
        lambda: store.rows("select id from queues_message where queue_id = %s and state = 3", queue), "it is dead"
    )
    assert await in_django(moving.put_back, "orders", [dead["id"]], by="alice") == 1
    assert await Consumer(buffer).bodies(1) == [b"dies"]
    found = await until_happened(store, "publish", "deliver", "dead-letter", "put-back", "deliver", "settle")
    assert found[3] == ("put-back", found[0][1], "alice", "orders")
    later = [await in_django(api.publish, "orders", b"later", delay=60) for _ in range(4)]
    assert await in_django(moving.deliver_now, "orders", later[:1], by="bob") == 1
    assert await in_django(message_operations.remove_messages, "orders", later[1:2], by="bob") == 1
    assert await in_django(message_operations.move, "orders", "other", [State.DELAYED], 1, by="bob") == 1
    assert await in_django(message_operations.purge, "orders", [State.DELAYED], by="bob") == 1
    found = await until_happened(
        store, *[row[0] for row in found], *["publish"] * 4, "deliver-now", "remove", "move", "purge"
    )
    assert found[-4:] == [
        ("deliver-now", str(later[0]), "bob", "orders"),
        ("remove", str(later[1]), "bob", ""),
        ("move", str(later[2]), "bob", "other"),
        ("purge", str(later[3]), "bob", ""),
    ]
    assert await until_happened(store, "move", queue="other") == [found[-2]]  # each chain has a transaction of its own
    await verified()


async def test_messages_purged_from_memory_are_recorded_with_the_operator(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    assert await Consumer(buffer).next() is not None
    await store.until(lambda: len(buffer.ready) == 2, "the others in memory")
    await in_django(message_operations.purge, "orders", by="alice")
    found = await until_happened(store, *["publish"] * 3, "deliver", "purge", "purge")
    assert [row[1:] for row in found[4:]] == [(found[n][1], "alice", "") for n in (1, 2)]
    assert len(store.messages(queue)) == 1


async def test_a_purge_that_finds_the_settler_busy_is_recorded_after_the_deliveries_before_it(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("orders", audited=True)
    engine = await make_engine()
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    async with settling_held(engine, store):
        assert await Consumer(buffer).next() is not None
        await store.until(lambda: len(buffer.ready) == 2, "the others in memory")
        await in_django(message_operations.purge, "orders", by="alice")
        await store.until(lambda: not buffer.ready, "the purge is heard of")
    await until_happened(store, *["publish"] * 3, "deliver", "purge", "purge")


async def test_messages_named_by_an_operator_are_in_the_operators_chain_too(store: Store) -> None:
    store.queue("orders")
    ids = [await in_django(api.publish, "orders", b"x", delay=60) for _ in range(3)]
    await in_django(moving.deliver_now, "orders", ids[:2], by="alice")
    await in_django(message_operations.remove_messages, "orders", ids[2:], by="alice")
    await in_django(message_operations.remove_messages, "orders", ids[2:], by="alice")  # it is gone
    await in_django(message_operations.purge, "orders", by="alice")  # names no message
    waiting = store.rows("select chain, event, record_id, sender, recipient from queues_auditjournal order by id")
    assert [tuple(row.values()) for row in waiting] == [
        ("operators", "deliver-now", f"message:{ids[0]}", "alice", "orders"),
        ("operators", "deliver-now", f"message:{ids[1]}", "alice", "orders"),
        ("operators", "remove", f"message:{ids[2]}", "alice", "orders"),
    ]


# Publishing from Django.


async def test_messages_of_django_are_recorded_soon_if_they_commit(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True)

    def rolled_back() -> None:
        with transaction.atomic():
            api.publish("orders", b"never")
            transaction.set_rollback(True)

    def committed() -> int | None:
        with transaction.atomic():
            ids = api.publish_many("orders", [b"1", b"2"])
            assert rows(store) == [] or happened(store) == []  # not before the commit
            return ids[0]

    await in_django(rolled_back)
    id = await in_django(committed)
    found = await until_happened(store, "publish", "publish")
    assert found[0] == ("publish", str(id), "", "orders")
    assert store.rows("select from queues_auditjournal") == []


async def test_its_publish_comes_before_its_delivery_though_it_waited_in_the_journal(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.SEAL", 1e9)
    store.queue("orders", audited=True)
    consumer = Consumer(await engine.queue("orders"))
    await in_django(api.publish_many, "orders", [b"1", b"2"])
    assert await consumer.bodies(2) == [b"1", b"2"]
    found = await until_happened(store, "publish", "publish", "deliver", "deliver", "settle", "settle")
    assert [row[1] for row in found[:2]] * 3 == [row[1] for row in found]


# Switching it on and off.


async def test_switching_it_on_and_off_is_recorded_and_obeyed_at_once(engine: Engine, store: Store) -> None:
    queue = store.queue("orders")
    await publish(engine, "orders", b"before")
    await store.change("update queues_queue set audited = true where id = %s returning id", queue)
    await publish(engine, "orders", b"1", b"2")
    found = rows(store)
    assert [row[0] for row in found] == ["audit-on", "publish", "publish"]
    assert found[0][1] == "queue:orders"
    assert found[0][2].startswith("database:")
    await store.change("update queues_queue set audited = false where id = %s returning id", queue)
    await publish(engine, "orders", b"after")
    assert [row[0] for row in rows(store)[:3]] == [row[0] for row in found]
    await store.until(lambda: len(rows(store)) == 4, "the last row")
    assert rows(store)[3] == ("audit-off", "queue:orders", found[0][2], "")
    await store.change("update queues_queue set audited = false, paused = true where id = %s returning id", queue)
    assert store.rows("select from queues_auditjournal") == []


async def test_a_buffer_obeys_as_soon_as_it_hears(engine: Engine, store: Store) -> None:
    queue = store.queue("orders")
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1", b"2", b"3")
    assert await Consumer(buffer).bodies(1) == [b"1"]
    await store.change("update queues_queue set audited = true where id = %s returning id", queue)
    await store.until(lambda: buffer.audited is not None, "the news")
    assert await Consumer(buffer).bodies(1) == [b"2"]
    await until_happened(store, "deliver", "settle")
    await store.change("update queues_queue set audited = false where id = %s returning id", queue)
    await store.until(lambda: buffer.audited is None, "the news")
    assert await Consumer(buffer).bodies(1) == [b"3"]
    await store.until(lambda: len(store.archived(queue)) == 3, "the settlement")
    assert happened(store) == ["deliver", "settle"]


async def test_every_publish_after_audit_is_on_is_recorded(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("orders")
    engines = [await make_engine() for _ in range(2)]
    stop = asyncio.Event()

    async def produce(engine: Engine) -> None:
        while not stop.is_set():
            await publish(engine, "orders", b"x")

    producing = [asyncio.create_task(produce(engine)) for engine in engines]
    for audited in (True, False, True):
        seen = len(store.messages(queue))
        await store.until(lambda: len(store.messages(queue)) > seen + 50, "some messages")  # noqa: B023
        # In a thread: it waits for publishes that are under way in this one.
        sql = "update queues_queue set audited = %s where id = %s returning id"
        await asyncio.to_thread(store.rows, sql, audited, queue)
    seen = len(store.messages(queue))
    await store.until(lambda: len(store.messages(queue)) > seen + 50, "some messages")
    stop.set()
    await asyncio.gather(*producing)
    found = [row[0] for row in rows(store)]
    assert [event for event in found if event != "publish"] == ["audit-on", "audit-off", "audit-on"]
    assert found[0] == "audit-on"
    assert found[found.index("audit-off") + 1] == "audit-on"
    recorded = {int(row[1]) for row in rows(store) if row[0] == "publish"}
    stored = [row["id"] for row in store.messages(queue)]
    assert recorded < set(stored)
    last_gap = max(n for n, id in enumerate(stored) if id not in recorded)
    assert len(stored) - last_gap > 50


async def test_a_queue_that_is_deleted_says_so_in_its_chain(engine: Engine, store: Store) -> None:
    store.queue("orders", audited=True)
    await publish(engine, "orders", b"1", b"2")
    await in_django(queue_operations.delete_queue, "orders", True, by="alice")
    found = await until_happened(store, "publish", "publish", "purge", "purge", "delete")
    assert {row[2] for row in found[2:]} == {"alice"}
    assert found[4][1] == "queue:orders"


# Never a row too many, nor one too few.


async def test_rejected_messages_get_no_row_and_those_stored_singly_get_one(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True, max_length=3)
    producer = Producer(engine)
    producer.send("orders", b"1", b"2")
    await producer.publish_detailed("orders", DetailedMessage(b"bad", headers={"x": "\0"}), DetailedMessage(b"3"))
    await producer.publish("orders", b"4", b"5")
    assert len(producer.failed) == 3
    stored = [str(row["id"]) for row in store.messages(queue)]
    assert [row[1] for row in await until_happened(store, *["publish"] * 3)] == stored


def stored_ids(store: Store, queue: int) -> list[int]:
    """The first ids of all messages that were ever stored."""
    live = [row["origin_id"] or row["id"] for row in store.messages(queue)]
    return live + [row["id"] for row in store.archived(queue)]


@asynccontextmanager
async def consuming(engines: list[Engine]) -> AsyncIterator[None]:
    """Each engine consumes what it gets, and fails every seventh message once."""

    async def consume(engine: Engine) -> None:
        buffer: PrefetchedQueue = await engine.queue("orders")
        for n in range(1_000_000):
            delivery = await Consumer(buffer).next(60.0)
            assert delivery is not None
            if n % 7 == 0 and not delivery[2]:
                buffer.deliveries.give_back(delivery[0], delay=0.0)
            else:
                buffer.deliveries.ack(delivery[0])
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(consume(engine)) for engine in engines]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_engines_and_lost_connections_leave_a_whole_chain_with_a_row_for_each_message(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders", audited=True, max_attempts=0)
    engines = [await make_engine() for _ in range(3)]

    async def produce(engine: Engine) -> None:
        for n in range(60):
            await publish(engine, "orders", *[b"%d" % n] * 10)

    async with consuming(engines):
        producing = [asyncio.create_task(produce(engine)) for engine in engines]
        for _ in range(3):
            seen = len(store.archived(queue))
            await store.until(lambda: len(store.archived(queue)) > seen + 100, "some messages")  # noqa: B023
            for connection in engines[0].connections.values():
                store.rows("select pg_terminate_backend(%s)", connection.info.backend_pid)
        await asyncio.gather(*producing)
        await store.until(lambda: not store.messages(queue), "the last message")
    for engine in engines:
        await store.until(lambda: engine.settlements.idle, "the last settlement")  # noqa: B023
    assert engines[0].counts.reconnects > 0
    assert (await verified()).rows == len(rows(store, together=True)) < len(rows(store))
    ids = stored_ids(store, queue)
    assert len(ids) >= 3 * 60 * 10
    found = rows(store)[1:]
    for event in ("publish", "settle"):
        assert Counter(row[1] for row in found if row[0] == event) == Counter(map(str, ids))
    seen_events: dict[str, list[str]] = {}
    for event, id, *_ in found:
        seen_events.setdefault(id, []).append(event)
    assert all(events[0] == "publish" and events[1] == "deliver" for events in seen_events.values())
    assert all("deliver" in events[: events.index("settle")] for events in seen_events.values())


async def test_a_commit_whose_answer_was_lost_is_recorded_once(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1")
    committed, lost = SettlementWriter._committed, asyncio.Event()

    def lose(self: SettlementWriter, *arguments: Any) -> None:
        if not lost.is_set():
            lost.set()
            engine.connections["settlements"].pgconn.finish()
            raise psycopg.OperationalError("the connection was lost at the commit")
        committed(self, *arguments)

    monkeypatch.setattr(SettlementWriter, "_committed", lose)
    assert await Consumer(buffer).bodies(1) == [b"1"]
    await lost.wait()
    await store.until(lambda: engine.available and engine.settlements.idle, "the engine's return")
    await publish(engine, "orders", b"2")
    assert await Consumer(buffer).bodies(1) == [b"2"]
    await until_happened(store, "publish", "deliver", "settle", "publish", "deliver", "settle")
    await store.until(lambda: engine.settlements.unsettled == 0, "the count of what is unsettled")


async def test_a_transaction_that_failed_is_done_again_with_its_deliveries(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1")
    settle, failed = PartWriter._settle, asyncio.Event()

    async def fail(self: PartWriter, *arguments: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise psycopg.OperationalError("the connection was lost in the middle")
        await settle(self, *arguments)

    monkeypatch.setattr(PartWriter, "_settle", fail)
    assert await Consumer(buffer).bodies(1) == [b"1"]
    await failed.wait()
    await until_happened(store, "publish", "deliver", "settle")


async def test_after_a_kill_deliveries_of_the_last_moment_may_lack_a_row_and_the_messages_come_again(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("orders", audited=True)
    first, second = await make_engine(), await make_engine()
    await publish(first, "orders", b"1")
    buffer = await first.queue("orders")
    assert await store.until(lambda: buffer.deliver(monotonic()), "the delivery")
    await kill(first, store)
    assert await Consumer(await second.queue("orders")).bodies(1) == [b"1"]
    await store.until(lambda: happened(store)[-1:] == ["settle"], "the settlement")
    assert happened(store) in (["publish", "deliver", "settle"], ["publish", "deliver", "deliver", "settle"])
    await verified()


# A broken chain.


def told(caplog: pytest.LogCaptureFixture) -> set[str]:
    """The distinct texts that were logged."""
    return {record.getMessage().partition(": ")[0] for record in caplog.records}


async def test_a_chain_without_a_head_stops_its_queue_and_no_other(
    engine: Engine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    queue, plain = store.queue("orders", audited=True), store.queue("plain")
    store.queue("sound", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    await until_happened(store, "publish", "deliver")
    chain = "(select id from queues_auditchain where name = 'queue:orders')"
    (head,) = await store.change(f"delete from queues_audithead where chain_id = {chain} returning *")
    with caplog.at_level(logging.ERROR, "queues.engine"):
        refused = await publish(engine, "orders", b"2")
        assert [type(error) for _, error in refused.failed] == [Unstorable]
        await publish(engine, "plain", b"3")
        await publish(engine, "sound", b"4")
        buffer.deliveries.ack(delivery[0])
        round = engine.settling_of(buffer)
        await in_django(api.publish, "orders", b"5")
        assert await Consumer(await engine.queue("sound")).bodies(1) == [b"4"]
        assert await Consumer(await engine.queue("plain")).bodies(1) == [b"3"]
        await until_happened(store, "publish", "deliver", "settle", queue="sound")
        await store.until(lambda: store.archived(plain), "the settlement")
        complaints = {"The audit chain 'queue:orders' cannot be appended to", "The audit journal is not sealed"}
        await store.until(lambda: complaints <= told(caplog), "the log")
    assert told(caplog) == complaints
    assert engine.settles(round)
    assert len(store.messages(queue)) == 2
    await store.change(
        "insert into queues_audithead values (%s, %s, %s, %s) returning 1 as one", *head.values()
    )
    await until_happened(store, "publish", "deliver", "publish", "settle")
    await store.until(lambda: not engine.settles(round), "the confirmation")
    await verified()
    assert engine.counts.reconnects == 0


async def test_a_broken_chain_is_given_up_by_switching_it_off(engine: Engine, store: Store) -> None:
    queue = store.queue("orders", audited=True)
    buffer = await engine.queue("orders")
    await publish(engine, "orders", b"1")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    await until_happened(store, "publish", "deliver")
    await store.change("delete from queues_audithead returning chain_id")
    buffer.deliveries.ack(delivery[0])
    await store.change("update queues_queue set audited = false where id = %s returning id", queue)
    await publish(engine, "orders", b"2")
    assert await Consumer(buffer).bodies(1) == [b"2"]
    await store.until(lambda: len(store.archived(queue)) == 2, "the settlement")
    assert happened(store) == ["publish", "deliver"]


# By the clock.


async def test_the_chains_are_looked_after_again_and_again_whatever_goes_wrong(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    calls, enough = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def look_after() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            loop.call_soon_threadsafe(enough.set)
        raise StoreUnavailable("for once")

    engine = await make_engine(look_after_audit=look_after, audit_interval=0.01)
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
    assert engine.counts.reconnects == 0
    assert "maintenance of the audit chains failed" in caplog.text


async def test_subscriptions_that_are_dropped_tell_what_they_held(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine()
    subscription = await engine.subscriptions.create(b"t", 1, None)
    (row,) = await store.change(
        "update queues_queue set audited = true where id = %s returning name", subscription.buffer.id
    )
    await publish(engine, "topic:t", b"1", b"2")
    await store.change("update queues_subscription set used_at = now() - interval '8 days' returning id")
    await make_engine(idle_subscription_days=7, idle_subscription_notice=0)
    found = await until_happened(store, "publish", "publish", "expire", "expire", "delete", queue=row["name"])
    assert [one[1] for one in found[:2]] == [one[1] for one in found[2:4]]
