"""The engine's sessions: set as they must be whatever the role says, not shared by a pooler, left when the server is
silent. A database that lets publishers wait is told of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection as django_connection
from django.test import AsyncClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from brokersite.databases import database_settings
from queues.api import publish
from queues.checks import check_database_sessions
from queues.database.parameters import SOCKET_DIRECTORY, connection_parameters, engine_parameters
from queues.engine import audit
from queues.engine.api import Engine, options_from_settings
from queues.engine.connections import PURPOSES
from queues.engine.database import Connection, check_sessions, connect, session_settings, watch
from queues.engine.errors import OutcomeUnknown, Pooled
from queues.models import Message
from queues.monitoring.health import readiness
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = {
    "statement_timeout": "'20ms'", "lock_timeout": "'1ms'", "idle_session_timeout": "'50ms'",
    "synchronous_commit": "off", "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "on", "enable_seqscan": "on", "plan_cache_mode": "'force_custom_plan'",
    "idle_in_transaction_session_timeout": "'1ms'",
}  # fmt: skip


@pytest.fixture
def three_keys() -> list[tuple[int, str]]:
    return [(row.pk, text) for row, text in (create_key(name, publish=["*"]) for name in ("one", "two", "three"))]


@contextlib.contextmanager
def role_with(store: Store, settings: dict[str, str]) -> Iterator[None]:
    """The role of the tests, set to this in the test's database; Django's connection is a new one."""
    with psycopg.connect(store.conninfo, autocommit=True) as operator:
        row = operator.execute("select current_user, current_database()").fetchone()
        assert row is not None
        who = sql.SQL("alter role {} in database {}").format(*map(sql.Identifier, row))
        for name, value in settings.items():
            operator.execute(sql.SQL("{} set {} to {}").format(who, sql.Identifier(name), sql.SQL(value)))
        django_connection.close()
        try:
            yield
        finally:
            django_connection.close()
            operator.execute("set default_transaction_read_only = off")
            operator.execute(sql.SQL("{} reset all").format(who))


@pytest.fixture
def hostile_role(store: Store) -> Iterator[None]:
    """A role that is set to all that would break the engine."""
    with role_with(store, HOSTILE):
        yield


async def setting(connection: Connection, name: str) -> str:
    """A setting of a session, outside its transactions, which may have others: periodic work goes on meanwhile."""
    while True:
        row = await (await connection.execute(f"show {name}".encode(), prepare=False)).fetchone()
        assert row is not None
        if connection.info.transaction_status == TransactionStatus.IDLE:
            return str(row[0])
        await asyncio.sleep(0.01)


async def test_a_role_with_timeouts_and_settings_of_its_own_neither_restarts_the_engine_nor_weakens_it(
    store: Store, hostile_role: None, make_engine: MakeEngine
) -> None:
    engine = await make_engine()
    node = engine.node
    for purpose, at in engine.connections.items():
        if purpose != "listener":
            for name, value in session_settings(purpose).items():
                found = await setting(at, name)
                assert found.lower() == value.lower(), (purpose, name)
    await asyncio.sleep(0.2)  # longer than the role's sessions may be idle
    store.queue("orders")
    await Producer(engine).publish("orders", b"1")
    assert await Consumer(await engine.queue("orders")).bodies(1) == [b"1"]
    assert (engine.node, engine.counts.reconnects) == (node, 0)


def test_a_publish_of_djangos_is_durable_though_the_role_is_read_only_and_commits_without_the_disk(
    store: Store,
) -> None:
    store.queue("orders")
    with role_with(store, {"synchronous_commit": "off", "default_transaction_read_only": "on"}):
        assert not check_database_sessions(None, ["default"])
        publish("orders", b"1")
        assert Message.objects.get().payload == b"1"


def test_a_page_of_the_admin_does_not_wait_for_the_compiler_of_a_server_that_has_one(store: Store) -> None:
    with role_with(store, {"jit": "on"}), django_connection.cursor() as cursor:
        cursor.execute("show jit")
        assert cursor.fetchone() == ("off",)


def test_a_session_that_lost_its_settings_on_the_way_is_an_error_of_check(transactional_db: None) -> None:
    with django_connection.cursor() as cursor:
        cursor.execute("set default_transaction_read_only = on")
        cursor.execute("set synchronous_commit = off")
        try:
            messages = check_database_sessions(None, ["default"])
        finally:
            cursor.execute("reset all")
    assert [(message.id, message.msg) for message in messages] == [
        ("fivewire.E005", "Django's sessions have synchronous_commit = off."),
        ("fivewire.E005", "Django's sessions have default_transaction_read_only = on."),
    ]


#: What the server's side of a connection looks with; its tcp_user_timeout as a number of milliseconds.
OF_THE_SERVER = """
    select current_setting('tcp_keepalives_idle')::int, current_setting('tcp_keepalives_interval')::int,
        (select setting::int from pg_settings where name = 'tcp_user_timeout')
