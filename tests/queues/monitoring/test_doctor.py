"""`manage.py doctor`: each finding is provoked on a real PostgreSQL, told with its remedy, and gone once mended."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from pytest_django import DjangoDbBlocker

from brokersite import embedded, embedded_home
from brokersite.embedded import EmbeddedServer
from queues.database.hosts import is_here
from queues.database.parameters import connection_parameters
from queues.models import ApiKey, PeriodicJob, Queue
from queues.monitoring import doctor
from queues.operations import overview
from queues.operations.keys import create_key
from queues.operations.state import Problem
from tests.brokersite.test_embedded import private_data_dir
from tests.process import Process
from tests.queues.shell import Shell
from tests.queues.test_unusable_databases import pooler
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import create_database, drop_databases, make_url

pytestmark = pytest.mark.timeout(300)

#: Not the changed one.
real_time = time.time


def found(*kinds: str) -> list[Problem]:
    """The findings of these kinds, or all."""
    return [one for one in doctor.examine() if not kinds or one.kind in kinds]


def sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def well(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be changed: what the tests' own server lacks for speed is not asked."""
    monkeypatch.setattr(doctor, "_checks", lambda using: iter(()))
    of_schema = doctor._of_schema

    def restoring(using: str) -> list[Problem]:
        """A limit of a statement would last to the end of the test's transaction."""
        with transaction.atomic():
            problems = list(of_schema(using))
            transaction.set_rollback(True)
        return problems

    monkeypatch.setattr(doctor, "_of_schema", restoring)


@pytest.mark.usefixtures("well")
def test_a_well_database_ends_with_status_0(shell: Shell) -> None:
    assert found() == []
    outcome = shell("doctor")
    assert (outcome.status, outcome.out, outcome.err) == (0, "All is well.\n", "")
    outcome = shell("doctor", "--json")
    assert (outcome.status, outcome.json) == (0, {"status": "well", "findings": []})


@pytest.mark.usefixtures("well")
def test_a_key_that_may_do_everything_is_told_with_its_remedy_in_words_and_as_json(shell: Shell) -> None:
    create_key("shop", manage=("*",))
    create_key("narrow", publish=("orders*",), consume=())
    create_key("gone")
    ApiKey.objects.filter(name="gone").update(revoked_at="2026-01-01T00:00:00Z")
    outcome = shell("doctor")
    assert outcome.status == 1
    assert outcome.out.splitlines() == [
        "change [api-key]: Whoever has the API key 'shop' may publish and consume and manage everything.",
        "    Grant it what its program uses: apikey grant shop --publish 'orders*'.",
    ]
    outcome = shell("doctor", "--json")
    [finding] = outcome.json["findings"]
    assert (outcome.status, outcome.json["status"]) == (1, "change")
    assert (finding["kind"], finding["notice"]) == ("api-key", False)
    assert shell("doctor", "--ignore", "api-key").status == 0


@pytest.mark.usefixtures("well")
def test_a_table_that_is_left_out_by_autovacuum_is_named() -> None:
    sql("alter table queues_queue set (autovacuum_enabled = off)")
    [one] = found()
    assert (one.kind, "queues_queue" in one.advice) == ("autovacuum", True)


@pytest.mark.usefixtures("well")
@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"])
def test_a_limit_that_cuts_off_what_sessions_have_to_do_is_named(name: str) -> None:
    sql(f"set local {name} = '4s'")
    [one] = found()
    assert (one.kind, one.id) == ("timeout", name)
    assert f"{name} = 4s (set by: session)" in one.text
    sql(f"set local {name} = '1h'")
    assert found() == []


@pytest.mark.usefixtures("well")
def test_tables_outside_the_search_path_and_two_brokers_in_one_database_are_told() -> None:
    sql("create schema other", "create table other.queues_topology (id int)")
    [one] = found()
    assert one.kind == "search-path"
    assert "schemas other and public" in one.text
    assert "use public" in one.text


