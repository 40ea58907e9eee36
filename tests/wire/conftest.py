"""Databases for tests of running listeners: migrated once, copied for each module that asks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from brokersite.databases import connection_parameters
from tests.wire.broker import KEY, Database, create_database, drop_databases, migrate

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def migrated_database() -> Iterator[dict[str, Any]]:
    """A database with every migration applied and nobody connected, to be copied."""
    server = connection_parameters()
    name = f"fivewire_wire_{os.getpid()}"
    drop_databases(server, name)
    parameters = create_database(server, name)
    migrate(parameters)
    with_key = Database(parameters)
    with_key.add_key(KEY)
    with_key.close()
    yield parameters
    drop_databases(server, name)


@pytest.fixture(scope="module")
def store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    """A database of this module's own, with the API key `dev-key`."""
    server = connection_parameters()
    name = f"{migrated_database['dbname']}_{next(_numbers)}"
    database = Database(create_database(server, name, migrated_database["dbname"]))
    yield database
    database.close()
    drop_databases(server, name)
