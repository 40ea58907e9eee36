"""One broker for all tests of conformance. Peers have other names in each test, since the store remembers them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queues.database import connection_parameters
from tests.peers.running import Daphne, Join, Peer, connected, unique
from tests.peers.vectors import SECRET
from tests.waiting import wait_until
from tests.wire.broker import KEY, Database, create_database, drop_databases


@pytest.fixture(scope="package")
def store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    """A database with the API key `dev-key`."""
    server = connection_parameters()
    name = f"{migrated_database['dbname']}_peers"
    database = Database(create_database(server, name, migrated_database["dbname"]))
    database.add_key(KEY)
    yield database
    database.close()
    drop_databases(server, name)


@pytest.fixture(scope="package")
def broker(store: Database) -> Iterator[Daphne]:
    """A broker with default settings and a secret."""
    with Daphne(store, PEERBUS_HMAC_SECRET=SECRET) as running:
        yield running


@pytest.fixture(scope="package")
def other_broker(store: Database) -> Iterator[Daphne]:
    """A second one on the same database."""
    with Daphne(store, PEERBUS_HMAC_SECRET=SECRET) as running:
        yield running


@pytest.fixture(scope="package")
def other_key(store: Database) -> str:
    """A second API key that may do everything."""
    return store.add_key("other-key")


@pytest.fixture
def join(broker: Daphne, store: Database) -> Iterator[Join]:
    """Connects a peer; its name is made the test's own unless it is to be `exact`."""
    peers: list[Peer] = []

    def connect(name: str, at: Daphne = broker, exact: bool = False, **options: Any) -> Peer:
        peers.append(Peer(at, name if exact else unique(name), **options))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()
    mine = {peer.name for peer in peers}
    wait_until(lambda: not mine.intersection(connected(store)), "everybody's leaving")
