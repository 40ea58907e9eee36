"""A database that cannot be used, behind a pooler or not UTF-8: every command says so in a line, before it makes
anything."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kombu.connection import Connection

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from queues.database.parameters import connection_parameters
from queues.errors import WrongEncoding
from tests.process import Process
from tests.queues.test_standalone import Project
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import create_database, drop_databases, make_url

LISTENERS = "--blipmq 127.0.0.1:0 --overhop off --sspq off"
HYDRA = "runhydra --listen 127.0.0.1:0 --found --name alone --recv off --send off"
#: A command for each way in which commands open connections.
COMMANDS = (
    "migrate", f"runwire {LISTENERS}", HYDRA, "queue list", "etl run",
    "up --http 127.0.0.1:0 --blipmq off --overhop off --sspq off --hydra off --celery off",
)  # fmt: skip
POOLER = "/usr/sbin/pgbouncer"
CONFIGURATION = """
    [databases]
    * = {server}
    [pgbouncer]
    listen_addr = 127.0.0.1
    listen_port = {port}
    unix_socket_dir =
    auth_type = any
    pool_mode = {mode}
    {more}
"""


class Pooler(Process):
    """PgBouncer."""

    @property
    def ready(self) -> bool:
        return "process up" in self.log


@contextmanager
def pooler(directory: Path, server: dict[str, Any], port: int, mode: str, more: str = "") -> Iterator[dict[str, Any]]:
    """PgBouncer before a server; the parameters to connect to it."""
    names = {name: server[name] for name in ("host", "port", "user", "password", "dbname")}
    path = directory / f"{mode}-{port}.ini"
    text = CONFIGURATION.format(
        server=" ".join(f"{name}={value}" for name, value in names.items()), port=port, mode=mode, more=more
    )
    path.write_text(textwrap.dedent(text))
    user = ("-u", "nobody") if os.getuid() == 0 else ()
    process = Pooler(POOLER, *user, str(path), bare=True)
    try:
        wait_until(lambda: process.ready or not process.alive, lambda: process.log)
        assert process.alive, process.log
        yield names | {"host": "127.0.0.1", "port": port}
    finally:
        process.stop()


def refusals(database: dict[str, Any], *commands: str) -> dict[str, tuple[int, str]]:
    """The status and the words of each command on this database; they run beside each other."""
    environment = {"DATABASE_URL": make_url(database)}
    with ExitStack() as stack:
        running = {
            command: Process(sys.executable, "manage.py", *command.split(), environment=environment, merged=True)
            for command in commands
        }
        for process in running.values():
            stack.callback(process.end)
        return {command: (process.finish()[0], process.log) for command, process in running.items()}


def assert_refused(told: dict[str, tuple[int, str]], words: str) -> None:
    for command, (status, text) in told.items():
        assert status != 0, (command, text)
        assert words in text, (command, text)
        assert "Traceback" not in text, (command, text)


@pytest.fixture
def empty(django_db_setup: None) -> Iterator[dict[str, Any]]:
    """A database without tables."""
    name, parameters = f"unusable_{os.getpid()}", connection_parameters()
    yield create_database(parameters, name)
    drop_databases(parameters, name)


@pytest.fixture
def port(request: pytest.FixtureRequest, unused_tcp_port_factory: Callable[[], int]) -> int:
    need(request.config, "PgBouncer")
    return unused_tcp_port_factory()


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_that_takes_no_startup_options_is_named_by_every_command(
    empty: dict[str, Any], port: int, mode: str, tmp_path: Path
) -> None:
    with pooler(tmp_path, empty, port, mode) as database:
        told = refusals(database, *(COMMANDS if mode == "session" else COMMANDS[:2]))
        assert_refused(told, "ignore_startup_parameters")
        with pytest.raises(OSError, match="ignore_startup_parameters"):
            Connection(make_url(database).replace("postgresql", "fivewire", 1)).connect()


def test_with_the_pages_setting_a_pooler_in_session_mode_serves(
    migrated_database: dict[str, Any], empty: dict[str, Any], port: int, tmp_path: Path
) -> None:
    with pooler(tmp_path, empty, port, "session", "ignore_startup_parameters = options,extra_float_digits") as database:
        environment = {"DATABASE_URL": make_url(database)}
        status, _, log = Process(sys.executable, "manage.py", "migrate", "-v", "0", environment=environment).finish()
        assert status == 0, log
        with Process(sys.executable, "manage.py", "runwire", *LISTENERS.split(), environment=environment):
            assert refusals(database, "queue create orders")["queue create orders"][0] == 0
        with Process(sys.executable, "manage.py", *HYDRA.split(), environment=environment):
            pass


def test_a_pooler_that_gives_each_transaction_another_session_is_named_by_what_needs_a_session(
    migrated_database: dict[str, Any], port: int, tmp_path: Path
) -> None:
    more = "ignore_startup_parameters = options,extra_float_digits"
    with pooler(tmp_path, migrated_database, port, "transaction", more) as database:
        assert_refused(refusals(database, f"runwire {LISTENERS}", HYDRA), "session pooling")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_utf_8_is_refused_in_a_line_by_every_command(
    django_db_setup: None, tmp_path: Path, encoding: str
) -> None:
    server, name = connection_parameters(), f"{encoding.lower()}_{os.getpid()}"
    with psycopg.connect(**server, autocommit=True) as connection:
        provider = "locale_provider libc" if connection.info.server_version >= 150000 else ""
        connection.execute(
            f"create database {name} encoding '{encoding}' {provider} locale 'C' template template0".encode()
        )
    database = server | {"dbname": name}
    try:
        commands = COMMANDS[:4] if encoding == "LATIN1" else COMMANDS[:2]
        assert_refused(refusals(database, *commands), f"its encoding is {encoding}, and must be UTF8")
        with pytest.raises(WrongEncoding):
            Connection(make_url(database).replace("postgresql", "fivewire", 1)).connect()
        project = Project(tmp_path, database, celery=False)
        with pytest.raises(AssertionError, match=r"(?s)fivewire.E007.*must be UTF8"):
            project.manage("migrate")
        with psycopg.connect(**database) as connection:
            row = connection.execute("select count(*) from pg_class where relname ~ '^(django|queues)_'").fetchone()
            assert row == (0,), "nothing was made"
    finally:
        drop_databases(server, name)
