"""Which database a broker URL names."""

from __future__ import annotations

from typing import Any

from psycopg.conninfo import make_conninfo

SCHEMES = ("fivewire", "postgresql", "postgres")


def conninfo(client: Any) -> str:
    """libpq's connection string for a `kombu.Connection`.

    "fivewire://user:password@host:port/database" is what "postgresql://…" is to libpq, parameters included. With the
    transport option ``django_connection`` and a URL that names nothing, it is the database of that alias.
    Raises ValueError for any other scheme.
    """
    text = client.hostname or ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is no address of Fivewire's store; it must be fivewire:// or postgresql://")
    alias = client.transport_options.get("django_connection")
    if alias is not None and not rest.strip("/"):
        from brokersite.databases import connection_parameters

        return make_conninfo(**connection_parameters(alias))
    return make_conninfo(f"postgresql://{rest}")
