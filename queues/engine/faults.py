"""Classes of database errors, by their meaning for the work under way.

Four kinds: the connection is gone, the work may be repeated, the server refuses everything for now, or this work alone
cannot be done. Only the first ends a connection.
"""

from __future__ import annotations

import enum

import psycopg
from psycopg import AsyncConnection, BaseConnection
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from queues.engine.errors import EngineError, Later

#: Repetitions of work after a deadlock, a failed serialization or a timeout; then it is taken apart.
MAX_REPEATS = 3

#: Errors of a server that serves no client for now, by SQLSTATE or its class.
REFUSALS = {
    "25006": "the database is read-only",
    "42501": "the database's role lacks a right",
    "53100": "the database's disk is full",
    "53200": "the database is out of memory",
    "53300": "the database has no connection to spare",
    "53": "the database lacks resources",
    "57P03": "the database is starting or stopping",
    "58": "the database cannot reach its files",
}
#: A prepared statement that is gone, deadlock and failed serialization (class 40), lock and statement timeout.
REPEATABLE = {"26000", "40", "55P03", "57014"}
#: Words of libpq where a connection is refused, which has no SQLSTATE.
PHRASES = {
    "it was replaced": "the host that takes writes was replaced by another one",
    "primary was replaced": "the primary was replaced by another host",
    "too many clients": REFUSALS["53300"],
    "remaining connection slots": REFUSALS["53300"],
    "too many connections": REFUSALS["53300"],
    "is not permitted to log in": "the database refuses the log-in",
    "authentication failed": "the database refuses the log-in",
    "no pg_hba.conf entry": "the database refuses the log-in",
    "is starting up": REFUSALS["57P03"],
    "is shutting down": REFUSALS["57P03"],
    "not yet accepting connections": REFUSALS["57P03"],
    "in recovery mode": REFUSALS["57P03"],
    "session is read-only": REFUSALS["25006"],
    "not currently accepting connections": "the database accepts no connections",
    "does not exist": "the database does not exist",
    "unsupported startup parameter": "a connection pooler refuses the startup options of sessions",
    "timeout expired": "the database does not answer",
    "timed out": "the database does not answer",
    "No route to host": "the database does not answer",
    "refused": "the database refuses connections",
}


#: Refusals of a connection by a server that is there and will take it.
PASSING = {REFUSALS["53300"], REFUSALS["57P03"], REFUSALS["25006"], PHRASES["it was replaced"]}


class Fault(enum.Enum):
    """The reaction to an error."""

    #: The connection is gone: the engine starts anew.
    LOST = enum.auto()
    #: Do it again, a few times.
    REPEAT = enum.auto()
    #: Nothing of this kind can be done now: keep the work, and try later.
    REFUSED = enum.auto()
    #: This work cannot be done.
    BAD = enum.auto()


def fault_of(error: BaseException, connection: BaseConnection[TupleRow] | None = None) -> Fault:
    """The fault behind an error of a connection; without a connection, of connecting."""
    if connection is None or connection.closed:
        return Fault.LOST
    if isinstance(error, Later):
        return Fault.REFUSED
    if not isinstance(error, psycopg.Error):
        return Fault.BAD
    if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
        return Fault.LOST
    state = error.sqlstate or ""
    if state in REFUSALS or state[:2] in REFUSALS:
        return Fault.REFUSED
    if state in REPEATABLE or state[:2] in REPEATABLE:
        return Fault.REPEAT
    return Fault.BAD


def passes(error: BaseException) -> bool:
    """Whether a server refused a connection that it, or another one, takes later: all are taken, it is starting, it is
    a standby, or it was replaced."""
    text = told(error).split(" (")[0]
    return isinstance(error, psycopg.Error) and text in PASSING


def is_idle(connection: AsyncConnection[TupleRow]) -> bool:
    """Whether a connection is fit for the next transaction: after an error none may be left open."""
    return connection.info.transaction_status == TransactionStatus.IDLE


def told(error: BaseException | None) -> str:
    """An error as text for any reader: without names of hosts and users, and without data."""
    if isinstance(error, EngineError):
        return (type(error).__doc__ or "").strip().rstrip(".")
    if not isinstance(error, psycopg.Error):
        return "a connection is lost" if error is None else f"an unforeseen error ({type(error).__name__})"
    state = error.sqlstate
    if state is not None:
        text = REFUSALS.get(state) or REFUSALS.get(state[:2]) or "the database reports an error"
        if isinstance(error, psycopg.errors.InsufficientPrivilege) and error.diag.message_primary:
            text += f": {error.diag.message_primary}"  # it names a table or a function
        return f"{text} ({type(error).__name__}, {state})"
    said = str(error)
    return next((text for phrase, text in PHRASES.items() if phrase in said), "the database is away")
