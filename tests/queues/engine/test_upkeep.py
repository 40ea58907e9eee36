"""The engine's periodic work, and its refusals to start."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queues.engine.api import DetailedMessage, Engine, NotMigrated, UnsafeServer, UnsupportedServer
from queues.engine.database import check_server
from queues.engine.statements import statement
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.waiting import PATIENCE

DAY = datetime.timedelta(days=1)


def partitions(store: Store) -> set[str]:
    rows = store.rows(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'queues_archivedmessage'::regclass"
    )
    return {row["name"] for row in rows}


async def test_a_node_looks_for_what_it_has_delayed_itself_when_that_is_due(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.DUE", 1e9)  # by the clock alone it would not look again
    store.queue("orders")
    engine = await make_engine()
    consumer = Consumer(await engine.queue("orders"))
    await Producer(engine).publish_detailed(
        "orders", DetailedMessage(b"last", delay=0.1), DetailedMessage(b"first", delay=0.05)
    )
    assert await consumer.bodies(1) == [b"first"]
    [delivery] = [await consumer.next()]
    assert delivery is not None
    assert delivery[1] == b"last"
    consumer.buffer.deliveries.give_back(delivery[0], delay=0.05)
    assert await consumer.bodies(1) == [b"last"]


async def test_partitions_are_made_a_week_ahead(make_engine: MakeEngine, store: Store) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    store.connection.execute(f"drop table queues_archive_{today + 3 * DAY:%Y%m%d}".encode())
    await make_engine()
    wanted = {f"queues_archive_{today + n * DAY:%Y%m%d}" for n in range(7)}
    await store.until(lambda: wanted <= partitions(store), "the partition")


def test_messages_finished_on_a_day_without_a_partition_are_kept_and_moved_when_there_is_one(store: Store) -> None:
    later = datetime.datetime.now(datetime.UTC) + 30 * DAY
    store.rows(
        "insert into queues_archive (id, queue_id, outcome, attempts, published_at, finished_at, size) "
        "values (1, 7, 0, 0, now(), %s, 1) returning id",
        later,
    )
    assert len(store.rows("select from queues_archive_default")) == 1
    store.rows("select queues_make_archive_partitions(%s, 1)", later.date())
    assert store.rows("select from queues_archive_default") == []
    assert len(store.archived(7)) == 1


async def test_an_orderly_stop_has_the_last_rows_of_the_audit_chains_signed(
    store: Store, producer: Producer, engine: Engine, settings: Any, tmp_path: Path
) -> None:
    settings.DATA_DIR = tmp_path
    queue = store.queue("orders", audited=True)
    consumer = Consumer(await engine.prefetched_queues.open(queue))
    await producer.publish("queue:orders", b"m1")
    assert await consumer.bodies(1) == [b"m1"]
    await engine.stop(5.0)
    rows = store.rows("select seq from queues_audit order by seq desc limit 1")
    [anchor] = store.rows("select seq, kind from queues_auditanchor")
    assert (anchor["seq"], anchor["kind"]) == (rows[0]["seq"], "interval")


async def test_partitions_older_than_the_retention_are_dropped(make_engine: MakeEngine, store: Store) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    store.rows("select queues_make_archive_partitions(%s, 4)", today - 4 * DAY)
    await make_engine(archive_days=2)
    gone = {f"queues_archive_{today - n * DAY:%Y%m%d}" for n in (3, 4)}
    await store.until(lambda: not gone & partitions(store), "the drop")
    now = datetime.datetime.now(datetime.UTC).date()  # the engine may have begun after midnight
    assert {f"queues_archive_{now - n * DAY:%Y%m%d}" for n in (0, 1, 2)} <= partitions(store)
    store.rows("select queues_drop_archive_partitions(%s)", today)


async def test_acknowledgements_do_not_wait_until_a_backup_ends_because_an_old_day_is_to_be_dropped(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.PARTITIONS_AGAIN", 0.1)
    queue = store.queue("q")
    old = datetime.datetime.now(datetime.UTC).date() - 4 * DAY
    store.rows("select queues_make_archive_partitions(%s, 1)", old)
    partition = f"queues_archive_{old:%Y%m%d}"
    assert partition in partitions(store)
    with psycopg.connect(store.conninfo) as backup:
        backup.execute("select from queues_archive limit 1")
        engine = await make_engine(archive_days=2)
        tried = asyncio.Event()
        monkeypatch.setattr(engine.maintenance, "_forget_letters", set_after(engine.maintenance._forget_letters, tried))
        await Producer(engine).publish("q", b"1")
        assert await Consumer(await engine.queue("q")).bodies(1) == [b"1"]
        await store.until(lambda: store.archived(queue), "the settlement")
        await asyncio.wait_for(tried.wait(), PATIENCE)
        assert partition in partitions(store)
        backup.rollback()
    await store.until(lambda: partition not in partitions(store), "the drop")
    assert engine.counts.reconnects == 0


def set_after(function: Callable[..., Awaitable[None]], event: asyncio.Event) -> Callable[..., Awaitable[None]]:
    async def wrapped(*arguments: Any) -> None:
        await function(*arguments)
        event.set()

    return wrapped


async def test_idle_subscriptions_go_only_when_they_are_told_to(make_engine: MakeEngine, store: Store) -> None:
    keeper = await make_engine()
    old = await keeper.subscriptions.create(b"t", 1, None)
    new = await keeper.subscriptions.create(b"t", 1, None)
    sql = "update queues_subscription set used_at = now() - interval '8 days' where id = %s returning id"
    await store.change(sql, old.id)
    await Producer(keeper).publish("topic:t", b"x")
    await make_engine(idle_subscription_days=7, idle_subscription_notice=0)
    await store.until(lambda: len(store.rows("select from queues_subscription")) == 1, "the removal")
    assert store.messages(old.buffer.id) == []
    assert len(store.messages(new.buffer.id)) == 1
    await store.until(lambda: old.buffer.closed, "the news of it")
    assert await keeper.subscriptions.load(old.id) is None


async def test_the_end_of_an_idle_subscription_is_told_before_and_a_poll_prevents_it(
    make_engine: MakeEngine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = await make_engine()
    polled, idle = [await keeper.subscriptions.create(topic, 1, None) for topic in (b"polled", b"idle")]
    await keeper.stop()  # else it notes that they are used
    long_ago = "update queues_subscription set used_at = now() - interval '90 days' returning id"  # nobody could poll
    await store.change(long_ago)
    engine = await make_engine(idle_subscription_days=30, idle_subscription_notice=7)
    told = "select from queues_subscription where ends_at > now() + interval '6 days'"
    await store.until(lambda: len(store.rows(told)) == 2, "the notice")
    await store.until(lambda: f"{idle.id} of 'idle'" in caplog.text, "the line")
    await engine.stop()
    with psycopg.connect(keeper.options.conninfo) as connection:
        connection.execute(statement("touch_subscriptions"), {"queues": [polled.buffer.id]})
    await store.change("update queues_subscription set ends_at = now() where ends_at is not null returning id")
    await make_engine(idle_subscription_days=30, idle_subscription_notice=7)
    await store.until(lambda: len(store.rows("select from queues_subscription")) == 1, "the removal")
    assert [row["id"] for row in store.rows("select id from queues_subscription")] == [polled.id]


async def test_qos_0_messages_stay_in_memory_and_are_bounded(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine(transient_messages=20, transient_bytes=100)
    subscription = await engine.subscriptions.create(b"t", 0, None)
    producer = Producer(engine)
    await producer.publish("topic:t", *[b"%d" % n for n in range(30)])
    assert store.messages(subscription.buffer.id) == []
    assert len(subscription.transient) == 20
    assert subscription.take_transient() == b"10"
    assert engine.counts.transient_dropped == 10
    await producer.publish("topic:t", b"x" * 99)
    assert [body for _, body in subscription.transient] == [b"x" * 99]
    assert engine.counts.transient_dropped == 10 + 19


async def test_qos_0_messages_reach_the_node_that_polls(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 3600.0)  # it polls once, and that holds
    first, second = await make_engine(), await make_engine()
    here = await first.subscriptions.create(b"t", 0, None)
    here.buffer.deliver(asyncio.get_running_loop().time())  # a poll: the node is interested from now on
    await store.until(lambda: store.rows("select from queues_interest"), "the interest")
    await Producer(second).publish("topic:t", b"x")
    await store.until(lambda: [body for _, body in here.transient] == [b"x"], "the message")


async def test_a_server_that_could_lose_what_was_confirmed_is_refused(engine: Engine) -> None:
    class Server:
        """A server with one thing wrong, as far as `check_server` looks."""

        def __init__(self, version: int = 160000, **wrong: object) -> None:
            self.info = type("Info", (), {"server_version": version})
            self.wrong = wrong

        async def fetch(self, query: bytes | str) -> list[tuple[object]]:
            words = query.decode() if isinstance(query, bytes) else query
            return [(next((value for name, value in self.wrong.items() if name in words), "on"),)]

    await check_server(Server())  # type: ignore[arg-type]
    for name in ("fsync", "full_page_writes"):
        with pytest.raises(UnsafeServer, match=f"{name} is off; it must be on"):
            await check_server(Server(**{name: "off"}))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedServer, match="13; 14 or later"):
        await check_server(Server(130012))  # type: ignore[arg-type]
    with pytest.raises(NotMigrated, match=r"manage\.py migrate"):
        await check_server(Server(to_regclass=False))  # type: ignore[arg-type]


async def test_commits_are_durable_in_the_engines_sessions_but_for_claims_and_upkeep(engine: Engine) -> None:
    durable = dict.fromkeys(("writer", "settlements", "requests", "delays"), "on")
    local = dict.fromkeys(("reaper", "lookups", "liveness"), "local")
    for purpose, setting in (durable | local | {"fetcher": "off", "upkeep": "off"}).items():
        connection = engine.connections[purpose]
        row = await (await connection.execute("show synchronous_commit")).fetchone()
        assert row == (setting,)


def test_statements_travel_without_their_comments() -> None:
    assert b"--" not in statement("publish")


async def test_samples_of_the_queues_are_taken_by_the_clock_also_after_one_has_failed(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.periodic.SAMPLES", 0.05)
    monkeypatch.setattr("queues.engine.cluster.periodic.SPREAD", 0.0)
    taken: list[int] = []

    def take() -> None:
        taken.append(len(taken))
        if len(taken) == 1:
            raise OSError("the database is away")

    engine = await make_engine(take_sample=take)
    await store.until(lambda: len(taken) >= 3, "the third sample")
    assert engine.counts.reconnects == 0
