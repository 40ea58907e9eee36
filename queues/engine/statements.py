"""The engine's SQL: one file a statement under sql/."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from queues.sqlfiles import statements

#: Parameters by which a statement that takes `ids` and `skip` does all that there is.
ALL: dict[str, Any] = {"ids": None, "skip": "{}"}

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)


def array(values: Iterable[object]) -> str:
    """Numbers, or plain words, as the text of a PostgreSQL array: the form that costs Python least."""
    items = values if isinstance(values, list) else list(values)
    text = orjson.dumps(items)  # numbers alone are written thirty times as fast as by `str`
    return "{" + (",".join(map(str, items)) if b'"' in text else text[1:-1].decode()) + "}"
