"""Named SQL statements: one file a statement, named for what it does, read once. The one loader of all packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path


def load_statement(path: Path) -> bytes:
    """The statement in a file, without its comment lines, which need not travel to the server."""
    return b"\n".join(line for line in path.read_bytes().splitlines() if not line.lstrip().startswith(b"--"))


def statements(*folders: Path) -> Callable[[str], bytes]:
    """A function that returns the statement NAME from NAME.sql in the first of `folders` that has it.

    The function raises FileNotFoundError for a name that none has.
    """

    @cache
    def statement(name: str) -> bytes:
        for folder in folders:
            if (path := folder / f"{name}.sql").exists():
                return load_statement(path)
        raise FileNotFoundError(f"no statement {name}.sql in {', '.join(map(str, folders))}")

    return statement


def statement_names(folder: Path) -> list[str]:
    """The names of all statements in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.sql"))
