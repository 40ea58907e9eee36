"""Connection parameters of PostgreSQL: those of Django's databases, for psycopg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections
from psycopg import BaseConnection

from queues.database.hosts import at_primary
from queues.errors import WrongEncoding

#: OPTIONS that Django's backend reads itself; all others are libpq's.
DJANGO_OPTIONS = {"assume_role", "isolation_level", "pool", "server_side_binding"}

#: Django's sessions, whatever the role or the database is set to: `queues.api.publish` promises a durable commit, and
#: the admin writes. The settings go as startup options, which no role overrides; a check reads them back.
DJANGO_SESSION = {"synchronous_commit": "on", "default_transaction_read_only": "off"}

#: Sessions of engines and of Celery's transport. A commit that returned is durable. A plan that is made while a table
#: is empty must not be a sequential scan, a bitmap of a whole queue that is then sorted, or a loop over all messages
#: for each id. Planning costs more than executing. A session that froze inside a transaction lets go of its locks.
#: Nothing that a role or a database is set to ends a session or its statements. With these settings every statement
#: reaches messages by `id = any(array)` and joins by hash, with any statistics; the tests hold them to it.
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
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
}

#: Key of a DATABASES entry: the directory of the server's Unix socket. A round trip by it takes four fifths of the time
#: that one over TCP on 127.0.0.1 does.
SOCKET_DIRECTORY = "SOCKET_DIRECTORY"

#: Looks at an idle connection whose server may have vanished: it counts as lost after 20 s. With a `tcp_user_timeout`
#: Linux does not count looks: the first one after that time without an answer ends the connection. So several must fit
#: into the 15 s of engines and of the site, or one that is lost on the way would do it.
KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 5}

#: The encoding of the database and of all sessions.
ENCODING = "UTF8"


def connection_parameters(alias: str = "default") -> dict[str, Any]:
    """The arguments of ``psycopg.connect`` for a database of Django's; under test, for the test database."""
    entry = connections[alias].settings_dict
    keys = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    named = {name: entry[key] for name, key in keys.items()}
    options = {name: value for name, value in entry["OPTIONS"].items() if name not in DJANGO_OPTIONS}
    return {name: value for name, value in named.items() if value} | options


def engine_parameters(alias: str = "default") -> dict[str, Any]:
    """The same for engines and Celery's connections: by the server's Unix socket if the entry names its directory."""
    directory = connections[alias].settings_dict.get(SOCKET_DIRECTORY)
    return connection_parameters(alias) | ({"host": directory} if directory else {})


def primary_parameters(alias: str = "default") -> dict[str, Any]:
    """The same for a connection that is soon closed: of several hosts the primary. Raises psycopg.OperationalError."""
    return at_primary(connection_parameters(alias))


def startup_options(settings: Mapping[str, str], given: str = "") -> str:
    """Settings as libpq's `options`, behind those that are given already and over which they have the last word."""
    ours = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())
    return f"{given} {ours}".strip()


def check_encoding(connection: BaseConnection[Any]) -> None:
    """Raise WrongEncoding for a database whose text is not UTF-8: it refuses some messages, or changes them."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in (None, ENCODING):
        raise WrongEncoding(
            f"its encoding is {encoding}, and must be UTF8 (createdb --encoding=UTF8 --template=template0 NAME)"
        )
