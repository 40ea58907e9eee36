"""Lists of bytes reach PostgreSQL as psycopg alone would send them."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection as django_connection
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.array import ListBinaryDumper, ListDumper

from queues.engine import adapters


@pytest.mark.parametrize(
    "bodies", [[b"a"], [b"same", b"size"], [b"", b""], [b"", b"\0\xff" * 300, b"x"], [], [b"a", None], [[b"a"], [b"b"]]]
)
@pytest.mark.parametrize("format", [PyFormat.BINARY, PyFormat.AUTO])
def test_a_list_of_bytes_is_sent_as_psycopg_sends_it(bodies: list[object], format: PyFormat) -> None:
    context = psycopg.adapt.AdaptersMap(psycopg.adapters)
    holder = type("Holder", (), {"adapters": context, "connection": None})()
    adapters.register(holder)

    def sent(transformer: Transformer) -> tuple[object, int, bytes | None]:
        dumper = transformer.get_dumper(bodies, format)
        data = dumper.dump(bodies)
        return dumper.format, dumper.oid, None if data is None else bytes(data)

    assert sent(Transformer(holder)) == sent(Transformer())
