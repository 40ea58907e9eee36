"""Databases for real nodes, and how a program publishes there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from queues.api import publish
from queues.database.parameters import connection_parameters
from tests.wire.broker import Database, create_database, drop_databases

Publish = Callable[[str, str], int]
"""Publish a line to a queue; returns the message's id."""

_numbers = itertools.count(1)


@contextlib.contextmanager
def copied(migrated: dict[str, Any]) -> Iterator[Database]:
    """A copy of a migrated database, until the end of the block."""
    server = connection_parameters()
    name = f"{migrated['dbname']}_{next(_numbers)}"
    database = Database(create_database(server, name, migrated["dbname"]))
    try:
        yield database
    finally:
        database.close()
        drop_databases(server, name)


@contextlib.contextmanager
def publishing(store: Database, blocker: DjangoDbBlocker) -> Iterator[Publish]:
    """`queues.api.publish` into a database, from any thread that closes its connections at its end."""
    names = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "NAME": "dbname"}
    given = {name: store.parameters[key] for name, key in names.items() if key in store.parameters}
    alias = f"hydra {store.parameters['dbname']} {store.parameters['port']}"
    connections.databases[alias] = connections.databases["default"] | given

    def publish_line(queue: str, line: str) -> int:
        message = publish(queue, line.encode(), using=alias)
        assert message is not None
        return message

    with blocker.unblock():
        try:
            yield publish_line
        finally:
            connections[alias].close()
            del connections[alias], connections.databases[alias]
