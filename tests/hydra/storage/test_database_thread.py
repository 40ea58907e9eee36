"""The thread in which lines are stored and claimed: what it asks of the database ends in time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from django.db import connection

from hydra.storage.database_thread import DatabaseThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def thread() -> AsyncIterator[DatabaseThread]:
    """One whose database may take a second."""
    made = DatabaseThread("a test", 1.0)
    yield made
    await made.stop()


def settings_of_session() -> dict[str, str]:
    names = ("statement_timeout", "lock_timeout", "synchronous_commit")
    with connection.cursor() as cursor:
        cursor.execute("select name, setting from pg_settings where name = any(%s)", [list(names)])
        return dict(cursor.fetchall())


def parameters() -> dict[str, str]:
    connection.ensure_connection()
    assert connection.connection is not None
    return dict(connection.connection.info.get_parameters())


async def test_its_connection_has_the_bounds_of_the_nodes_own(thread: DatabaseThread) -> None:
    session = await thread.run(settings_of_session)
    assert session == {"statement_timeout": "1000", "lock_timeout": "1000", "synchronous_commit": "on"}
    given = await thread.run(parameters)
    assert (given["connect_timeout"], given["tcp_user_timeout"], given["keepalives_idle"]) == ("3", "1000", "5")


async def test_the_bounds_are_its_own(thread: DatabaseThread) -> None:
    other = DatabaseThread("another")
    try:
        await thread.run(parameters)
        assert (await other.run(settings_of_session))["statement_timeout"] == "30000"
    finally:
        await other.stop()


async def test_a_statement_that_lasts_too_long_counts_as_a_database_that_is_away(thread: DatabaseThread) -> None:
    def sleep() -> None:
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(3600)")

    with pytest.raises(ConnectionError, match="statement timeout"):
        await thread.run(sleep)
    assert (await thread.run(settings_of_session))["statement_timeout"] == "1000"