def test_a_schema_that_the_search_path_lacks_is_told(well: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_unready", lambda: ["not asked"])
    sql("create schema other", "set local search_path = other, pg_catalog")
    [one] = found("search-path")
    assert "in the schema public, which search_path (other, pg_catalog) lacks" in one.text
    assert "search_path = public" in one.advice


@pytest.mark.usefixtures("well")
def test_a_schema_in_which_anyone_may_create_functions_is_told() -> None:
    sql("create schema open", "grant create on schema open to public", "set local search_path = open, public")
    [one] = found("open-schema")
    assert "schema open" in one.text
    sql("revoke create on schema open from public")
    assert found() == []


def test_clocks_that_differ_are_told(well: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: real_time() - 90)
    [one] = found("clocks")
    assert "differ by 90 s" in one.text or "differ by 91 s" in one.text


@pytest.mark.usefixtures("well")
def test_a_schedule_whose_time_zone_is_not_installed_here_is_told() -> None:
    queue = Queue.objects.create(name="reports")
    PeriodicJob.objects.create(name="report", queue=queue, cron="* * * * *", timezone="Europe/Nowhere")
    [one] = found()
    assert (one.kind, one.id) == ("time-zone", "Europe/Nowhere")
    assert "tzdata" in one.advice
    PeriodicJob.objects.update(enabled=False)
    assert found() == []


def test_an_unencrypted_way_to_a_database_elsewhere_is_told(well: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_here", lambda host: False)
    [one] = found()
    assert one.kind == "database-tls"
    assert "not encrypted" in one.text
    assert "sslmode=verify-full" in one.advice


@pytest.mark.parametrize(("mode", "told"), [("require", ["database-tls"]), ("verify-full", [])])
def test_an_encrypted_way_whose_end_is_not_checked_is_told(mode: str, told: list[str]) -> None:
    info = SimpleNamespace(host="192.0.2.1", get_parameters=lambda: {"sslmode": mode})
    assert [one.kind for one in doctor._tls({"info": info, "encrypted": True})] == told


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("", True), ("/run/postgresql", True), ("localhost", True), ("127.0.0.1", True), ("::1", True),
        ("192.0.2.1", False), ("db.example", False),
    ],
)  # fmt: skip
def test_only_a_host_elsewhere_needs_encryption(host: str, here: bool) -> None:
    assert is_here(host) is here


def test_a_server_newer_than_the_tests_is_a_notice(
    well: None, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr(doctor, "NEWEST_SERVER", 13)
    outcome = shell("doctor")
    assert outcome.status == 0
    assert outcome.out.startswith("notice [newer-server]: The server is PostgreSQL 1")
    assert outcome.out.endswith("All is well.\n")


def test_a_full_disk_is_told(well: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 << 30, 98 << 30, 2 << 30))
    [one] = found("disk")
    assert "2.0 GiB left" in one.text
    settings.DATA_DIR /= "of a server that is not the embedded one"
    asked: list[Path] = []

    def fill(path: Path) -> Any:
        asked.append(path)
        return usage(100, 99, 1)

    monkeypatch.setattr(shutil, "disk_usage", fill)
    assert [one.kind for one in found()] == ["disk"]
    assert (asked[0] / "global").is_absolute()


@pytest.mark.django_db(transaction=True)
def test_a_session_that_holds_back_vacuum_dead_rows_and_bloat_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_checks", lambda using: iter(()))
    for name, value in {"DEAD_ROWS": 100, "BLOAT": 64 << 10}.items():
        monkeypatch.setattr(doctor, name, value)
    sql("create table queues_scratch as select n, repeat('x', 100) as t from generate_series(1, 3000) n")
    try:
        with psycopg.connect(**connection_parameters()) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from queues_scratch")
            monkeypatch.setattr(overview, "HELD_SECONDS", 0)
            sql("analyze queues_scratch", "delete from queues_scratch where n < 3000")
            flush_statistics()
            counted = "queues_scratch has 2,999 dead rows beside 1 live ones"  # other tests leave some in other tables
            wait_until(lambda: any(counted in one.text for one in found("dead-rows")), "dead rows that are counted")
            held = f"pid {holder.info.backend_pid}, has had a transaction open"
            assert any(held in one.text for one in found("holder"))
        sql("vacuum analyze queues_scratch")
        assert [one.kind for one in found("bloat", "dead-rows") if "queues_scratch" in one.text] == ["bloat"]
        sql("vacuum full analyze queues_scratch")
        assert not [one for one in found("bloat", "dead-rows") if "queues_scratch" in one.text]
    finally:
        sql("drop table queues_scratch")


