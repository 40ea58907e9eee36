"""The transport's SQL under sql/; it also uses statements of `queues` and of the engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from queues.database.prepared import NumberedStatement, number
from queues.database.sql_files import statements
from queues.engine.api import ENGINE_DIRECTORY

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY, DIRECTORY.parents[2] / "sql", ENGINE_DIRECTORY)


@cache
def numbered(name: str) -> NumberedStatement:
    """A named statement with numbers for its parameters. Raises FileNotFoundError."""
    return number(name, statement(name))
