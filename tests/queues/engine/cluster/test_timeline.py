"""A store that comes back with another past: an asynchronous standby that was promoted, or a restored backup."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from queues.engine.api import Engine
from queues.engine.clock import now
from queues.engine.cluster import timeline
from queues.engine.database import connect
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults


@contextlib.asynccontextmanager
async def away(engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The engine has lost its connections, and makes no new ones until the end of the block."""
    async def refuse(*_: object) -> object:
        raise psycopg.OperationalError("it is away")

    with monkeypatch.context() as patch:
        patch.setattr("queues.engine.connections.connect", refuse)
        pids = [connection.info.backend_pid for connection in engine.connections.values()]
        store.rows("select pg_terminate_backend(pid) from unnest(%s::int[]) as p (pid)", pids)
        await store.until(lambda: not engine.available, "the loss")
        await store.until(lambda: engine.counts.reconnects == 1, "the leases counted as lost")
        yield
    await store.until(lambda: engine.available, "the engine is back")


def last_id(store: Store) -> int:
    return int(store.rows("select last_value from queues_message_id")[0]["last_value"])


def restore(store: Store, queue: int, id: int, count: int) -> list[int]:
    """The store as it was when its last id was this, and then other messages, whose ids were used before; their ids."""
    store.rows("delete from queues_message returning 1")
    store.rows("delete from queues_segment returning 1")
    store.rows("select setval('queues_message_id', %s)", id)
    for n in range(count):
        store.insert(queue, b"new %d" % n)
    return [row["id"] for row in store.messages(queue)]


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
@pytest.mark.parametrize("detected", [True, False], ids=["detected", "not detected"])
async def test_late_acknowledgements_settle_no_message_that_was_given_a_used_id_after_a_failover(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, audited: bool, detected: bool
) -> None:
    queue = store.queue("orders", audited=audited)
    engine = await make_engine()
    if not detected:  # as when others have taken more ids since than were lost
        monkeypatch.setattr(timeline, "broken_by", lambda *_: None)
    buffer = await engine.queue("orders")
    before = last_id(store)
    producer, consumer = Producer(engine), Consumer(buffer)
    deliveries = []
    for n in range(6):
        await producer.publish("orders", b"old %d" % n)
        deliveries.append(await consumer.next())
    old = [row["id"] for row in store.messages(queue)]
    tags = [delivery[0] for delivery in deliveries if delivery is not None]
    async with away(engine, store, monkeypatch):
        new = restore(store, queue, before, 4)
        assert set(new) <= set(old), "the ids are used again"
        assert buffer.deliveries.ack(tags[0]), "the engine cannot know yet"
    unknown = buffer.deliveries.ack_many(tags[1:])
    assert unknown == (tags[1:] if detected else [])
    assert sorted(await consumer.bodies(4)) == [b"new 0", b"new 1", b"new 2", b"new 3"]
    await store.until(lambda: len(store.archived(queue)) == 4, "each is settled by its own acknowledgement")
    await store.until(lambda: engine.settlements.unsettled == 0, "nothing waits any more")