def flush_statistics() -> None:
    """Have this session's counts of rows be seen by others now; before PostgreSQL 15 they are within half a second."""
    with connection.cursor() as cursor:
        version = cursor.connection.info.server_version
    if version >= 150000:
        sql("select pg_stat_force_next_flush()")


# Whole databases.


@contextmanager
def a_database(name: str, template: str = "template1") -> Iterator[dict[str, Any]]:
    server = connection_parameters()
    try:
        yield create_database(server, name, template)
    finally:
        drop_databases(server, name)


def ask(database: dict[str, Any] | str) -> tuple[int, dict[str, str]]:
    """The status of the command on a database, and the texts of its findings by kind."""
    url = database if isinstance(database, str) else make_url(database)
    environment = {"DATABASE_URL": url, "SECRET_KEY": "not the generated one, of forty characters"}
    process = Process(sys.executable, "manage.py", "doctor", "--json", environment=environment)
    status, lines, log = process.finish()
    assert "Traceback" not in log, log
    answer = json.loads("\n".join(lines))
    assert answer["status"] == ("change" if status else "well")
    return status, {one["kind"]: f"{one['text']} {one['advice']}" for one in answer["findings"]}


def test_a_database_that_is_away_and_one_without_tables_are_told(
    django_db_setup: None, unused_tcp_port_factory: Callable[[], int]
) -> None:
    away = connection_parameters() | {"host": "127.0.0.1", "port": unused_tcp_port_factory()}
    status, told = ask(away)
    assert (status, list(told)) == (1, ["database"])
    with a_database("doctor_empty") as empty:
        status, told = ask(empty)
    assert status == 1
    assert "run `manage.py migrate`" in told["migrations"]


def test_behind_a_pooler_that_shares_sessions_no_engine_starts(
    request: pytest.FixtureRequest, migrated_database: dict[str, Any], tmp_path: Path,
    unused_tcp_port_factory: Callable[[], int],
) -> None:  # fmt: skip
    need(request.config, "PgBouncer")
    more = "ignore_startup_parameters = options,extra_float_digits"
    with a_database("doctor_pooled", migrated_database["dbname"]) as server, ExitStack() as poolers:
        modes = [("transaction", more), ("session", more), ("session", "")]
        told = {}
        for n, (mode, options) in enumerate(modes):
            port = unused_tcp_port_factory()
            (tmp_path / str(n)).mkdir(mode=0o755)
            database = poolers.enter_context(pooler(tmp_path / str(n), server, port, mode, options))
            told[mode, options] = ask(database)[1]
    assert "session pooling" in told["transaction", more]["engine"]
    assert "pooler" in told["transaction", more]
    assert "pooler" in told["session", more]
    assert "engine" not in told["session", more]
    assert "ignore_startup_parameters" in told["session", ""]["fivewire.E008"]


