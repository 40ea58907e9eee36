"""Lists of bytes reach PostgreSQL as psycopg alone would send them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer

from queues.engine import adapters


@pytest.mark.parametrize(
    "bodies", [[b"a"], [b"same", b"size"], [b"", b""], [b"", b"\0\xff" * 300, b"x"], [], [b"a", None], [[b"a"], [b"b"]]]
)
@pytest.mark.parametrize("format", [PyFormat.BINARY, PyFormat.AUTO])
def test_a_list_of_bytes_is_sent_as_psycopg_sends_it(bodies: list[object], format: PyFormat) -> None:
    context = psycopg.adapt.AdaptersMap(psycopg.adapters)
    holder: Any = type("Holder", (), {"adapters": context, "connection": None})()
    adapters.register(holder)

    def sent(context: Any) -> tuple[object, int, bytes | None]:
        dumper = Transformer(context).get_dumper(bodies, format)
        data = dumper.dump(bodies)
        return dumper.format, dumper.oid, None if data is None else bytes(data)

    assert sent(holder) == sent(None)
