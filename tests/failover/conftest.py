"""A migrated server, at rest, of which tests make their own servers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings

from brokersite.rigs.torture.database import KEY
from queues.engine.access import key_digest
from tests.failover.servers import DATABASE, PASSWORD, ROLE, Server
from tests.wire.broker import migrate

ADD_KEY = (
    "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
    " values ('failover', %s, '', '{}', '{*}', '{*}', '{*}')"
)

MakeServer = Callable[[], Server]


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="failover-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def golden(directory: Path) -> Iterator[Server]:
    """A server with the tables and the key, that does not run."""
    server = Server(directory / "golden")
    try:
        server.start()
        with server.connect("postgres") as connection:
            connection.execute(f"create role {ROLE} login password '{PASSWORD}'".encode())
            connection.execute(f"create database {DATABASE} owner {ROLE}".encode())
        migrate(server.parameters)
        server.rows(ADD_KEY, key_digest(KEY, settings.SECRET_KEY))
        server.stop_cleanly()
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture
def make_server(directory: Path, golden: Server) -> Iterator[MakeServer]:
    """Servers like the golden one, not started; at the end they are gone."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=directory) as place:
        count = 0

        def make() -> Server:
            nonlocal count
            count += 1
            server = Server(Path(place) / str(count), golden)
            stack.callback(server.remove)
            stack.callback(server.stop)
            return server

        yield make
