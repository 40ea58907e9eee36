"""Databases for tests of running listeners: a copy of the migrated one for each module that asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from queues.database.parameters import connection_parameters
from tests.wire.broker import KEY, Database, create_database, drop_databases

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    """A database of this module's own, with the API key `dev-key`."""
    server = connection_parameters()
    name = f"{migrated_database['dbname']}_{next(_numbers)}"
    database = Database(create_database(server, name, migrated_database["dbname"]))
    database.add_key(KEY)
    yield database
    database.close()
    drop_databases(server, name)
