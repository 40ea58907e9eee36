"""Connections of the engine to PostgreSQL: how they are opened, and checks of the server."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Mapping
from typing import Any, NoReturn

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from queues.database.parameters import ENCODING, KEEPALIVES, SESSION_SETTINGS, check_encoding, startup_options
from queues.engine import adapters
from queues.engine.clock import until_tick
from queues.engine.driver import EngineConnection
from queues.engine.errors import NotMigrated, Pooled, UnsafeServer, UnsupportedServer

Connection = EngineConnection

OLDEST_SERVER = 140000

#: Those that a server of an earlier major version does not know, and the version: they cannot be given at the start.
LATER_SETTINGS = {"transaction_timeout": ("0", 170000)}

#: Seconds for which the other side may be silent before either gives up the connection: a host that vanishes lets go of
#: its locks, and one that serves no more is left.
SILENCE = 15.0

#: PgBouncer's words for the startup option `options`, by which sessions are set, and what to do about them.
NO_STARTUP_OPTIONS = "unsupported startup parameter"
POOLED = (
    "it does not take the startup options that the engine's sessions need; for PgBouncer: "
    "ignore_startup_parameters = options,extra_float_digits"
)
SHARED_SESSIONS = "it gives each transaction another session; the engine needs session pooling, or none"

#: psycopg's errors when the server or the way to it is gone, or it is starting or stopping.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, OSError)

#: Poll events of a socket whose other side is gone, also without a reader; Linux alone knows POLLRDHUP.
_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

#: A claim moves messages from ready to leased. If PostgreSQL crashes before that is on disk they are ready again, as
#: the crash makes them anyway: nothing is lost, and no wait for the disk is needed.
CLAIM_SETTINGS = {"synchronous_commit": "off"}

#: Due messages are found in the order of their times. Planned while the table is empty, any index of delayed messages
#: and a sort seem as good as the index in that order; with many waiting, each look would then read and sort them all.
DELAY_SETTINGS = {"enable_sort": "off"}

#: Upkeep is done again if a crash of PostgreSQL undoes it. Some of its commits notify, and one that does so and waits
#: for the disk keeps all others that notify waiting.
UPKEEP_SETTINGS = {"synchronous_commit": "off"}

#: What begins a life, returns leases and reads is done again, or is of no use, if it is lost with all that follows it:
#: these commits wait for the server's own disk, and for no standby.
LOCAL_SETTINGS = {"synchronous_commit": "local"}

_SETTINGS_OF = {
    "fetcher": CLAIM_SETTINGS, "delays": DELAY_SETTINGS, "upkeep": UPKEEP_SETTINGS,
    "lookups": LOCAL_SETTINGS, "liveness": LOCAL_SETTINGS, "reaper": LOCAL_SETTINGS,
}  # fmt: skip


def session_settings(purpose: str) -> dict[str, str]:
    """PostgreSQL's settings for the connection of this purpose."""
    return SESSION_SETTINGS | _SETTINGS_OF.get(purpose, {})


async def connect(conninfo: str, purpose: str, silence: float = SILENCE) -> Connection:
    """Open one of the engine's connections, to one host, with the session's settings pinned against those of the role,
    the database and a pooler. Raises psycopg.OperationalError when the server is away, UnsafeServer, Pooled or
    WrongEncoding."""
    settings = session_settings(purpose)
    given = conninfo_to_dict(conninfo)
    milliseconds = str(int(silence * 1000))
    tcp = {f"tcp_{name}": str(value) for name, value in KEEPALIVES.items()} | {"tcp_user_timeout": milliseconds}
    ours: dict[str, Any] = {
        "options": startup_options(settings | tcp, str(given.get("options") or "")),
        "application_name": f"fivewire {purpose}",
        **KEEPALIVES, "tcp_user_timeout": milliseconds,
        "connect_timeout": given.get("connect_timeout") or 10,
        "client_encoding": ENCODING,
    }  # fmt: skip
    try:
        connection = await Connection.connect(conninfo, autocommit=True, prepare_threshold=0, **ours)
    except psycopg.OperationalError as error:
        if (refusal := refused_by_pooler(error)) is not None:
            raise refusal from error
        raise
    connection.prepared_max = None
    adapters.register(connection)
    try:
        check_encoding(connection)
        await _pin(connection, settings)
    except BaseException:
        await connection.close()
        raise
    return connection


def refused_by_pooler(error: BaseException) -> Pooled | None:
    """The error that a pooler means, if it has refused the connection."""
    return Pooled(POOLED) if NO_STARTUP_OPTIONS in str(error) else None


