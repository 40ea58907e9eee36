"""A database of its own on the project's server, and a directory: for measurements, never for data to keep."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg import sql

from queues.database.parameters import connection_parameters
from queues.etl.errors import ScratchBusy

#: The first key of the advisory lock of such a database; the second is the hash of its name.
LOCK = 74663


@contextmanager
def scratch_database(name: str) -> Iterator[str]:
    """A migrated database of this name, which is dropped at the end; what had the name before is gone.

    Gives the alias by which Django knows it, which is its name. Raises ScratchBusy while another process has it, and
    psycopg's errors.
    """
    database = sql.Identifier(name)
    with psycopg.connect(**connection_parameters(DEFAULT_DB_ALIAS), autocommit=True) as connection:
        held = connection.execute("select pg_try_advisory_lock(%s, hashtext(%s))", (LOCK, name)).fetchone()
        if held != (True,):
            raise ScratchBusy(name)
        _drop(connection, name)
        connection.execute(sql.SQL("create database {}").format(database))
        connections.databases[name] = {**connections[DEFAULT_DB_ALIAS].settings_dict, "NAME": name}
        try:
            call_command("migrate", database=name, verbosity=0)
            yield name
        finally:
            connections[name].close()
            _drop(connection, name)
            del connections.databases[name]


def _drop(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a database with the sessions of its owner. PostgreSQL ends autovacuum there, but not by WITH (FORCE) for a
    role that is no superuser."""
    connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and usename = current_user", (name,)
    )
    connection.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(name)))


@contextmanager
def scratch_directory(prefix: str) -> Iterator[Path]:
    """A directory that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def environment(alias: str, directory: Path) -> dict[str, str]:
    """For processes that are to use a scratch database, and to leave their files in a scratch directory.

    Of this process's settings they have those of Spark and the ETL, and the secret that keys are digested with.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BROKER_", "ETL_"))}
    given = {name: value for name, value in os.environ.items() if name.startswith("BROKER_ETL_")}
    named = ("SPARK_MASTER", "SECRET_KEY", "BROKER_ETL_READERS", "BROKER_ETL_TIMEOUT")
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    address = f"postgresql:///?{urlencode(connection_parameters(alias), quote_via=quote)}"
    return {
        **kept, **given, **{name: str(getattr(settings, name)) for name in named}, "DATABASE_URL": address,
        "DATA_DIR": str(directory / "data"), "TMPDIR": str(temporary), "DJANGO_SETTINGS_MODULE": "brokersite.settings",
    }  # fmt: skip