async def test_a_job_that_was_done_before_a_failover_completes_no_job_that_has_its_id_after_it(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine()
    buffer = await engine.queue("jobs")
    before = last_id(store)
    worker = Worker(buffer)
    worker.grant(3)
    for n in range(3):
        await Producer(engine).publish("jobs", b"old %d" % n)
    pushed = await worker.take(3)
    async with away(engine, store, monkeypatch):
        assert {push.id for push in pushed} >= set(restore(store, queue, before, 2))
    assert buffer.deliveries.complete_many([push.tag for push in pushed]) == [push.tag for push in pushed]
    worker.grant(2)
    assert sorted(await worker.bodies(2)) == [b"new 0", b"new 1"]
    assert store.archived(queue) == []


async def test_after_a_failover_no_id_that_was_seen_is_given_again_and_the_operator_is_told(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    before, node = last_id(store), engine.node
    await Producer(engine).publish("orders", *[b"x"] * 10_000)
    highest = store.messages(queue)[-1]["id"]
    async with away(engine, store, monkeypatch):
        restore(store, queue, before, 0)
        store.rows("select setval('queues_node_id_seq', 1)")
    assert engine.node > node
    await Producer(engine).publish("orders", b"new")
    [message] = store.messages(queue)
    assert message["id"] > highest
    assert engine.counts.rewritten == 1
    assert "message ids went back" in engine.timeline.rewritten
    assert engine.notes() == [f"Messages that were confirmed may be lost: {engine.timeline.rewritten}."]
    assert "another past" in caplog.text
    sql = (
        "select event, record_id from queues_audit join queues_auditchain c on c.id = chain_id where name = 'operators'"
    )
    [row] = await store.until(lambda: store.rows(sql), "a row for operators")
    assert row == {"event": "history-rewritten", "record_id": "store"}


async def test_a_database_that_was_merely_away_has_the_past_that_was_known(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    await Producer(engine).publish("orders", *[b"x"] * 4096)
    buffer = await engine.queue("orders")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    async with away(engine, store, monkeypatch):
        pass
    assert engine.counts.rewritten == 0
    assert buffer.deliveries.ack(delivery[0]), "a late acknowledgement still settles its message"
    await store.until(lambda: len(store.archived(queue)) == 1, "it is settled")


async def test_the_history_is_read_by_a_role_without_privileges(store: Store) -> None:
    try:
        store.connection.execute("grant select on queues_message, queues_message_id to pg_monitor")
        async with await connect(store.conninfo, "test") as connection:
            await connection.execute("set role pg_monitor")
            reading = await timeline.read(connection)
            await connection.execute("reset role")
            whole = await timeline.read(connection)
    finally:
        store.connection.execute("revoke select on queues_message, queues_message_id from pg_monitor")
    assert reading.timeline == whole.timeline is not None
    assert reading.log_position is not None
    assert reading.table == whole.table


@pytest.mark.parametrize("mark", ["system", "timeline", "database", "table"])
async def test_another_system_timeline_database_or_table_is_another_past(store: Store, mark: str) -> None:
    async with await connect(store.conninfo, "test") as connection:
        reading = await timeline.read(connection)
    assert timeline.broken_by(reading, reading.last_id, reading) is None
    other: dict[str, Any] = {mark: "00000009" if mark == "timeline" else 9}
    assert "another" in (timeline.broken_by(reading, reading.last_id, reading._replace(**other)) or "")
    unseen: dict[str, Any] = {mark: None}
    found = timeline.broken_by(reading, reading.last_id, reading._replace(**unseen))
    assert found is None, "what cannot be seen tells nothing"


async def test_acknowledgements_that_come_late_never_wait_for_a_claim_of_the_same_messages_with_rows_locked(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("orders")
    engine = await make_engine()
    buffer = await engine.queue("orders")
    for n in range(2):
        store.insert(queue, b"%d" % n)
    first, second = (row["id"] for row in store.messages(queue))
    sql = "update queues_message set attempts = 1 where id = %s returning id"
    with psycopg.connect(store.conninfo) as claim:
        claim.execute(sql.encode(), (second,))  # in another order, as the places of rows in a table may be
        for id in (first, second):
            buffer.deliveries.settle_late(id, now(), None)
        await store.until(lambda: len(store.messages(queue)) == 1, "what is not locked is settled")
        await asyncio.to_thread(claim.execute, sql.encode(), (first,))
    await store.until(lambda: store.messages(queue) == [], "the other one after that")


async def test_an_operator_is_told_of_another_past_though_the_database_could_not_note_it_at_first(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch)
    queue = store.queue("orders")
    engine = await make_engine()
    before = last_id(store)
    await Producer(engine).publish("orders", *[b"x"] * 5000)
    buffer = await engine.queue("orders")
    delivery = await Consumer(buffer).next()
    assert delivery is not None
    async with away(engine, store, monkeypatch):
        restore(store, queue, before, 0)
        faults.put("note_history", "40P01")
    assert faults.hits["note_history"] == 1
    assert engine.counts.rewritten == 1
    assert "message ids went back" in engine.timeline.rewritten
    assert not buffer.deliveries.ack(delivery[0]), "what was delivered before is not settled"
