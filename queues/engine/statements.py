"""The engine's SQL: one file a statement under sql/, named for what it does, read once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).parent / "sql"


@cache
def statement(name: str) -> bytes:
    """The text of sql/NAME.sql without its comments, which need not travel."""
    lines = (DIRECTORY / f"{name}.sql").read_bytes().splitlines()
    return b"\n".join(line for line in lines if not line.lstrip().startswith(b"--"))


def names() -> list[str]:
    """Every statement there is."""
    return sorted(path.stem for path in DIRECTORY.glob("*.sql"))


def array(values: Iterable[object]) -> str:
    """Numbers as the text of a PostgreSQL array: the form that costs Python least."""
    return "{" + ",".join(map(str, values)) + "}"
