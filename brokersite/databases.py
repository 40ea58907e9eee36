"""Django's DATABASES entry, from a URI or for the embedded server, and back to psycopg's parameters."""

from __future__ import annotations

from typing import Any

from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from brokersite.embedded import Database
from queues.hosts import defaults_for_hosts

ENGINE = "django.db.backends.postgresql"

#: `queues.api.publish` promises a durable commit, whatever the role or the database is set to.
DURABLE = "-c synchronous_commit=on"

#: OPTIONS that Django's backend reads itself; everything else there goes to libpq.
DJANGO_OPTIONS = {"assume_role", "isolation_level", "pool", "server_side_binding"}


def database_settings(url: str) -> dict[str, Any]:
    """The entry for a PostgreSQL URI; parameters such as ``sslmode`` go to libpq as they are."""
    given = {name: value for name, value in conninfo_to_dict(url).items() if value is not None}
    given |= defaults_for_hosts(given)
    return {
        "ENGINE": ENGINE,
        "NAME": given.pop("dbname", ""),
        "USER": given.pop("user", ""),
        "PASSWORD": given.pop("password", ""),
        "HOST": given.pop("host", ""),
        "PORT": str(given.pop("port", "")),
        "OPTIONS": given | {"options": f"{given.get('options', '')} {DURABLE}".strip()},
    }


def embedded_database_settings(database: Database) -> dict[str, Any]:
    """The entry for the embedded server, over TCP on 127.0.0.1."""
    return {
        "ENGINE": ENGINE,
        "NAME": database.dbname,
        "USER": database.user,
        "PASSWORD": database.password,
        "HOST": database.host,
        "PORT": str(database.port),
        "OPTIONS": {"options": DURABLE},
    }


def connection_parameters(alias: str = "default") -> dict[str, Any]:
    """What ``psycopg.connect(**...)`` needs to reach a database of Django's, the test database under test."""
    entry = connections[alias].settings_dict
    keys = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    named = {name: entry[key] for name, key in keys.items()}
    options = {name: value for name, value in entry["OPTIONS"].items() if name not in DJANGO_OPTIONS}
    return {name: value for name, value in named.items() if value} | options
