"""A database, an IRC server and a way to publish for tests with real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.hydra.irc.server import IrcServerProcess
from tests.hydra.network.people import Person
from tests.hydra.network.stores import Publish, copied, publishing
from tests.wire.broker import Database


@pytest.fixture(scope="module")
def store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    """A database of this module's own."""
    with copied(migrated_database) as database:
        yield database


@pytest.fixture(scope="module")
def publish_there(store: Database, django_db_blocker: DjangoDbBlocker) -> Iterator[Publish]:
    """Publishes lines in the module's database."""
    with publishing(store, django_db_blocker) as publish_line:
        yield publish_line


@pytest.fixture(scope="module")
def irc() -> Iterator[IrcServerProcess]:
    """A real IRC server."""
    with IrcServerProcess() as server:
        yield server


@pytest.fixture
def person(irc: IrcServerProcess) -> Iterator[Person]:
    """A client that is in the channel before all others."""
    with Person((irc.host, irc.port)) as person:
        yield person
