"""Which database a broker URL names."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queues.celery.transport.errors import InvalidBroker

SCHEMES = ("fivewire", "postgresql", "postgres")


def conninfo(client: Any) -> str:
    """libpq's connection string for a `kombu.Connection`. Raises InvalidBroker.

    "fivewire://user:password@host:port/database" is what "postgresql://…" is to libpq, parameters included. What it
    does not name is taken from the connection's arguments (`userid`, `password`, `hostname`, `port`, `virtual_host`).
    With the transport option ``django_connection`` and nothing named, it is the database of that alias.
    """
    if client.ssl:
        raise InvalidBroker("TLS is asked for in the broker's URL: ?sslmode=verify-full&sslrootcert=…")
    _check_alternates(client.alt)
    named = _named(client)
    alias = client.transport_options.get("django_connection")
    if alias is not None and not named:
        from queues.database.parameters import engine_parameters

        return make_conninfo(**engine_parameters(alias))
    return make_conninfo(**named)


def _named(client: Any) -> dict[str, Any]:
    """The parameters of URL and arguments, in libpq's names. After a failover kombu has taken the URL apart."""
    text = client.hostname or ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in SCHEMES:
        raise InvalidBroker(f"{scheme}:// is no address of Fivewire's store; it must be fivewire:// or postgresql://")
    password = client.password() if callable(client.password) else client.password
    database = (client.virtual_host or "").removeprefix("/")
    given = {"user": client.userid, "password": password, "port": client.port, "dbname": database}
    named: dict[str, Any] = {name: value for name, value in given.items() if value}
    if separator:
        try:
            return named | conninfo_to_dict(f"postgresql://{rest}")
        except ProgrammingError as error:
            raise InvalidBroker(f"the broker's URL cannot be read: {error}") from error
    if not database:
        raise InvalidBroker(
            f"the host {text!r} is named, but no database: say fivewire://host/database, or virtual_host"
        )
    return named | ({"host": text} if text else {})


def _check_alternates(urls: list[str]) -> None:
    """Raise InvalidBroker for a list of URLs that kombu would not hand on as they are when it takes the next one."""
    parts = [urlsplit(url) for url in urls]
    if len(parts) < 2:
        return
    if any(part.query for part in parts):
        raise InvalidBroker(
            "in a list of broker URLs none can have parameters, which kombu loses; libpq itself takes several hosts: "
            "fivewire://a,b/database?target_session_attrs=read-write"
        )
    if not all(part.hostname and part.path.strip("/") for part in parts):
        raise InvalidBroker("in a list of broker URLs each must name a host and a database")
    if len({part.port is None for part in parts}) > 1:
        raise InvalidBroker("in a list of broker URLs each must name a port, or none")