"""


async def test_a_host_that_vanishes_keeps_its_lock_for_half_a_minute_at_most(make_engine: MakeEngine) -> None:
    engine = await make_engine(conninfo=make_conninfo(**connection_parameters()))
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    for purpose, at in engine.connections.items():
        if purpose != "listener":
            rows = [await (await at.execute(f"show {name}".encode(), prepare=False)).fetchone() for name in names]
            idle, interval, count = (int(row[0]) for row in rows if row is not None)
            assert 0 < idle + interval * count <= 30, purpose


async def test_a_connection_is_not_lost_with_one_packet_that_looks_whether_the_server_is_there(
    make_engine: MakeEngine,
) -> None:
    engine = await make_engine(conninfo=make_conninfo(**connection_parameters()))
    at = engine.connections["upkeep"]
    given = at.info.get_parameters()
    here = [int(given[name]) for name in ("keepalives_idle", "keepalives_interval", "tcp_user_timeout")]
    [there] = await at.fetch(OF_THE_SERVER, prepare=False)
    for idle, interval, timeout in (here, there):
        assert timeout / 1000 >= idle + 3 * interval


def test_an_engine_takes_the_unix_socket_of_a_server_that_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, by_network = django_connection.settings_dict, connection_parameters()
    monkeypatch.setitem(entry, SOCKET_DIRECTORY, "/run/here")
    assert conninfo_to_dict(options_from_settings("test").conninfo)["host"] == "/run/here"
    assert connection_parameters() == by_network
    monkeypatch.setitem(entry, SOCKET_DIRECTORY, "")
    assert engine_parameters() == by_network


async def test_a_pooler_that_shares_sessions_is_refused_with_the_reason(transactional_db: None) -> None:
    one = await connect(options_from_settings("test").conninfo, "test")
    try:
        with pytest.raises(Pooled, match="session pooling"):
            await check_sessions({"writer": one, "listener": one})
        assert await check_sessions({"writer": one}) == [one.info.backend_pid]
    finally:
        await one.close()


async def test_a_pooler_that_takes_no_startup_options_is_refused_with_the_reason() -> None:
    async def pool(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = int.from_bytes(await reader.readexactly(4)),
        if length == 8:  # asks for TLS
            await reader.readexactly(4)
            writer.write(b"N")
            length = int.from_bytes(await reader.readexactly(4))
        await reader.readexactly(length - 4)
        text = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
        writer.write(b"E" + (len(text) + 4).to_bytes(4) + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(pool, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(Pooled, match="startup options"):
            await connect(f"host=127.0.0.1 port={port} dbname=x user=x gssencmode=disable", "test")


async def test_a_slow_database_is_reported_to_waiting_publishers_and_by_readiness(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(stall_timeout=0.2, publish_timeout=0.6)
    queue = store.queue("orders")
    producer, node = Producer(engine), engine.node
    with psycopg.connect(store.conninfo) as blocker:
        blocker.execute("lock table queues_message in share mode")
        batch = producer.send("orders", b"1")
        await store.until(lambda: any("a lock" in reason for reason in engine.unready_reasons()), "the reason")
        assert any("Publishes are not stored" in reason for reason in (await readiness()).reasons)
        await producer.wait(batch)
        assert [type(error) for _, error in producer.failed] == [OutcomeUnknown]
        blocker.rollback()
    await store.until(lambda: not engine.unready_reasons(), "it is ready again")
    assert await Consumer(await engine.queue("orders")).bodies(1) == [b"1"], "the unanswered publish was stored"
    await producer.publish("orders", b"2")
    assert (engine.node, len(producer.failed)) == (node, 1)
    await store.until(lambda: store.counts(queue) == (1, 0, 0, 0), "one of them is left")


async def test_a_database_that_does_not_answer_is_left(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine(database_timeout=0.3)
    node = engine.node

    async def silence(*_: Any) -> bool:
        return False

    with psycopg.connect(store.conninfo) as blocker:
        blocker.execute("lock table queues_node")  # what shows that the node works waits, as at a frozen server
        await asyncio.sleep(1)
        assert engine.available, "it answers others"
        monkeypatch.setattr("queues.engine.supervisor.answers", silence)
        await store.until(lambda: not engine.available, "that it is left")
        assert any("reconnecting" in reason for reason in engine.unready_reasons())
        monkeypatch.setattr("queues.engine.supervisor.SILENT", 3600.0)
        blocker.rollback()
    await store.until(lambda: engine.available and engine.node != node, "the new node")


async def test_the_site_is_not_ready_while_its_engine_is_not(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Engine = await make_engine()
    assert (await readiness()).reasons == []
    engine.health.begin(audit.trouble("peerbus"), "it has no head")
    assert (await readiness()).reasons == ["The audit chain 'peerbus' cannot be appended to: it has no head."]
    engine.health.end(audit.trouble("peerbus"))
    assert (await readiness()).reasons == []


async def test_the_site_says_that_its_engine_has_found_a_store_with_another_past(
    make_engine: MakeEngine, async_client: AsyncClient
) -> None:
    engine: Engine = await make_engine()
    assert (await async_client.get("/readyz")).json() == {"status": "ready", "reasons": []}
    engine.timeline.rewritten = "2026-01-01 00:00:00 UTC: another timeline: 1 before, 2 now"
    answer = await async_client.get("/readyz")
    assert answer.status_code == 200, "it works"
    assert answer.json()["notes"] == [f"Messages that were confirmed may be lost: {engine.timeline.rewritten}."]


async def test_a_database_without_a_connection_to_spare_leaves_a_working_process_ready(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine()

    async def no_connection() -> set[tuple[str, str]]:
        raise psycopg.OperationalError("remaining connection slots are reserved")

    monkeypatch.setattr("queues.monitoring.health._applied_migrations", no_connection)
    monkeypatch.setattr("queues.monitoring.health._looked", None)
    assert (await readiness()).reasons == []
    await engine.stop(5.0)
    monkeypatch.setattr("queues.monitoring.health._looked", None)
    assert (await readiness()).reasons == ["The database cannot be reached; the log says why."]


async def test_a_key_that_is_revoked_or_narrowed_while_the_engine_reconnects_ends_its_sessions(
    make_engine: MakeEngine, store: Store, three_keys: list[tuple[int, str]]
) -> None:
    engine = await make_engine()
    ended: list[int] = []
    engine.on_key_change.append(ended.append)
    for _, text in three_keys:
        assert await engine.authenticate(text, "blipmq")
    revoked, narrowed, _ = (id for id, _ in three_keys)
    node = engine.node
    with psycopg.connect(store.conninfo, autocommit=True) as operator:
        operator.execute("alter table queues_apikey disable trigger user")  # no notification, as while it is away
        try:
            operator.execute("update queues_apikey set revoked_at = now() where id = %s", (revoked,))
            operator.execute("update queues_apikey set publish = '{a}' where id = %s", (narrowed,))
        finally:
            operator.execute("alter table queues_apikey enable trigger user")
        assert ended == []
        store.cut("writer")
    await store.until(lambda: engine.node != node and len(ended) == 2, "the end of their sessions")
    assert sorted(ended) == sorted([revoked, narrowed])


async def test_a_wait_that_was_given_up_while_the_database_was_away_is_over_when_it_is_back(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine(stall_timeout=0.2, publish_timeout=0.3, mailboxes=True)
    store.queue("orders")
    producer, node = Producer(engine), engine.node
    with psycopg.connect(store.conninfo) as blocker:
        blocker.execute("lock table queues_message in share mode")
        batch = producer.send("orders", b"1")
        await store.until(lambda: engine.health.has("Publishes are not stored"), "the wait")
        store.cut("writer")
        await producer.wait(batch)
        blocker.rollback()
    await store.until(lambda: engine.available and engine.node != node, "the new node")
    await store.until(lambda: not engine.unready_reasons(), "it is ready")
    await asyncio.sleep(0.6)  # twice the time after which it would give up again
    assert engine.unready_reasons() == []
    await producer.publish("orders", b"2")


async def test_a_silent_host_is_waited_for_once_when_the_database_has_several(
    make_engine: MakeEngine, store: Store
) -> None:
    asked: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    given = conninfo_to_dict(store.conninfo)
    silent = server.sockets[0].getsockname()[1]
    hosts = {"host": f"127.0.0.1,{given['host']}", "port": f"{silent},{given['port']}", "connect_timeout": "2"}
    async with server:
        engine = await make_engine(conninfo=make_conninfo(store.conninfo, **hosts))
        assert engine.available
        assert len(asked) < len(PURPOSES), "each connection goes to the host that was found"
    for writer in asked:
        writer.transport.abort()


def test_of_several_hosts_djangos_connections_and_the_engines_take_the_one_that_may_be_written_to() -> None:
    entry = database_settings("postgresql://me:secret@one:5433,two:5434/mail")
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("one,two", "5433,5434", "mail")
    assert entry["OPTIONS"]["target_session_attrs"] == "read-write"
    kept = database_settings("postgresql://one,two/mail?target_session_attrs=primary&connect_timeout=9")["OPTIONS"]
    assert (kept["target_session_attrs"], kept["connect_timeout"]) == ("primary", "9")
    assert "target_session_attrs" not in database_settings("postgresql://one/mail")["OPTIONS"]


async def test_an_operator_reads_in_the_log_which_connection_was_lost_and_how(store: Store) -> None:
    watched = {purpose: await connect(store.conninfo, purpose) for purpose in ("writer", "settlements")}
    try:
        store.rows("select pg_terminate_backend(%s)", watched["settlements"].info.backend_pid)
        with pytest.raises(psycopg.OperationalError, match="the connection for settlements was closed"):
            await asyncio.wait_for(watch(watched, 0.01), PATIENCE)
    finally:
        for connection in watched.values():
            await connection.close()
