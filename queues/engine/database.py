"""Connections of the engine to PostgreSQL: how they are opened and what is asked of the server."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from typing import NoReturn

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from queues.engine.errors import NotMigrated, UnsafeServer, UnsupportedServer

Connection = AsyncConnection[TupleRow]

OLDEST_SERVER = 140000

#: Why each: a commit that returned is durable; a plan made when a table was empty must not be a sequential scan, nor a
#: bitmap of a whole queue that is then sorted, nor a loop over all messages for each id, for ever after; planning anew
#: costs more than executing; a session that froze inside a transaction lets go of its locks. With these every statement
#: reaches messages by `id = any(array)` and joins by hash, whatever the statistics say; the tests hold them to it.
SESSION_SETTINGS = {
    "synchronous_commit": "on",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "idle_in_transaction_session_timeout": "10s",
    "timezone": "UTC",
}

#: What psycopg raises when the server or the way to it is gone, or it is starting or stopping.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, OSError)

#: What a socket says whose other side is gone, also while nobody reads it; Linux alone knows POLLRDHUP.
_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

#: A claim moves messages from ready to leased. If PostgreSQL crashes before that is on disk they are ready again, as
#: the crash makes them anyway: nothing is lost, and nobody needs to wait for the disk.
CLAIM_SETTINGS = {"synchronous_commit": "off"}

#: What is due is found in the order of its time. Planned while the table is empty, any index of delayed messages and
#: a sort seem as good as the index in that order; with many waiting, each look would then read and sort them all.
CLOCK_SETTINGS = {"enable_sort": "off"}

_SETTINGS_OF = {"claimer": CLAIM_SETTINGS, "clockwork": CLOCK_SETTINGS}


def session_settings(purpose: str) -> dict[str, str]:
    """How PostgreSQL is set for one of the engine's connections."""
    return SESSION_SETTINGS | _SETTINGS_OF.get(purpose, {})


async def connect(conninfo: str, purpose: str) -> Connection:
    """Open one of the engine's connections. Raises psycopg.OperationalError when the server is away."""
    settings = session_settings(purpose)
    connection = await AsyncConnection.connect(
        conninfo,
        autocommit=True,
        prepare_threshold=0,
        application_name=f"fivewire {purpose}",
        options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        connect_timeout=10,
    )
    connection.prepared_max = None
    return connection


async def watch(connections: Iterable[Connection], every: float) -> NoReturn:
    """Look at connections that may be idle, every so many seconds, whether the server has closed one.

    Whoever uses it next would find out, but perhaps much later: then everything that others have under way would be cut
    off and done again for no reason that anybody could see. Raises psycopg.OperationalError.
    """
    poll = select.poll()
    for connection in connections:
        poll.register(connection.fileno(), _CLOSED)
    while True:
        if any(what & (_CLOSED | select.POLLNVAL) for _, what in poll.poll(0)):
            raise psycopg.OperationalError("the server has closed a connection")
        await asyncio.sleep(every)


async def check_server(connection: Connection) -> None:
    """Refuse a server on which the engine's promises would not hold.

    Raises UnsupportedServer, UnsafeServer or NotMigrated.
    """
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        raise UnsupportedServer(f"{version // 10000}; 14 or later is needed")
    for name in ("fsync", "full_page_writes"):
        row = await (await connection.execute(f"show {name}".encode())).fetchone()
        if row is None or row[0] != "on":
            raise UnsafeServer(f"{name} is {row and row[0]}; it must be on")
    row = await (await connection.execute("select to_regclass('queues_topology') is not null")).fetchone()
    if row is None or not row[0]:
        raise NotMigrated()
