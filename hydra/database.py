"""Connections of a node's store to PostgreSQL."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

Connection = AsyncConnection[TupleRow]

LOCK_CLASS: Final = 74663
"""The first key of the advisory lock that a running node holds; the second is the id of its row."""

APPLICATION: Final = "fivewire hydra"

SETTINGS: Final = {
    # What was answered is on disk.
    "synchronous_commit": "on",
    # The server ends the session, and with it the lock on the node's name, soon after the node's host has died, but
    # later than the node notices that it cannot reach the server (KEEPALIVES).
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "10s",
    "timezone": "UTC",
    "jit": "off",
}
KEEPALIVES: Final = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
    "connect_timeout": 10,
}

LOST: Final = (psycopg.Error, OSError)
"""What psycopg raises when the server or the way to it is gone, or it cannot write now."""


def session_name(node: str, purpose: str) -> str:
    """What the server calls a session of a node's; it keeps 63 bytes of ASCII."""
    return f"{APPLICATION} {node.encode('ascii', 'replace').decode()[:40]} {purpose}"


async def connect(conninfo: str, name: str) -> Connection:
    """Open a connection in autocommit mode. Raises psycopg.OperationalError when the server is away."""
    return await AsyncConnection.connect(
        make_conninfo(conninfo, **KEEPALIVES),
        autocommit=True,
        application_name=name,
        options=" ".join(f"-c {name}={value}" for name, value in SETTINGS.items()),
    )


def conninfo_from_settings() -> str:
    """Where Django's default database is, the test database under test."""
    from brokersite.databases import connection_parameters

    return make_conninfo(**connection_parameters())
