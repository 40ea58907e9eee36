"""The engine's SQL: one file a statement under sql/, in folders by concern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from psycopg.adapt import PyFormat

from queues.database.sql_files import statements

#: Parameters by which a statement that takes `ids` and `skip` does all that there is.
ALL: dict[str, Any] = {"ids": None, "skip": "{}"}

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)

#: A parameter as psycopg has it, `%(name)s`, or a percent sign.
_PARAMETER: Final = re.compile(rb"%(?:%|\((\w+)\)([sbt]))")


def array(values: Iterable[object]) -> str:
    """Numbers, truths and None, or plain words, as the text of a PostgreSQL array: what costs Python least."""
    items = values if isinstance(values, list) else list(values)
    text = orjson.dumps(items)  # numbers alone are written thirty times as fast as by `str`
    return "{" + (",".join(map(str, items)) if b'"' in text else text[1:-1].decode()) + "}"


class NumberedStatement(NamedTuple):
    """A statement as the server takes it: `$1` stands for the first of `names`, which is sent in the first format."""

    text: bytes
    names: tuple[str, ...]
    formats: tuple[PyFormat, ...]


def number(name: str, text: bytes) -> NumberedStatement:
    """A statement, here called `name`, with numbers for its parameters."""
    formats: dict[str, PyFormat] = {}

    def place(found: re.Match[bytes]) -> bytes:
        if found.group() == b"%%":
            return b"%"
        parameter, format = found[1].decode(), PyFormat(found[2].decode())
        if formats.setdefault(parameter, format) is not format:
            raise ValueError(f"{name}.sql sends {parameter} in two formats")
        return b"$%d" % (1 + list(formats).index(parameter))

    text = _PARAMETER.sub(place, text)
    return NumberedStatement(text, tuple(formats), tuple(formats.values()))


@cache
def numbered(name: str) -> NumberedStatement:
    """A named statement with numbers for its parameters. Raises FileNotFoundError."""
    return number(name, statement(name))