# A server of the test's own, which is set wrongly.


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a migrated server that tests may set wrongly and restart."""
    with private_data_dir(tmp_path_factory.mktemp("doctor")) as path, pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedded, "WAL_AHEAD", 0)
        server = embedded.ensure_running(path)
        environment = {"DATABASE_URL": url(server)}
        process = Process(sys.executable, "manage.py", "migrate", "-v", "0", environment=environment)
        status, _, log = process.finish()
        assert status == 0, log
        yield path


def url(server: EmbeddedServer) -> str:
    names = ("host", "port", "user", "password", "dbname")
    return make_url({name: getattr(server, name) for name in names})


def superuser(path: Path, server: EmbeddedServer, dbname: str = "fivewire") -> psycopg.Connection:
    password = (embedded_home.link(path) / "superuser_password").read_text().strip()
    return psycopg.connect(
        host=server.host, port=server.port, user=embedded.SUPERUSER, password=password, dbname=dbname, autocommit=True
    )


def restarted(path: Path) -> EmbeddedServer:
    embedded.stop(path)
    return embedded.ensure_running(path)


def test_a_server_that_is_set_wrongly_is_told_of_each_fault_and_well_when_they_are_mended(own: Path) -> None:
    server = embedded.ensure_running(own)
    status, told = ask(url(server))
    assert (status, told) == (0, {})
    with superuser(own, server) as admin:
        for setting in ("autovacuum = off", "track_counts = off", "full_page_writes = off", "max_connections = 16",
                        "max_prepared_transactions = 2"):  # fmt: skip
            admin.execute(f"alter system set {setting}".encode())
        admin.execute("alter role fivewire set statement_timeout = '10s'")
        admin.execute("alter role fivewire set idle_session_timeout = '10s'")
        admin.execute("revoke pg_monitor from fivewire")
    server = restarted(own)
    status, told = ask(url(server))
    assert status == 1
    assert "full_page_writes = off" in told["fivewire.E003"]
    assert "track_counts" in told["autovacuum"]
    assert "Of 13 connections (max_connections less what is reserved)" in told["connections"]
    assert "idle_session_timeout = 10s (set by: user)" in told["timeout"]
    assert "GRANT pg_monitor TO fivewire" in told["sight"]
    with superuser(own, server) as admin:
        admin.execute("alter system reset all")
        admin.execute("alter role fivewire reset all")
        admin.execute("grant pg_monitor to fivewire")
    assert ask(url(restarted(own))) == (0, {})


def test_a_connection_limit_of_the_role_counts(own: Path) -> None:
    server = embedded.ensure_running(own)
    with superuser(own, server) as admin:
        admin.execute("alter role fivewire connection limit 8")
        status, told = ask(url(server))
        admin.execute("alter role fivewire connection limit -1")
    assert status == 1
    assert "Of 8 connections (the limit of the role fivewire)" in told["connections"]
    assert "too many connections for role" in told["engine"]


def test_a_synchronous_standby_that_is_not_there_is_told(own: Path) -> None:
    server = embedded.ensure_running(own)
    with superuser(own, server) as admin:
        admin.execute("alter system set synchronous_standby_names = 'second'")
        admin.execute("select pg_reload_conf()")
        wait_until(lambda: admin.execute("show synchronous_standby_names").fetchone() == ("second",))
        status, told = ask(url(server))
        admin.execute("alter system reset all")
        admin.execute("select pg_reload_conf()")
    assert status == 1
    assert "'second' and no such standby is connected: no commit returns" in told["synchronous-standby"]


def test_a_replication_slot_that_keeps_wal_and_a_prepared_transaction_that_holds_back_vacuum_are_told(
    own: Path, monkeypatch: pytest.MonkeyPatch, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> None:
    server = embedded.ensure_running(own)
    with superuser(own, server) as admin:
        admin.execute("alter system set max_prepared_transactions = 2")
    server = restarted(own)
    monkeypatch.setattr(doctor, "KEPT_WAL", -1)
    monkeypatch.setattr(overview, "HELD_SECONDS", 0)
    with superuser(own, server) as admin, django_db_blocker.unblock(), using(server) as alias:
        admin.execute("select pg_create_physical_replication_slot('gone', true)")
        admin.execute("begin")
        admin.execute("create table left_open (id int)")
        admin.execute("prepare transaction 'forgotten'")
        told = {one.kind: one.text for one in [*doctor._of_server(alias), *doctor._of_schema(alias)]}
        admin.execute("rollback prepared 'forgotten'")
        admin.execute("select pg_drop_replication_slot('gone')")
        assert "inactive replication slot gone keeps" in told["slot"]
        assert "the prepared transaction forgotten" in told["holder"]
        assert not {one.kind for one in [*doctor._of_server(alias), *doctor._of_schema(alias)]} & {"slot", "holder"}
        admin.execute("alter system reset all")


@contextmanager
def using(server: EmbeddedServer) -> Iterator[str]:
    """A connection of Django's to this server, under its alias."""
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    entry = connections["default"].settings_dict | {key: str(getattr(server, name)) for key, name in names.items()}
    connections.databases["own"] = entry
    try:
        yield "own"
    finally:
        connections["own"].close()
        del connections["own"], connections.databases["own"]
