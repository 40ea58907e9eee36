"""What a publish asks the database before it stores: the version of the topology, held until its transaction ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from queues.engine.cluster.reaper import LEASES_CLASS
from queues.engine.statements import statement
from tests.queues.engine.conftest import Store
from tests.waiting import wait_until

#: The functions that hold the topology, and those that hold a node.
HOLD_TOPOLOGY = ("queues_topology_version()", "queues_publish_version(1)")
HOLD_NODE = ("queues_may_lease(1)", "queues_publish_version(1)")
TOPOLOGY = "hashtext('queues_topology')"
NODE = f"{LEASES_CLASS}, 1"


@pytest.fixture
def other(transactional_db: None, store: Store) -> Iterator[psycopg.Connection[Any]]:
    """A second session; there is a node, and a queue."""
    store.connection.execute(statement("register_node"), {"id": 1, "name": "n", "host": "h", "pid": 1, "engine": None})
    store.queue("first")
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        yield connection


def asked(connection: psycopg.Connection[Any], function: str) -> Any:
    row = connection.execute(f"select {function}".encode()).fetchone()
    assert row is not None
    return row[0]


def until_it_waits(connection: psycopg.Connection[Any], store: Store) -> None:
    """Wait until the session waits for a lock."""
    waits = "select from pg_locks where pid = %s and not granted"
    pid = connection.info.backend_pid
    wait_until(lambda: store.rows(waits, pid), "a publish that waits")


@pytest.mark.parametrize(
    ("function", "lock"), [(one, TOPOLOGY) for one in HOLD_TOPOLOGY] + [(one, NODE) for one in HOLD_NODE]
)
def test_what_a_publish_was_told_holds_until_its_transaction_ends(
    other: psycopg.Connection[Any], store: Store, function: str, lock: str
) -> None:
    [free] = store.rows(f"select pg_try_advisory_lock({lock}) as got, pg_advisory_unlock({lock})")
    with other.transaction():
        assert asked(other, function) is not None
        [held] = store.rows(f"select pg_try_advisory_lock({lock}) as got")
    assert (free["got"], held["got"]) == (True, False)
    [after] = store.rows(f"select pg_try_advisory_lock({lock}) as got, pg_advisory_unlock({lock})")
    assert after["got"]


def test_a_node_that_was_declared_dead_may_not_lease(other: psycopg.Connection[Any], store: Store) -> None:
    assert asked(other, "queues_may_lease(1)") is True
    assert asked(other, "queues_publish_version(1)") == asked(other, "queues_topology_version()")
    store.rows("delete from queues_node returning 1")
    assert asked(other, "queues_may_lease(1)") is False
    assert asked(other, "queues_publish_version(1)") is None


@pytest.mark.parametrize("function", HOLD_TOPOLOGY)
def test_a_publish_that_waited_for_a_change_of_the_topology_sees_it(
    other: psycopg.Connection[Any], store: Store, function: str
) -> None:
    before = asked(other, function)
    with ThreadPoolExecutor(1) as threads:
        with store.connection.transaction():
            store.rows("select pg_advisory_xact_lock(hashtext('queues_topology'))")
            waiting = threads.submit(asked, other, function)
            until_it_waits(other, store)
            store.queue("new")
        assert waiting.result() > before


def test_before_the_first_queue_the_version_is_0(other: psycopg.Connection[Any], store: Store) -> None:
    store.rows("delete from queues_topology returning 1")
    assert [asked(other, function) for function in HOLD_TOPOLOGY] == [0, 0]


@pytest.mark.parametrize("function", HOLD_NODE)
def test_a_publish_that_waited_while_its_node_was_declared_dead_may_not_lease(
    other: psycopg.Connection[Any], store: Store, function: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with store.connection.transaction():
            store.rows(f"select pg_advisory_xact_lock({NODE})")
            waiting = threads.submit(asked, other, function)
            until_it_waits(other, store)
            store.rows("delete from queues_node returning 1")
        assert not waiting.result()
