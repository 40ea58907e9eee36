"""System checks of the app: the database and the settings fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import OperationalError

from queues.config.settings import problems
from queues.database.hosts import hosts_of
from queues.database.parameters import DJANGO_SESSION, check_encoding
from queues.engine.database import OLDEST_SERVER, refused_by_pooler
from queues.errors import WrongEncoding
from queues.postgresql.base import DatabaseWrapper

#: Characters.
SHORTEST_SECRET = 32

#: The second and the last migration of the development versions: all of them together make the tables of today's 0001.
DEVELOPMENT: Final = ("0002_engine", "0047_rotation_knows_rows")

#: Server settings without which a crash loses commits.
SAFETY: Final = ("fsync", "full_page_writes")

Apps = Sequence[AppConfig] | None


@register(Tags.compatibility)
def check_database_engine(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.E001: the default database is PostgreSQL."""
    if (vendor := connections[DEFAULT_DB_ALIAS].vendor) != "postgresql":
        yield Error(
            f"The database is {vendor}; Fivewire keeps its messages in PostgreSQL.",
            hint='Give DATABASES["default"] the ENGINE "django.db.backends.postgresql", and NAME, USER, PASSWORD and '
            f"HOST of a PostgreSQL {OLDEST_SERVER // 10000} or later.",
            id="fivewire.E001",
        )


@register(Tags.database)
def check_database_server(
    app_configs: Apps, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterator[CheckMessage]:
    """fivewire.E002: PostgreSQL 14 or later. fivewire.E003: what it has committed survives a crash."""
    found = _settings(databases, ["server_version_num", *SAFETY])
    if found and (version := int(found["server_version_num"])) < OLDEST_SERVER:
        yield Error(
            f"The server is PostgreSQL {version // 10000}.",
            hint=f"PostgreSQL {OLDEST_SERVER // 10000} or later is needed.",
            id="fivewire.E002",
        )
    for name in SAFETY:
        if found and found[name] != "on":
            yield Error(
                f"PostgreSQL runs with {name} = {found[name]}: a crash could lose messages that were confirmed.",
                hint=f"Set {name} = on; listeners refuse to start on this server.",
                id="fivewire.E003",
            )


@register(Tags.database)
def check_database_sessions(
    app_configs: Apps, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """fivewire.E005: Django's sessions write, and their commits wait for the disk."""
    found = _settings(databases, list(DJANGO_SESSION))
    return [
        Error(
            f"Django's sessions have {name} = {found[name]}.",
            hint=f"Give the database's OPTIONS options=-c {name}={value}; a pooler between has to pass it on.",
            id="fivewire.E005",
        )
        for name, value in DJANGO_SESSION.items()
        if found and found[name] not in (value, "remote_apply")
    ]


@register(Tags.database)
def check_tables(
    app_configs: Apps, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterator[CheckMessage]:
    """fivewire.E006: the tables are not of an early development version, from which no migration leads on."""
    applied = _ask(databases, lambda connection: MigrationRecorder(connection).applied_migrations())
    first, last = (("queues", name) for name in DEVELOPMENT)
    if first in applied and last not in applied:
        yield Error(
            "The tables are of a development version before 0.1.0, which today's migrations do not know.",
            hint=f"Apply the migrations of a version that has {last[1]} first, or begin with an empty database.",
            id="fivewire.E006",
        )


@register(Tags.database)
def check_connection(
    app_configs: Apps, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterator[CheckMessage]:
    """fivewire.E007: the database keeps text as UTF-8. fivewire.E008: a pooler takes the sessions' options."""
    connection = connections[DEFAULT_DB_ALIAS]
    if DEFAULT_DB_ALIAS not in (databases or ()) or connection.vendor != "postgresql":
        return
    try:
        connection.ensure_connection()
        check_encoding(connection.connection)
    except WrongEncoding as error:
        yield Error(str(error), id="fivewire.E007")
    except OperationalError as error:
        if (refusal := refused_by_pooler(error)) is not None:
            yield Error(str(refusal), id="fivewire.E008")


def refuse_encoding(connection: Any, **kwargs: Any) -> None:
    """Raise WrongEncoding for a new connection of Django's to a database whose text is not UTF-8."""
    if connection.vendor == "postgresql":
        check_encoding(connection.connection)


@register(Tags.compatibility)
def check_hosts(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W005: connections to several hosts leave a primary that was replaced."""
    connection = connections[DEFAULT_DB_ALIAS]
    given = connection.settings_dict
    names = {"host": given.get("HOST"), "port": given.get("PORT"), **given.get("OPTIONS", {})}
    if hosts_of(names) and not isinstance(connection, DatabaseWrapper):
        yield Warning(
            "The database has several hosts, and Django's backend stays on a primary that was replaced.",
            hint="Set ENGINE to queues.postgresql.",
            id="fivewire.W005",
        )


def _settings(databases: Sequence[str] | None, names: list[str]) -> dict[str, str]:
    """Settings of the default database's session."""

    def read(connection: Any) -> dict[str, str]:
        with connection.cursor() as cursor:
            cursor.execute("select name, current_setting(name) from unnest(%s::text[]) as name", [names])
            return dict(cursor.fetchall())

    return _ask(databases, read)


def _ask(databases: Sequence[str] | None, ask: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    """What the default database's connection answers; nothing where it is not checked, or away."""
    connection = connections[DEFAULT_DB_ALIAS]
    if DEFAULT_DB_ALIAS not in (databases or ()) or connection.vendor != "postgresql":
        return {}
    try:
        return ask(connection)
    except OperationalError:
        return {}  # the command that needs the database reports it


@register(Tags.security)
def check_secret_key(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W001: the secret is long."""
    if (length := len(settings.SECRET_KEY)) < SHORTEST_SECRET:
        yield Warning(
            f"SECRET_KEY has {length} characters; sessions and digests of API keys rest on it.",
            hint=f"Set SECRET_KEY to at least {SHORTEST_SECRET} random characters, then make the API keys anew.",
            id="fivewire.W001",
        )


@register(Tags.compatibility)
def check_settings(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.E004: every setting of the app has a value that fits."""
    hint = "The page of settings lists them; an installation prints it by `fivewire settingsdoc`."
    return [Error(problem, hint=hint, id="fivewire.E004") for problem in problems()]
