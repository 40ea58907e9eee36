"""The engine's SQL: one file a statement under sql/."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from queues.sqlfiles import statements

#: Parameters by which a statement that takes `ids` and `skip` does all that there is.
ALL: dict[str, Any] = {"ids": None, "skip": "{}"}

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)


def array(values: Iterable[object]) -> str:
    """Numbers as the text of a PostgreSQL array: the form that costs Python least."""
    return "{" + ",".join(map(str, values)) + "}"
