"""Connections of a node's store to PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from queues.hosts import defaults_for_hosts

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
    "connect_timeout": 10,
}

#: Seconds that a statement may take where no lease depends on it.
LONGEST: Final = 10.0
#: Milliseconds that any statement may take.
LEAST: Final = 1000
#: Seconds that connecting may take in any case.
CONNECT: Final = 3.0

LOST: Final = (psycopg.Error, OSError)
"""What psycopg raises when the server or the way to it is gone, or it cannot write now."""


def session_name(node: str, purpose: str) -> str:
    """What the server calls a session of a node's; it keeps 63 bytes of ASCII."""
    return f"{APPLICATION} {node.encode('ascii', 'replace').decode()[:40]} {purpose}"


async def connect(conninfo: str, name: str, patience: float = LONGEST) -> Connection:
    """Open a connection in autocommit mode, on which no statement takes longer than `patience` seconds.

    Raises psycopg.OperationalError when the server is away, and TimeoutError when it does not answer.
    """
    given = conninfo_to_dict(conninfo)
    parameters, timeouts = bounds(patience, given)
    hosts = defaults_for_hosts(given)
    async with asyncio.timeout(max(patience, 2 * CONNECT if hosts else CONNECT)):
        return await AsyncConnection.connect(
            make_conninfo(conninfo, **(parameters | hosts)),
            autocommit=True,
            application_name=name,
            options=" ".join(f"-c {name}={value}" for name, value in (SETTINGS | timeouts).items()),
        )


def bounds(patience: float, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """What lets a connection fail after `patience` seconds: parameters of libpq's, and settings of the session.

    A shorter `connect_timeout` that was given is kept."""
    milliseconds = max(round(patience * 1000), LEAST)
    connecting = min(KEEPALIVES["connect_timeout"], round(max(patience, CONNECT)))
    connecting = min(connecting, int(given.get("connect_timeout") or 0) or connecting)
    parameters = KEEPALIVES | {"tcp_user_timeout": milliseconds, "connect_timeout": connecting}
    return parameters, {"statement_timeout": str(milliseconds), "lock_timeout": str(milliseconds)}


def conninfo_from_settings() -> str:
    """Where Django's default database is, the test database under test."""
    from brokersite.databases import connection_parameters

    return make_conninfo(**connection_parameters())
