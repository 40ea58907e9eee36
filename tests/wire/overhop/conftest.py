"""A running broker, two workers, and a queue of each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_DEFAULT_RETRY_BACKOFF=0.1) as running:
        yield running


@pytest.fixture
def worker(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.overhop) as connection:
        yield connection


@pytest.fixture
def other(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.overhop) as connection:
        yield connection


@pytest.fixture
def queue(worker: Peer, store: Database) -> str:
    """The name of an empty queue."""
    return make_queue(worker, store)


@pytest.fixture
def django_alias(store: Database, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The name by which Django reaches the broker's database, committing at once."""
    alias = str(store.parameters["dbname"])
    connections.databases[alias] = connections.databases["default"] | {"NAME": alias}
    with django_db_blocker.unblock():
        yield alias
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]
