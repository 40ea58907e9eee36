"""The transport's statements find messages by index, also when they were planned while the table was empty."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queues.celery.transport.statements import DIRECTORY, statement
from queues.celery.transport.store_connection import StoreConnection
from tests.queues.celery.transport.conftest import Connect

TOUCHES_MESSAGES: dict[str, dict[str, Any]] = {
    "take": {"queue": 1, "limit": 100},
    "store": {
        "version": 0, "queues": [1], "bodies": [b""], "keys": ["k"], "headers": ["{}"], "delays": [0.0], "ttls": [1.0],
        "priorities": [0], "contents": [2], "announce": True,
    },
    "store_one": {
        "version": 0, "queue": 1, "body": b"", "key": "k", "headers": "{}", "delay": 0.0, "ttl": None, "priority": 0,
        "content": 2,
    },
}  # fmt: skip


@pytest.fixture
def database(connect: Connect) -> StoreConnection:
    found: StoreConnection = connect().default_channel.connection.database
    return found


def scans(plan: dict[str, Any]) -> list[str]:
    """A plan's scans of the table of messages."""
    own = [plan["Node Type"]] if plan.get("Relation Name") == "queues_message" and "Scan" in plan["Node Type"] else []
    return own + [scan for part in plan.get("Plans", ()) for scan in scans(part)]


@pytest.mark.parametrize("name", TOUCHES_MESSAGES)
def test_no_statement_walks_the_messages(database: StoreConnection, name: str) -> None:
    database._connection.execute("vacuum queues_message")
    [(plan,)] = database._connection.execute(
        b"explain (format json) " + statement(name), TOUCHES_MESSAGES[name]
    ).fetchall()
    plan = plan if isinstance(plan, list) else json.loads(plan)
    assert "Seq Scan" not in scans(plan[0]["Plan"])
    assert (name == "take") == bool(scans(plan[0]["Plan"]))


def test_every_statement_that_touches_messages_is_looked_at() -> None:
    touching = {path.stem for path in DIRECTORY.glob("*.sql") if b"queues_message " in statement(path.stem)}
    assert touching == set(TOUCHES_MESSAGES)
