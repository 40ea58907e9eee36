"""The engine's named statements over a connection of Django's, for code outside the hot path."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from django.db import connections

from queues.engine.statements import statement

CHANNEL = "fivewire"


@cache
def _text(name: str) -> str:
    return statement(name).decode()


def query(name: str, using: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run sql/NAME.sql in the connection's current transaction, or in one of its own; returns its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(_text(name), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def notify(using: str, **message: Any) -> None:
    """Tell every node something, if and when the current transaction commits."""
    with connections[using].cursor() as cursor:
        cursor.execute("select pg_notify(%s, %s)", (CHANNEL, json.dumps(message)))