def absence(error: BaseException, otherwise: str = "The database is away") -> str:
    """The reason why there is no connection, in a line."""
    return str(refused_by_pooler(error) or f"{otherwise}: {' '.join(str(error).split())}")


def lacked_right(error: BaseException) -> str | None:
    """The sentence for an error of PostgreSQL, or of Django about one, that says that the role lacks a right."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, psycopg.errors.InsufficientPrivilege):
        found = found.__cause__ or found.__context__
    return None if found is None else f"The database's role lacks a right: {found.diag.message_primary or found}."


async def _pin(connection: Connection, settings: Mapping[str, str]) -> None:
    """See that the session is set as it should be. Raises UnsafeServer. Names are looked up where the tables are."""
    version = connection.info.server_version
    wanted = dict(settings) | {name: value for name, (value, since) in LATER_SETTINGS.items() if version >= since}
    for name in await _other_settings(connection, wanted):
        await connection.execute("select set_config(%s, %s, false)", (name, wanted[name]), prepare=False)
    for name, value in (await _other_settings(connection, wanted)).items():
        raise UnsafeServer(f"{name} is {value} in the engine's sessions and cannot be set to {wanted[name]}")
    await connection.execute(
        "select set_config('search_path', quote_ident(nspname), false) from pg_class c"
        " join pg_namespace n on n.oid = relnamespace"
        " where c.oid = coalesce(to_regclass('queues_topology'), to_regclass('public.queues_topology'))",
        prepare=False,
    )


async def _other_settings(connection: Connection, wanted: Mapping[str, str]) -> dict[str, str]:
    """The session's settings that differ from `wanted`, with their values."""
    query = "select name, current_setting(name) from unnest(%s::text[]) as name"
    found = await connection.fetch(query, (list(wanted),), prepare=False)
    return {name: value for name, value in found if value.lower() != wanted[name].lower()}


async def check_sessions(connections: Mapping[str, AsyncConnection[TupleRow]]) -> list[int]:
    """The server processes of these connections, two or more. Raises Pooled when a pooler shares them: locks,
    notifications and settings of a session would be shared."""
    seen: list[list[int]] = []
    for _ in range(2):
        asked = [await one.execute("select pg_backend_pid()", prepare=False) for one in connections.values()]
        seen.append([pid for answer in asked for (pid,) in await answer.fetchall()])
    if seen[0] != seen[1] or len(set(seen[0])) < len(seen[0]):
        raise Pooled(SHARED_SESSIONS)
    return seen[0]


def at_same_server(connection: Connection, conninfo: str) -> str:
    """The conninfo of the host that was found among several, for further connections: none waits for a silent host."""
    at = connection.info
    return make_conninfo(conninfo, host=at.host, port=at.port, hostaddr=at.hostaddr)


async def answers(connection: Connection, conninfo: str, patience: float) -> bool:
    """Whether the server that a connection leads to says anything to a new one, if only that it cannot take it."""
    address = make_conninfo(at_same_server(connection, conninfo), target_session_attrs="any")
    try:
        async with asyncio.timeout(patience):
            async with await AsyncConnection.connect(address, application_name="fivewire probe") as probe:
                await probe.execute("select 1")
    except TimeoutError:
        return False
    except psycopg.OperationalError as error:
        return "timeout" not in str(error)
    return True


async def watch(connections: Mapping[str, Connection], every: float) -> NoReturn:
    """Look at connections that may be idle, every so many seconds, whether the server has closed one.

    The next user would find out, but perhaps much later: then all work under way would be cut off and done again for no
    visible reason. Raises psycopg.OperationalError.
    """
    poll, purposes = select.poll(), {connection.fileno(): purpose for purpose, connection in connections.items()}
    for descriptor in purposes:
        poll.register(descriptor, _CLOSED)
    while True:
        for descriptor, events in poll.poll(0):  # POLLNVAL: this process itself has closed the descriptor
            raise psycopg.OperationalError(f"the connection for {purposes[descriptor]} was closed (events {events:#x})")
        await asyncio.sleep(until_tick(every))


async def check_server(connection: Connection) -> None:
    """Refuse a server on which the engine's promises would not hold.

    Raises UnsupportedServer, UnsafeServer or NotMigrated.
    """
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        raise UnsupportedServer(f"{version // 10000}; 14 or later is needed")
    for name in ("fsync", "full_page_writes"):
        [(value,)] = await connection.fetch(f"show {name}".encode())
        if value != "on":
            raise UnsafeServer(f"{name} is {value}; it must be on")
    [(migrated,)] = await connection.fetch("select to_regclass('queues_topology') is not null")
    if not migrated:
        raise NotMigrated()
