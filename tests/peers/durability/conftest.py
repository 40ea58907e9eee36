"""A PostgreSQL that these tests may stop and kill, and a database on it for each module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from brokersite.rigs.torture.database import TortureDatabase
from tests.peers.running import WebBroker
from tests.wire.broker import KEY, Database, create_database, drop_databases

_numbers = itertools.count(1)

Start = Callable[..., WebBroker]


@pytest.fixture(scope="package")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TortureDatabase]:
    """A server of these tests' own, with every migration applied."""
    server = TortureDatabase(tmp_path_factory.mktemp("peers"))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def store(postgres: TortureDatabase) -> Iterator[Database]:
    """A database of this module's own, with the API key `dev-key`."""
    at = postgres.server
    assert at is not None
    server = {
        "host": at.host, "port": at.port, "user": at.user, "password": at.password, "dbname": "postgres",
    }  # fmt: skip
    name = f"peers_{next(_numbers)}"
    database = Database(create_database(server, name, at.dbname))
    database.add_key(KEY)
    yield database
    database.close()
    drop_databases(server, name)


@pytest.fixture
def start(store: Database) -> Iterator[Start]:
    """Starts brokers; those that run still in the end are stopped."""
    running: list[WebBroker] = []

    def start(**options: object) -> WebBroker:
        running.append(WebBroker(store, **options))  # type: ignore[arg-type]
        return running[-1].wait_ready()

    yield start
    for broker in running:
        broker.stop()
