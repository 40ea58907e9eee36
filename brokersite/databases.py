"""Django's DATABASES entry: from a URI, for the embedded server, or for none."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from brokersite.embedded import EmbeddedServer
from queues.database.hosts import defaults_for_hosts, hosts_of
from queues.database.parameters import DJANGO_SESSION, SOCKET_DIRECTORY

#: The last word on how Django's sessions are set. The admin's statements take milliseconds, but PostgreSQL expects
#: those on views and partitions to take longer: to compile them costs up to a second each.
SESSION = " ".join(f"-c {name}={value}" for name, value in (DJANGO_SESSION | {"jit": "off"}).items())

ENGINE: Final = "django.db.backends.postgresql"


class NoDatabase(ImproperlyConfigured):
    """A command needs a database and there is none; the message says what to do."""


class AbsentDatabase(dict[str, Any]):
    """The entry where there is no database. Reading its address raises NoDatabase, so only what needs one fails."""

    def __init__(self, problem: str) -> None:
        super().__init__(ENGINE=ENGINE)
        self.problem = problem

    def __getitem__(self, name: str) -> Any:
        if name == "NAME":
            raise NoDatabase(self.problem)
        return super().__getitem__(name)


def database_settings(url: str) -> dict[str, Any]:
    """The entry for a PostgreSQL URI or connection string; parameters such as ``sslmode`` go to libpq as they are."""
    given = {name: value for name, value in conninfo_to_dict(url).items() if value is not None}
    given |= defaults_for_hosts(given)
    return {
        "ENGINE": "queues.postgresql" if hosts_of(given) else ENGINE,
        "NAME": given.pop("dbname", ""),
        "USER": given.pop("user", ""),
        "PASSWORD": given.pop("password", ""),
        "HOST": given.pop("host", ""),
        "PORT": str(given.pop("port", "")),
        "OPTIONS": given | {"options": f"{given.get('options', '')} {SESSION}".strip()},
    }


def embedded_database_settings(database: EmbeddedServer) -> dict[str, Any]:
    """The entry for the embedded server, over TCP on 127.0.0.1; engines take its Unix socket where there is one."""
    directory = "" if database.socket_directory is None else str(database.socket_directory)
    names = ("dbname", "user", "password", "host", "port")
    address = make_conninfo(**{name: getattr(database, name) for name in names})
    return {SOCKET_DIRECTORY: directory, **database_settings(address)}
