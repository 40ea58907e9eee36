"""The tables are made, and unmade."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.process import Process
from tests.wire.broker import create_database, drop_databases, make_url

#: Whatever a migration of the app makes, by kind and name.
MADE = """
select relkind::text, relname::text from pg_class where relnamespace = 'public'::regnamespace and relname ~ '^queues_'
union all select 'function', oid::regprocedure::text from pg_proc where pronamespace = 'public'::regnamespace
union all select 'trigger', tgname::text from pg_trigger t where not tgisinternal
"""


@pytest.fixture
def database(migrated_database: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A copy of the migrated database."""
    server = migrated_database | {"dbname": "postgres"}
    name = f"{migrated_database['dbname']}_unmade"
    drop_databases(server, name)
    yield create_database(server, name, migrated_database["dbname"])
    drop_databases(server, name)


def made(database: dict[str, Any]) -> set[tuple[str, str]]:
    with psycopg.connect(**database) as connection:
        return set(connection.execute(MADE.encode()).fetchall())


def migrate(database: dict[str, Any], *arguments: str) -> None:
    environment = {"DATABASE_URL": make_url(database)}
    status, _, log = Process(
        sys.executable, "manage.py", "migrate", "--verbosity=0", *arguments, environment=environment
    ).finish()
    assert status == 0, log


def test_undone_nothing_is_left_and_done_again_everything_is_there(database: dict[str, Any]) -> None:
    before = made(database)
    assert {("p", "queues_segment"), ("v", "queues_archive"), ("function", "queues_held(integer)")} < before
    migrate(database, "queues", "zero")
    assert {(kind, name) for kind, name in made(database) if "queue" in name} == set()
    migrate(database)
    assert made(database) == before
