"""The session of a transport on a database of Django's: it ends before that database is dropped or copied.

Django's test runner drops the databases that it has made, and copies them for `--parallel`; PostgreSQL refuses that
while another session is open. Django closes its own and connects to no database in particular.
"""

from __future__ import annotations

import weakref
from typing import Any

from queues.celery.transport.store_connection import StoreConnection

_open: weakref.WeakSet[StoreConnection] = weakref.WeakSet()

Names = tuple[Any, ...]


def names(alias: str) -> Names:
    """Identifies the database behind an alias, which tests replace."""
    from django.db import connections

    entry = connections[alias].settings_dict
    return entry["NAME"], entry["HOST"], entry["PORT"]


def end_with_database(session: StoreConnection) -> None:
    """Have this session of an alias end before Django drops or copies databases."""
    from django.db.backends.signals import connection_created

    _open.add(session)
    connection_created.connect(_end, dispatch_uid=__name__)


def _end(connection: Any, **_: Any) -> None:
    from django.db.backends.base.base import NO_DB_ALIAS

    if connection.alias == NO_DB_ALIAS:
        for session in tuple(_open):
            session.close()
