"""The transport's SQL: one file a statement under sql/; what is not there is the engine's or that of `queues`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).parent / "sql"
ELSEWHERE = (DIRECTORY.parent.parent / "sql", DIRECTORY.parent.parent / "engine" / "sql")


@cache
def statement(name: str) -> bytes:
    """The text of a named statement without its comments, which need not travel."""
    path = next(path for path in (folder / f"{name}.sql" for folder in (DIRECTORY, *ELSEWHERE)) if path.exists())
    return b"\n".join(line for line in path.read_bytes().splitlines() if not line.lstrip().startswith(b"--"))
