"""Hydra's SQL: one file a statement in `sql/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from hydra.storage.database import Connection
from queues.database.sql_files import statements

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)


async def execute(connection: Connection, name: str, /, **parameters: Any) -> AsyncCursor[TupleRow]:
    """Run the statement of this name."""
    return await connection.execute(statement(name), parameters)


async def fetch(connection: Connection, name: str, /, **parameters: Any) -> TupleRow | None:
    """Run the statement of this name, and return its first row, if there is one."""
    return await (await execute(connection, name, **parameters)).fetchone()
