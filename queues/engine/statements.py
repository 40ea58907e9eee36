"""The engine's SQL: one file a statement under sql/, in folders by concern."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from queues.database.prepared import NumberedStatement, number
from queues.database.sql_files import statements

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)


@cache
def numbered(name: str) -> NumberedStatement:
    """A named statement with numbers for its parameters. Raises FileNotFoundError."""
    return number(name, statement(name))
