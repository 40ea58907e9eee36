"""Brokers for all tests of conformance: under daphne, and through Channels alone under uvicorn.

Peers have other names in each test, since the store remembers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from queues.database.parameters import connection_parameters
from tests.peers.running import Join, Launch, Peer, WebBroker, connected, unique
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
def running(store: Database) -> Iterator[Callable[[str, str], WebBroker]]:
    """Gives the broker of some server and name, with default settings and a secret; each is started once."""
    brokers: dict[tuple[str, str], WebBroker] = {}

    def get(server: str, name: str) -> WebBroker:
        if (server, name) not in brokers:
            brokers[server, name] = WebBroker(store, server=server, PEERBUS_HMAC_SECRET=SECRET).wait_ready()
        return brokers[server, name]

    yield get
    for broker in brokers.values():
        broker.stop()


@pytest.fixture(params=["daphne", pytest.param("uvicorn", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> str:
    """The web server that the application runs under. Uvicorn's short form is in `test_connecting.py`."""
    return str(request.param)


@pytest.fixture
def broker(running: Callable[[str, str], WebBroker], server: str) -> WebBroker:
    """A broker with default settings and a secret."""
    return running(server, "one")


@pytest.fixture
def other_broker(running: Callable[[str, str], WebBroker], server: str) -> WebBroker:
    """A second one on the same database."""
    return running(server, "other")


@pytest.fixture
def launch(store: Database, server: str) -> Launch:
    """Makes a broker with settings of the test's own."""
    return partial(WebBroker, store, server=server)


@pytest.fixture(scope="package")
def other_key(store: Database) -> str:
    """A second API key that may do everything."""
    return store.add_key("other-key")


@pytest.fixture
def join(broker: WebBroker, store: Database) -> Iterator[Join]:
    """Connects a peer; its name is made the test's own unless it is to be `exact`. At first no peer is connected."""
    wait_until(lambda: not connected(store), "the end of earlier tests' connections")
    peers: list[Peer] = []

    def connect(name: str, at: WebBroker = broker, exact: bool = False, **options: Any) -> Peer:
        peers.append(Peer(at, name if exact else unique(name), **options))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()
    mine = {peer.name for peer in peers}
    wait_until(lambda: not mine.intersection(connected(store)), "the end of all connections")
