"""Fields of an Overhop payload: their types, their limits, and the two kinds of errors in them. No I/O."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from wire.overhop.codec.names import Code
from wire.overhop.codec.timestamps import parse_timestamp

MAX_NAME: Final = 255
#: Characters kept of an error, a reason or a log line; the rest is cut off.
MAX_TEXT: Final = 2000

is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_any_uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.I | re.A).fullmatch

Payload = dict[str, Any]


class ShapeError(ValueError):
    """The payload has the wrong shape: ERR PROTOCOL_VIOLATION with this text, then close."""


class DomainError(ValueError):
    """A value is refused: ERR with `code` and this text; the connection goes on."""

    def __init__(self, code: Code, msg: str) -> None:
        super().__init__(msg)
        self.code = code
        self.msg = msg


def forbidden(q: str, msg: str) -> DomainError:
    """The error for a queue that is out of reach."""
    return DomainError(Code.SYSTEM_QUEUE_FORBIDDEN if q[:1] == "_" else Code.FORBIDDEN, msg)


def text(p: Payload, key: str) -> str:
    """Return a string that has to be there; raise ShapeError."""
    value = p.get(key)
    if type(value) is not str:
        raise ShapeError(f"{key!r} is missing" if key not in p else f"{key!r} is {kind(value)}, not a string")
    return value


def integer(p: Payload, key: str) -> int:
    """Return an integer that has to be there, a bool being none; raise ShapeError."""
    value = p.get(key)
    if type(value) is not int:
        raise ShapeError(f"{key!r} is missing" if key not in p else f"{key!r} is {kind(value)}, not an integer")
    return value


def kept_text(p: Payload, key: str) -> str:
    """Return text for people to read: cut, and without the one character that PostgreSQL does not take."""
    return text(p, key)[:MAX_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}")


def given(p: Payload, key: str) -> Any:
    """Return an optional value of any type but nil, None if it is absent; raise ShapeError for nil."""
    value = p.get(key)
    if value is None and key in p:
        raise ShapeError(f"{key!r} is nil: leave it out instead")
    return value


def kind(value: object) -> str:
    """Return what a value is in the words of MessagePack."""
    names = {type(None): "nil", bytes: "bin", str: "a string", int: "an integer", list: "an array", dict: "a map"}
    return names.get(type(value), type(value).__name__)


def in_range(value: int | None, least: int, most: int, code: Code, key: str) -> None:
    """Raise DomainError `code` for a value outside `least` to `most`; None is an absent one."""
    if value is not None and not least <= value <= most:
        raise DomainError(code, f"{key} is {value}, not {least} to {most}")


def canonical_uuid(written: str) -> str | None:
    """Return a UUID in lower case and with hyphens, or None if it is none."""
    return str(UUID(written)) if _any_uuid(written) else None


def moment(p: Payload, key: str) -> datetime:
    """Return a timestamp that has to be there, in UTC; raise ShapeError."""
    written = text(p, key)
    try:
        return parse_timestamp(written)
    except ValueError as error:
        raise ShapeError(f"{key!r}: {error}") from None
