"""Connections of a node's store to PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from queues.database.hosts import Session, choose_conninfo, cluster_of
from queues.database.parameters import ENCODING, check_encoding, connection_parameters, startup_options
from queues.errors import WrongEncoding


class Connection(AsyncConnection[TupleRow]):
    """A connection to the primary."""

    primary = Session()

    def check_primary(self) -> None:
        """Raises psycopg.OperationalError when its primary was replaced by another host."""
        if self.primary.outdated:
            raise psycopg.OperationalError("the primary was replaced by another host")


APPLICATION: Final = "fivewire hydra"

SETTINGS: Final = {
    # An answered commit is on disk.
    "synchronous_commit": "on",
    "default_transaction_read_only": "off",
    # The server ends the session, and its lock on the node's name, soon after the node's host has died, but later than
    # the node notices that it cannot reach the server (KEEPALIVES).
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

#: Seconds for a statement on which no lease depends.
TIMEOUT: Final = 10.0
#: The least limit of a statement, in milliseconds.
LEAST: Final = 1000
#: The least limit of connecting, in seconds.
CONNECT: Final = 3.0

#: The errors of a lost or unreachable server, or one that cannot write now.
LOST: Final = (psycopg.Error, OSError)


def session_name(node: str, purpose: str) -> str:
    """The application name of a node's session; the server keeps 63 bytes of ASCII."""
    return f"{APPLICATION} {node.encode('ascii', 'replace').decode()[:40]} {purpose}"


async def connect(conninfo: str, name: str, timeout: float = TIMEOUT) -> Connection:
    """Open a connection in autocommit mode whose statements take at most `timeout` seconds.

    Raises psycopg.OperationalError when the server is away, TimeoutError when it does not answer.
    """
    given = conninfo_to_dict(conninfo)
    parameters, timeouts = bounds(timeout, given)
    async with asyncio.timeout(max(timeout, 2 * CONNECT if cluster_of(given) else CONNECT)):
        chosen, primary = await choose_conninfo(conninfo)
        connection = await Connection.connect(
            make_conninfo(chosen, **parameters),
            autocommit=True,
            application_name=name,
            options=startup_options(SETTINGS | timeouts, str(given.get("options") or "")),
            client_encoding=ENCODING,
        )
    connection.primary = primary
    try:
        check_encoding(connection)
    except WrongEncoding:
        await connection.close()
        raise
    return connection


def bounds(timeout: float, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """The libpq parameters and session settings that let a connection fail after `timeout` seconds.

    A shorter given `connect_timeout` is kept.
    """
    milliseconds = max(round(timeout * 1000), LEAST)
    connecting = min(KEEPALIVES["connect_timeout"], round(max(timeout, CONNECT)))
    connecting = min(connecting, int(given.get("connect_timeout") or 0) or connecting)
    parameters = KEEPALIVES | {"tcp_user_timeout": milliseconds, "connect_timeout": connecting}
    return parameters, {"statement_timeout": str(milliseconds), "lock_timeout": str(milliseconds)}


def conninfo_from_settings() -> str:
    """The connection string of Django's default database."""
    return make_conninfo(**connection_parameters())
