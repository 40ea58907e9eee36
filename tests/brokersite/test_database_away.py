"""The site while its database goes, and while it refuses everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, close_old_connections, connection
from django.test import Client
from django.urls import reverse

from queues.database.parameters import connection_parameters

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "admin:queues_queue_changelist"


def end_this_session() -> None:
    with psycopg.connect(**connection_parameters(), autocommit=True) as operator:
        operator.execute("select pg_terminate_backend(%s)", [connection.connection.info.backend_pid])


def fill_the_disk() -> None:
    raise OperationalError("could not extend file") from psycopg.errors.DiskFull("could not extend file")


def exceed_a_time() -> None:
    raise OperationalError("canceling statement") from psycopg.errors.QueryCanceled("canceling statement")


def during_the_page(act: Callable[[], None]) -> Any:
    """Something that happens before the statements of the list of queues."""

    def wrapper(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if 'from "queues_queue"' in sql.lower():
            act()
        return execute(sql, *args)

    return connection.execute_wrapper(wrapper)


def test_an_operator_who_searches_while_the_database_goes_is_told_to_try_again(admin_client: Client) -> None:
    with during_the_page(end_this_session):
        response = admin_client.get(reverse(LIST), {"q": "a"})
    assert response.status_code == 503
    assert response["Retry-After"] == "2"
    assert "Try again" in response.content.decode()
    close_old_connections()  # as each request does, but those of the test's client
    assert admin_client.get(reverse(LIST), {"q": "a"}).status_code == 200


def test_an_operator_is_told_that_the_disk_is_full(admin_client: Client) -> None:
    with during_the_page(fill_the_disk):
        response = admin_client.get(reverse(LIST))
    assert response.status_code == 503
    assert "the database's disk is full" in response.content.decode()


def test_a_statement_that_exceeds_its_time_stays_an_error(admin_client: Client) -> None:
    with during_the_page(exceed_a_time), pytest.raises(OperationalError):
        admin_client.get(reverse(LIST))
