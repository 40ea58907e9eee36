"""Of which database a copy of an anchor is, so that one DATA_DIR may serve several.

A copy is another database's when both the name of the database, as the settings have it, and the chain's time of
creation are others. Neither alone says so: the time lies in the database, where an intruder may change it, and the name
changes when the database is moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import connections

from queues.audit.anchor import Anchor, Origin, time_text


def origin(created_at: datetime, using: str) -> Origin:
    """The origin of the anchors of a chain."""
    return Origin(_database(using), time_text(created_at))


def copies_of(copies: Iterable[Anchor], chain: str, created_at: datetime | None, using: str) -> list[Anchor]:
    """The copies of a chain's anchors; `created_at` is None when the database has no such chain."""
    created = None if created_at is None else time_text(created_at)
    database = _database(using)
    return [copy for copy in copies if copy.chain == chain and _may_be(copy.origin, database, created)]


def chains_of(copies: Iterable[Anchor], using: str) -> set[str]:
    """The chains that the database should have, since there are copies of their anchors."""
    database = _database(using)
    return {copy.chain for copy in copies if _may_be(copy.origin, database, None)}


def _may_be(origin: Origin | None, database: str, created: str | None) -> bool:
    """Copies from before there were origins may be of any database."""
    return origin is None or origin.database == database or origin.created == created


def _database(using: str) -> str:
    return str(connections[using].settings_dict["NAME"])
