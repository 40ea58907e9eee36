"""One row that no statement may change costs itself: periodic work on the rows behind it goes on, in the same batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from queues.engine.api import Engine
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.queues.engine.faults import unwritable
from tests.queues.engine.mailbox.test_service import Peer
from tests.tables import altering

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def peers_key() -> int:
    return create_key("peers")[0].pk


def put(store: Store, queue: int, *bodies: bytes, columns: str = "state", values: str = "0") -> None:
    """Store messages that no node is told of, at once."""
    sql = (
        f"insert into queues_message (id, queue_id, payload, {columns})"
        f" select nextval('queues_message_id'), %s, body, {values} from unnest(%s::bytea[]) body"
    )
    with psycopg.connect(store.conninfo) as one:
        one.execute(sql.encode(), (queue, list(bodies)))


def states(store: Store, queue: int) -> dict[bytes, int]:
    return {bytes(row["payload"]): row["state"] for row in store.messages(queue)}


def unharmed(engine: Engine, unit: str) -> None:
    """The one thing was isolated, once, and nothing else happened."""
    assert (engine.health.isolated, engine.counts.reconnects, engine.unready_reasons()) == ({unit: 1}, 0, [])


@contextmanager
def untouchable(store: Store, table: str, operation: str, when: str) -> Iterator[None]:
    """Within it no statement may do this to these rows."""
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        connection.execute(
            b"create or replace function fail_on_poison() returns trigger language plpgsql as"
            b" $$ begin raise 'this row fails' using errcode = '22012'; end $$"
        )
        connection.execute(
            f"create trigger untouchable before {operation} on {table} for each row when ({when})"
            " execute function fail_on_poison()".encode()
        )
        try:
            yield
        finally:
            connection.execute(altering(table, f"drop trigger untouchable on {table}").encode())


BATCH = [*[b"%d" % n for n in range(20)], b"poison", b"last"]
OTHERS = [body for body in BATCH if body != b"poison"]


async def test_a_delayed_message_that_cannot_become_ready_is_a_dead_letter_and_the_others_come_in_time(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    async with unwritable(store, "update", when="new.state = 0"):
        put(store, queue, *BATCH, columns="state, due_at", values="2, now()")
        await store.until(
            lambda: states(store, queue) == dict.fromkeys(OTHERS, 0) | {b"poison": 3}, "the dead letter, and the rest"
        )
    assert "delayed message failed" in next(row["error"] for row in store.messages(queue) if row["state"] == 3)
    unharmed(engine, "delayed message")
    put_by_hand = f"insert into queues_queuetally (queue_id, delayed) values ({queue}, {len(BATCH)}) returning id"
    assert store.rows(put_by_hand)
    assert store.counts(queue) == (len(OTHERS), 0, 0, 1)


async def test_a_delayed_message_that_cannot_be_changed_at_all_stays_and_is_told_of_once(
    make_engine: MakeEngine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    async with unwritable(store, "update"):
        put(store, queue, *BATCH, columns="state, due_at", values="2, now()")
        await store.until(lambda: list(states(store, queue).values()).count(0) == len(OTHERS), "the others")
        put(store, queue, b"later", columns="state, due_at", values="2, now() + '0.2 s'")
        await store.until(lambda: states(store, queue)[b"later"] == 0, "what is due later")
        assert states(store, queue)[b"poison"] == 2
        unharmed(engine, "delayed message")
    told = [record.getMessage() for record in caplog.records if "delayed message failed" in record.getMessage()]
    assert len(told) == 1
    assert f"queue={queue}" in told[0]


async def test_an_expired_message_that_cannot_be_removed_is_a_dead_letter_and_the_others_go(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    async with unwritable(store, "delete"):
        put(store, queue, *BATCH, columns="state, expires_at", values="0, now()")
        await store.until(lambda: states(store, queue) == {b"poison": 3}, "the dead letter, and the others' end")
    unharmed(engine, "message that outlived its time")
    await store.until(lambda: engine.counts.expired == len(OTHERS), "the count")


async def test_a_queue_whose_counts_cannot_be_written_keeps_no_other_queues_from_theirs(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    poison, neighbour = store.queue("orders"), store.queue("neighbour")
    with untouchable(store, "queues_queuecount", "insert", f"new.queue_id = {poison}"):
        for queue in ("orders", "neighbour", "orders", "neighbour"):
            await Producer(engine).publish(queue, b"1")
        counted = f"select 1 from queues_queuecount where queue_id = {neighbour} and published = 2"
        await store.until(lambda: store.rows(counted), "the neighbour's count")
        await store.until(lambda: engine.health.isolated, "the other's failure")
        unharmed(engine, "count of a queue")
    assert store.counts(poison)[0] == 2, "what was not folded counts all the same"


async def test_a_dead_nodes_lease_that_cannot_be_returned_is_a_dead_letter_and_the_others_are_ready(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    gone = "insert into queues_node (name, host, pid, first_message_id) values ('gone', 'h', 0, 1) returning id"
    async with unwritable(store, "update", when="new.state = 0"):
        with psycopg.connect(store.conninfo) as dying:
            [(node,)] = dying.execute(gone.encode()).fetchall()
            dying.execute(
                "insert into queues_message (id, queue_id, payload, state, node_id)"
                " select nextval('queues_message_id'), %s, body, 1, %s from unnest(%s::bytea[]) body",
                (queue, node, BATCH),
            )
        await store.until(
            lambda: states(store, queue) == dict.fromkeys(OTHERS, 0) | {b"poison": 3}, "the dead letter, and the rest"
        )
        await store.until(lambda: not store.rows(f"select from queues_node where id = {node}"), "the node's end")
    unharmed(engine, "return of a dead node's lease")


async def test_an_error_that_no_row_is_to_blame_for_makes_no_dead_letters(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders")
    many = [b"%d" % n for n in range(100)]
    with untouchable(store, "queues_message", "update", "new.state = 0 and old.state = 2"):
        put(store, queue, *many, columns="state, due_at", values="2, now()")
        await store.until(lambda: any("delays" in reason for reason in engine.unready_reasons()), "what is told")
        assert set(states(store, queue).values()) == {2}
    await store.until(lambda: set(states(store, queue).values()) == {0}, "the end of all delays")


async def test_a_letter_that_cannot_be_claimed_is_a_dead_letter_and_its_peer_gets_the_others(
    make_engine: MakeEngine, store: Store, peers_key: int
) -> None:
    engine = await make_engine(mailboxes=True)
    sender, away = await Peer(engine, "sender", peers_key).here(), await Peer(engine, "reader", peers_key).here()
    mailbox_service = engine.mailboxes
    assert mailbox_service is not None
    away.leave()
    await store.until(lambda: mailbox_service.idle, "its leave")
    await sender.send("reader", *[str(n) for n in range(20)], "poison", "last")
    async with unwritable(store, "update", b"body of poison", when="new.state = 1"):
        reader = await Peer(engine, "reader", peers_key).here()
        assert await reader.got(21) == [*[str(n) for n in range(20)], "last"]
    assert (reader.error, sender.error, engine.counts.reconnects) == (None, None, 0)
    [dead] = store.rows("select error from queues_message where state = 3")
    assert "not claimed" in dead["error"]


async def test_a_full_queue_takes_new_messages_though_its_oldest_cannot_be_dropped(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("orders", max_length=2, overflow="drop-oldest")
    producer = Producer(engine)
    await producer.publish("orders", b"poison", b"1")
    async with unwritable(store, "delete"):
        for body in (b"2", b"3", b"4"):
            await producer.publish("orders", body)
    assert producer.failed == []
    await store.until(lambda: states(store, queue) == {b"3": 0, b"4": 0, b"poison": 3}, "the oldest are dropped")
    unharmed(engine, "drop of the oldest")


async def test_idle_subscriptions_go_though_one_of_them_cannot_be_removed(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await make_engine()
    made = [await keeper.subscriptions.create(b"t", 1, None) for _ in range(4)]
    await store.change("update queues_subscription set used_at = now() - interval '8 days' returning 1")
    with untouchable(store, "queues_subscription", "delete", f"old.id = {made[0].id}"):
        engine = await make_engine(idle_subscription_days=7, idle_subscription_notice=0)
        await store.until(lambda: len(store.rows("select from queues_subscription")) == 1, "the others are removed")
    unharmed(engine, "removal of an idle subscription")


async def test_other_queues_are_tidied_and_looked_at_though_the_end_of_interest_in_one_cannot_be_written(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 0.1)
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 0.2)
    engine = await make_engine()
    poison, *others = [store.queue(name) for name in ("poison", "one", "two", "three")]
    consumer = Consumer(await engine.queue("three"))
    with untouchable(store, "queues_interest", "delete", f"old.queue_id = {poison}"):
        for name in ("poison", "one", "two"):
            await Producer(engine).publish(name, b"1")
            await Consumer(await engine.queue(name)).bodies(1)
        rows = "select queue_id from queues_interest order by 1"
        waiting = asyncio.create_task(consumer.next())
        await store.until(
            lambda: [row["queue_id"] for row in store.rows(rows)] == [poison, others[2]], "the others' end"
        )
        with_counts = "with t as (insert into queues_queuetally (queue_id, ready, published) values (%s, 1, 1))"
        await store.change(
            f"{with_counts} insert into queues_message (id, queue_id, state, payload)"
            " values (nextval('queues_message_id'), %s, 0, 'untold') returning 1", others[2], others[2],
        )  # fmt: skip
        delivery = await waiting
        assert delivery is not None
        assert delivery[1] == b"untold"
    unharmed(engine, "end of interest in a queue")
