"""Segments of audited queues: each message's record is complete and right, whatever becomes of its segment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from queues.engine import audit
from queues.engine.api import Engine, Unstorable
from queues.engine.clock import now
from queues.engine.database import connect
from queues.engine.faults import is_idle
from queues.engine.settle import segments as segments_module
from queues.engine.settle.audited_queues import queue_chain
from queues.engine.settle.writer import SettlementWriter
from queues.models import State
from queues.operations import messages as message_operations
from tests.queues.audit.spans import messages_of
from tests.queues.engine.cluster.test_membership import kill
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.settle.test_audited_queues import add_key, happened, in_django, publish, rows, verified
from tests.queues.engine.settle.test_segments import FOUR, segments, taken, until_settled

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(segments_module, "LINGER", 3600.0)
    return await make_engine(segment_messages=2)


def told(store: Store, queue: str = "jobs") -> dict[str, list[str]]:
    """The events of each message, in order."""
    found: dict[str, list[str]] = {}
    for event, id, *_ in rows(store, queue):
        found.setdefault(id, []).append(event)
    return {id: events for id, events in found.items() if id != f"queue:{queue}"}


def lives(store: Store, queue: str = "jobs") -> list[list[str]]:
    """The events of each message, the oldest message first."""
    return [events for _, events in sorted(told(store, queue).items(), key=lambda one: int(one[0]))]


WHOLE = ["publish", "deliver", "settle"]


@asynccontextmanager
async def refusing(store: Store, when: str) -> AsyncIterator[None]:
    """Within it no chain takes rows for which this holds."""
    async with await psycopg.AsyncConnection.connect(store.conninfo, autocommit=True) as connection:
        await connection.execute(
            b"create or replace function refuse() returns trigger language plpgsql as"
            b" $$ begin raise 'not this one'; end $$"
        )
        await connection.execute(
            f"create trigger refuse before insert on queues_audit for each row when ({when})"
            " execute function refuse()".encode()
        )
        try:
            yield
        finally:
            await connection.execute(b"drop trigger refuse on queues_audit")


async def test_messages_published_together_share_their_rows(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    assert (segments(store), store.rows("select from queues_message")) == (1, [])
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
    await until_settled(engine, store)
    found = rows(store, "jobs", together=True)
    assert [(event, len(messages_of(id))) for event, id, *_ in found[1:]] == [(event, 4) for event in WHOLE]
    assert lives(store) == [WHOLE] * 4
    assert list(told(store)) == [str(row["id"]) for row in store.archived(queue)]
    assert store.counts(queue) == (0, 0, 0, 0)
    assert store.rows("select from queues_archivedmessage") == []
    await verified("jobs")


async def test_messages_published_alone_are_settled_without_rows_in_the_store(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, [one] = await taken(engine, b"1")
    _, [two] = await taken(engine, b"2")
    assert store.rows("select from queues_message") == []
    assert buffer.deliveries.ack_many([one[0], two[0]]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 2
    assert store.rows("select from queues_message") == []
    assert len(store.archived(queue)) == 2


async def test_a_backlog_of_segments_is_recorded_as_it_is_claimed(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    clerk = add_key(store, "clerk")
    bodies = [b"%d" % n for n in range(20)]
    await publish(engine, "jobs", *bodies)
    assert (segments(store), store.rows("select from queues_message"), store.counts(queue)[0]) == (1, [], 20)
    buffer = await engine.queue("jobs")
    assert await Consumer(buffer).bodies(1, ack=False) == bodies[:1]
    [(tags, found)] = buffer.deliver_many(0.0, 19, clerk)
    assert found == bodies[1:]
    assert buffer.deliveries.ack_many([1, *tags], clerk) == []
    await until_settled(engine, store)
    shown = [(event, len(messages_of(id)), sender, to) for event, id, sender, to in rows(store, "jobs", together=True)]
    assert shown[1:] == [
        ("publish", 20, "", "jobs"), ("deliver", 1, "jobs", ""), ("deliver", 19, "jobs", "clerk"),
        ("settle", 20, "clerk", ""),
    ]  # fmt: skip


async def test_a_segment_settled_in_parts_is_recorded_in_parts(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    for n in (1, 3):
        assert buffer.deliveries.ack(deliveries[n][0])
        await until_settled(engine, store)
    assert [events[-1] for events in lives(store)] == ["deliver", "settle", "deliver", "settle"]
    assert (segments(store), store.counts(queue)) == (1, (0, 2, 0, 0))
    assert buffer.deliveries.ack_many([deliveries[2][0], deliveries[0][0]]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 4
    assert len(store.archived(queue)) == 4


async def test_a_segment_that_stays_settled_in_part_is_unpacked_and_recorded_once(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    monkeypatch.setattr(segments_module, "LINGER", 0.0)
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[:2]]) == []
    await store.until(lambda: len(store.rows("select from queues_message")) == 2, "rows")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[2:]]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 4
    assert len(store.archived(queue)) == 4


async def test_a_message_that_returns_leaves_its_segment_and_all_are_recorded(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True, max_attempts=2)
    buffer, deliveries = await taken(engine, *FOUR)
    buffer.deliveries.give_back(deliveries[1][0], delay=0.0)
    assert buffer.deliveries.ack(deliveries[0][0])
    assert await Consumer(buffer).bodies(1) == [b"2"]
    buffer.deliveries.bury(deliveries[2][0], "no")
    buffer.deliveries.hand_back(deliveries[3][0])
    assert await Consumer(buffer).bodies(1) == [b"4"]
    await until_settled(engine, store)
    assert [row["state"] for row in store.messages(queue)] == [State.DEAD]
    again = ["publish", "deliver", "return", "deliver", "settle"]
    assert lives(store) == [WHOLE, again, ["publish", "deliver", "dead-letter"], again]
    await verified("jobs")


async def test_settlements_of_each_consumer_are_recorded_and_archived_as_its_own(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    keys = [add_key(store, "one"), add_key(store, "two")]
    buffer = await engine.queue("jobs")
    workers = [Worker(buffer), Worker(buffer)]
    for worker, key in zip(workers, keys, strict=True):
        worker.key = key
        worker.grant(2)
    await store.until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "an empty claim")
    await publish(engine, "jobs", *FOUR)
    jobs = [await worker.take(2) for worker in workers]
    assert segments(store) == 1
    assert buffer.deliveries.complete_many([job.tag for some in jobs for job in some]) == []
    await until_settled(engine, store)
    had = {str(job.id): name for some, name in zip(jobs, ("one", "two"), strict=True) for job in some}
    assert {id: sender for event, id, sender, _ in rows(store, "jobs") if event == "settle"} == had
    consumers = {str(row["id"]): row["consumer_id"] for row in store.archived(queue)}
    assert consumers == {id: keys[name == "two"] for id, name in had.items()}
    assert store.rows("select from queues_archivedmessage") == []


async def test_only_what_was_there_is_recorded_of_a_segment(engine: Engine, store: Store) -> None:
    store.queue("jobs", audited=True)
    buffer, first = await taken(engine, *FOUR)
    _, second = await taken(engine, *FOUR)
    [gone] = await store.change("delete from queues_segment where first = (select min(first) from queues_segment)"
                                " returning first")  # fmt: skip
    tags = [delivery[0] for delivery in (*first, *second)]
    assert buffer.deliveries.ack_many(tags) == []
    await until_settled(engine, store)
    assert [events[-1] for events in lives(store)] == ["deliver"] * 4 + ["settle"] * 4
    assert min(map(int, told(store))) == gone["first"]


async def test_messages_whose_segment_was_unpacked_elsewhere_are_settled_as_rows(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, first = await taken(engine, *FOUR)
    _, second = await taken(engine, b"5")
    _, third = await taken(engine, *FOUR)
    await store.change("select queues_unpack_segments(array(select min(first) from queues_segment where count = 4))")
    await store.change("select queues_unpack_segments(array(select min(first) from queues_segment where count = 1))")
    assert len(store.rows("select from queues_message")) == 5
    assert buffer.deliveries.ack_many([delivery[0] for delivery in (*first, *second, *third)]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 9
    assert len(store.archived(queue)) == 9
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_audit_that_is_switched_off_ends_the_record_of_open_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    await store.change("update queues_queue set audited = false where id = %s returning id", queue)
    await store.until(lambda: buffer.audited is None, "the news")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[1:]]) == []
    await until_settled(engine, store)
    assert [events[-1] for events in lives(store)] == ["settle", *["deliver"] * 3]
    assert len(store.archived(queue)) == 4
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_audit_that_is_switched_on_begins_the_record_of_ready_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer = await engine.queue("jobs")
    await publish(engine, "jobs", *FOUR)
    await store.change("update queues_queue set audited = true where id = %s returning id", queue)
    await store.until(lambda: buffer.audited is not None, "the news")
    assert await Consumer(buffer).bodies(4) == list(FOUR)
    await until_settled(engine, store)
    assert lives(store) == [["deliver", "settle"]] * 4


async def test_a_broken_chain_keeps_segments_open_until_it_is_mended(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    await store.until(lambda: "deliver" in happened(store, "jobs"), "the record of the deliveries")
    [head] = await store.change("delete from queues_audithead returning *")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[:3]]) == []
    round = engine.settling_of(buffer)
    refused = await publish(engine, "jobs", *FOUR)
    assert [type(error) for _, error in refused.failed] == [Unstorable] * 4
    await store.until(lambda: engine.settlements._audited[queue].waits, "it has been tried")
    assert engine.settles(round)
    assert (segments(store), store.counts(queue)) == (1, (0, 4, 0, 0))
    await store.change("insert into queues_audithead values (%s, %s, %s, %s) returning 1 as one", *head.values())
    await store.until(lambda: not engine.settles(round), "the settlement")
    assert buffer.deliveries.ack(deliveries[3][0])
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 4
    assert len(store.archived(queue)) == 4
    assert engine.counts.reconnects == 0
    await verified("jobs")


@pytest.mark.parametrize("event", ["publish", "settle"])
async def test_rows_that_a_chain_does_not_take_undo_what_they_would_record(
    engine: Engine, store: Store, event: str
) -> None:
    queue = store.queue("jobs", audited=True)
    store.queue("plain")
    buffer, deliveries = await taken(engine, *FOUR)
    await store.until(lambda: "deliver" in happened(store, "jobs"), "the record of the deliveries")
    async with refusing(store, f"new.event = '{event}'"):
        if event == "publish":
            refused = await publish(engine, "jobs", b"5", b"6")
            why = "queue:jobs: the database reports an error (RaiseException, P0001)"
            assert [str(error).endswith(why) for _, error in refused.failed] == [True, True]
            assert len(store.messages(queue)) == 4
        else:
            assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
            await store.until(lambda: engine.settlements._audited[queue].waits, "it has been tried")
            assert (segments(store), store.counts(queue)) == (1, (0, 4, 0, 0))
        assert (await publish(engine, "plain", b"7")).failed == []
    if event == "publish":
        assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
    await until_settled(engine, store)
    assert lives(store) == [WHOLE] * 4
    assert engine.counts.reconnects == 0


async def test_a_commit_of_segments_whose_answer_was_lost_is_recorded_once(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("jobs", audited=True)
    await publish(engine, "jobs", *FOUR)
    buffer = await engine.queue("jobs")
    assert await Consumer(buffer).bodies(1, ack=False) == [b"1"]
    await store.until(lambda: "deliver" in happened(store, "jobs"), "the record of the delivery")
    committed, lost = SettlementWriter._committed, asyncio.Event()

    def lose(self: SettlementWriter, lane: Any, part: Any, effects: Any) -> None:
        if not lost.is_set() and any(one.kind.name == "ACKNOWLEDGE" for one in part):
            lost.set()
            engine.connections["settlements"].pgconn.finish()
            raise psycopg.OperationalError("the connection was lost at the commit")
        committed(self, lane, part, effects)

    monkeypatch.setattr(SettlementWriter, "_committed", lose)
    [(tags, _)] = buffer.deliver_many(now(), 3)
    assert buffer.deliveries.ack_many(tags) == []  # in one transaction with the record of their deliveries
    await lost.wait()
    await store.until(lambda: engine.available and engine.settlements.idle, "the engine's return")
    await store.until(lambda: engine.settlements.unsettled == 0, "the count of what is unsettled")
    assert await Consumer(await engine.queue("jobs")).bodies(1) == [b"1"]
    await until_settled(engine, store)
    assert lives(store) == [["publish", "deliver", "deliver", "settle"], *[WHOLE] * 3]
    assert len(store.archived(queue)) == 4
    await verified("jobs")


async def test_of_a_dead_node_an_untouched_segment_is_delivered_by_another(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs", audited=True)
    first, second = await make_engine(segment_messages=2), await make_engine(segment_messages=2)
    await publish(first, "jobs", *FOUR)
    buffer = await first.queue("jobs")
    assert await Consumer(buffer).bodies(1, ack=False) == [b"1"]
    await store.until(lambda: len(buffer.ready) == 3, "the others in memory")
    assert segments(store) == 1
    await kill(first, store)
    assert await Consumer(await second.queue("jobs")).bodies(4) == list(FOUR)
    await until_settled(second, store)
    assert [events[0] for events in lives(store)] == ["publish"] * 4
    assert [events[-2:] for events in lives(store)] == [["deliver", "settle"]] * 4
    assert len(store.archived(queue)) == 4
    await verified("jobs")


async def test_two_nodes_record_each_message_once_and_in_order(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("jobs", audited=True, max_attempts=0)
    engines = [await make_engine(segment_messages=2) for _ in range(2)]
    done = asyncio.Event()

    async def consume(engine: Engine) -> None:
        consumer = Consumer(await engine.queue("jobs"))
        while not done.is_set():
            delivery = await consumer.next(600.0)
            assert delivery is not None
            if delivery[1] == b"7" and not delivery[2]:
                consumer.buffer.deliveries.give_back(delivery[0], delay=0.0)
            else:
                assert consumer.buffer.deliveries.ack(delivery[0])

    async def produce(engine: Engine) -> None:
        for _ in range(40):
            await Producer(engine).publish("jobs", *[b"%d" % n for n in range(10)])

    consuming = [asyncio.create_task(consume(engine)) for engine in engines]
    await asyncio.gather(*(produce(engine) for engine in engines))
    await store.until(lambda: len(store.archived(queue)) == 800, "the last message")
    done.set()
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)
    for engine in engines:
        await until_settled(engine, store)
    assert Counter(map(tuple, lives(store))) == {
        tuple(WHOLE): 720, ("publish", "deliver", "return", "deliver", "settle"): 80,
    }  # fmt: skip
    assert len(rows(store, "jobs", together=True)) < len(rows(store, "jobs"))
    await verified("jobs")


async def test_operators_record_each_message_of_ready_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs", audited=True)
    store.queue("other", audited=True)
    await publish(engine, "jobs", *FOUR)
    ids = [row["id"] for row in store.messages(queue)]
    assert await in_django(message_operations.remove_messages, "jobs", ids[:1], by="bob") == 1
    assert await in_django(message_operations.move, "jobs", "other", [State.READY], 1, by="bob") == 1
    await publish(engine, "jobs", *FOUR)
    assert segments(store) == 1
    assert await in_django(message_operations.purge, "jobs", by="alice") == 6
    expected = [["publish", "remove"], ["publish", "move"], *[["publish", "purge"]] * 6]
    await store.until(lambda: lives(store) == expected, "the record")


async def test_a_dropped_subscription_tells_of_each_message_of_its_segments(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(segment_messages=2)
    subscription = await engine.subscriptions.create(b"t", 1, None)
    (row,) = await store.change(
        "update queues_queue set audited = true where id = %s returning name", subscription.buffer.id
    )
    await publish(engine, "topic:t", *FOUR)
    await publish(engine, "topic:t", *FOUR)
    first = store.rows("select min(first) as first from queues_segment")[0]["first"]
    await store.change("insert into queues_segmentsettlement (slot, first, low, high, kept)"
                       " values (0, %s, 1, 2, false) returning 1", first)  # fmt: skip
    await store.change("update queues_subscription set used_at = now() - interval '8 days' returning id")
    await make_engine(idle_subscription_days=7, idle_subscription_notice=0)
    expired, settled = ["publish", "expire"], ["publish"]
    expected = [expired, settled, settled, expired, *[expired] * 4]
    await store.until(lambda: lives(store, row["name"]) == expected, "the record")


# Transactions in two round trips.


async def test_events_of_the_journal_come_before_those_of_a_settlement_however_many(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.SEAL", 1e9)
    for module in ("queues.engine.audit", "queues.audit.events"):
        monkeypatch.setattr(f"{module}.MAX_ROWS", 3)
    store.queue("jobs", audited=True)
    buffer, deliveries = await taken(engine, *FOUR)
    await store.until(lambda: "deliver" in happened(store, "jobs"), "the record of the deliveries")
    await store.change(
        "insert into queues_auditjournal (chain, event, record_id, sender, recipient)"
        " select 'queue:jobs', 'copy', n::text, 'ann', 'jobs' from generate_series(1, 8) n returning 1"
    )
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
    await until_settled(engine, store)
    assert happened(store, "jobs") == [*["publish"] * 4, *["deliver"] * 4, *["copy"] * 8, *["settle"] * 4]
    assert [row[1] for row in rows(store, "jobs") if row[0] == "copy"] == [str(n) for n in range(1, 9)]
    await verified("jobs")


async def test_a_transaction_that_fails_leaves_its_connection_fit_for_the_next(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    record = audit.AuditRecord([audit.AuditEvent("copy", "1", "ann", "jobs")])
    chains = [queue_chain(name) for name in ("a", "b")]
    async with await connect(store.conninfo, "requests") as connection:

        async def attempt(*statements: bytes) -> None:
            async with audit.transaction(connection) as transaction:
                cursors = [await connection.execute(statement) for statement in statements]
                for chain in chains:
                    await transaction.lock(chain)
                for cursor in cursors:
                    await cursor.fetchall()
                for chain in chains:
                    await transaction.append(chain, record)

        for statements in ([b"select 1/0"], [b"select 1", b"select 1/0"]):
            with pytest.raises(psycopg.errors.DivisionByZero):
                await attempt(*statements)
            assert is_idle(connection)
        await attempt(b"select 1")
        for name in ("a", "b"):
            number = f"(select id from queues_auditchain where name = 'queue:{name}')"
            [found] = store.rows(f"select {number} as id")
            async with refusing(store, f"new.chain_id = {found['id']}"):
                with pytest.raises(audit.ChainBroken, match=f"queue:{name}: the database reports an error"):
                    await attempt(b"select 1")
            assert is_idle(connection)
            await attempt(b"select 1")
    assert [len(rows(store, name)) for name in ("a", "b")] == [3, 3]
    assert caplog.text == ""
