"""Named SQL statements: one file a statement, named for what it does, read once; and files of several statements. The
one loader of all packages. Also arrays for their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

#: Parameters by which a statement that takes `ids` and `skip` does all that there is.
ALL: Final[dict[str, Any]] = {"ids": None, "skip": "{}"}

#: Includes a fragment that several statements share.
INCLUDE: Final = b"\\ir "

#: The folder of these fragments, which are no statements.
FRAGMENTS: Final = "parts"


@cache
def statement_files(folder: Path) -> dict[str, Path]:
    """The statements under a folder and its folders by concern: names and files. Names are unique among them."""
    files = [path for path in sorted(folder.rglob("*.sql")) if path.parent.name != FRAGMENTS]
    return {path.stem: path for path in files}


def load_statement(path: Path) -> bytes:
    """The statement in a file, without its comment lines and indentation, which need not travel to the server: psycopg
    parses a statement of more than 4096 bytes at each use. As in psql, a line `\\ir FILE` stands for the text of that
    file, whose place is relative to this one."""
    lines = (line for line in map(bytes.strip, path.read_bytes().splitlines()) if not line.startswith(b"--"))
    return b"\n".join(
        load_statement(path.parent / line.removeprefix(INCLUDE).decode()) if line.startswith(INCLUDE) else line
        for line in lines
    )


def titled_statements(path: Path) -> dict[str, str]:
    """The statements of a file that is run from its beginning to its end, by the comments above them. Empty lines
    separate them; the first block is the file's own comment."""
    _, *blocks = path.read_text().strip().split("\n\n")
    return dict(block.removeprefix("-- ").split("\n", 1) for block in blocks)


def statements(*folders: Path) -> Callable[[str], bytes]:
    """A function that returns the statement NAME from NAME.sql in the first of `folders` that has it.

    A folder may have its files in folders by concern; the name of a file is unique among all of them. The function
    raises FileNotFoundError for a name that none has.
    """

    @cache
    def statement(name: str) -> bytes:
        for files in map(statement_files, folders):
            if path := files.get(name):
                return load_statement(path)
        raise FileNotFoundError(f"no statement {name}.sql in {', '.join(map(str, folders))}")

    return statement


def array(values: Iterable[object]) -> str:
    """Numbers, truths and None, or plain words, as the text of a PostgreSQL array: what costs Python least."""
    items = values if isinstance(values, list) else list(values)
    text = orjson.dumps(items)  # numbers alone are written thirty times as fast as by `str`
    return "{" + (",".join(map(str, items)) if b'"' in text else text[1:-1].decode()) + "}"


def text_array(values: Iterable[str]) -> str:
    """Texts without NUL as the text of a PostgreSQL array: psycopg's lists cost many times as much."""
    if not (given := list(values)):
        return "{}"
    joined = "\0".join(given)
    if '"' in joined or "\\" in joined:
        joined = joined.replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + joined.replace("\0", '","') + '"}'
