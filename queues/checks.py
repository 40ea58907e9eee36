"""System checks: what would make the broker fail later, said by every ``manage.py`` command now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import OperationalError

from queues.engine.database import OLDEST_SERVER

SHORTEST_SECRET = 32
LOCAL_HOSTS = {"localhost", "127.0.0.1", "[::1]", ".localhost"}

Apps = Sequence[AppConfig] | None


@register(Tags.compatibility)
def check_database_engine(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.E001: the default database is PostgreSQL."""
    if connections[DEFAULT_DB_ALIAS].vendor == "postgresql":
        return []
    return [
        Error(
            f"The database is {connections[DEFAULT_DB_ALIAS].vendor}; Fivewire keeps its messages in PostgreSQL.",
            hint="Set DATABASE_URL to a postgresql:// address, or leave it unset for the embedded server.",
            id="fivewire.E001",
        )
    ]


@register(Tags.database)
def check_database_server(
    app_configs: Apps, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """fivewire.E002: PostgreSQL 14 or later. fivewire.E003: what it has committed survives a crash."""
    connection = connections[DEFAULT_DB_ALIAS]
    if DEFAULT_DB_ALIAS not in (databases or ()) or connection.vendor != "postgresql":
        return []
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "select current_setting('server_version_num')::int, current_setting('fsync'),"
                " current_setting('full_page_writes')"
            )
            version, *safety = cursor.fetchone()
    except OperationalError:
        return []  # whoever asked for the check needs the database and says so
    messages: list[CheckMessage] = []
    if version < OLDEST_SERVER:
        messages.append(
            Error(
                f"The server is PostgreSQL {version // 10000}.",
                hint=f"PostgreSQL {OLDEST_SERVER // 10000} or later is needed.",
                id="fivewire.E002",
            )
        )
    for name, value in zip(("fsync", "full_page_writes"), safety, strict=True):
        if value != "on":
            messages.append(
                Error(
                    f"PostgreSQL runs with {name} = {value}: a crash could lose messages that were confirmed.",
                    hint=f"Set {name} = on; listeners refuse to start on this server.",
                    id="fivewire.E003",
                )
            )
    return messages


@register(Tags.security)
def check_secret_key(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.W001: the secret is long."""
    if len(settings.SECRET_KEY) >= SHORTEST_SECRET:
        return []
    return [
        Warning(
            f"SECRET_KEY has {len(settings.SECRET_KEY)} characters; sessions and digests of API keys rest on it.",
            hint=f"Set SECRET_KEY to at least {SHORTEST_SECRET} random characters, then make the API keys anew.",
            id="fivewire.W001",
        )
    ]


@register(Tags.security, deploy=True)
def check_shared_secret(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.W002: where the database may be shared the secret is set, not generated."""
    if settings.EMBEDDED_DATABASE is not None or not _is_generated(settings.BROKER_KEY_PEPPERS[0]):
        return []
    return [
        Warning(
            "DATABASE_URL is set and SECRET_KEY is the one generated for this checkout. Another host on this "
            "database would generate its own, and refuse the API keys made here.",
            hint="Set SECRET_KEY, or BROKER_KEY_PEPPERS, on every host; the one in use lies in "
            f"{settings.DATA_DIR / 'secret_key'}.",
            id="fivewire.W002",
        )
    ]


@register(Tags.security)
def check_debug(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.W003: no debug pages, which show settings and messages, for other hosts."""
    if not settings.DEBUG or set(settings.ALLOWED_HOSTS) <= LOCAL_HOSTS:
        return []
    return [
        Warning(
            "DEBUG is on and ALLOWED_HOSTS has names that others can reach: an error page shows them settings "
            "and messages.",
            hint="Unset DEBUG.",
            id="fivewire.W003",
        )
    ]


def _is_generated(secret: str) -> bool:
    try:
        return (settings.DATA_DIR / "secret_key").read_text().strip() == secret
    except OSError:
        return False
