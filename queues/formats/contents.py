"""Checks of a body against its content type."""

from __future__ import annotations

import json
from typing import Any

from msgpack import packb, unpackb  # type: ignore[import-untyped]

#: Containers inside each other, at most.
DEEPEST = 62
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1


class NoSuchContent(ValueError):
    """A body is not what its content type says; the text says why."""


def canonical_msgpack(body: bytes) -> bytes:
    """A MessagePack body as it is stored: maps sorted by key, everything as short as it goes.

    Consumers of every protocol can take it as a value then: nil, booleans, integers of 64 bits with a sign, UTF-8 text,
    bytes, arrays, and maps with text as keys. Raises NoSuchContent for anything else.
    """
    try:
        value = unpackb(body, ext_hook=_refuse)
    except ValueError as error:
        raise NoSuchContent(f"it is not valid MessagePack: {error}") from error
    packed: bytes = packb(_sorted(value, DEEPEST))
    return packed


def json_of_msgpack(body: bytes) -> str | None:
    """A MessagePack body as JSON that `msgpack_of_json` makes it of again; None if JSON cannot carry it, as bytes."""
    try:
        text = json.dumps(unpackb(body, ext_hook=_refuse), indent=2, ensure_ascii=False)
        return text if msgpack_of_json(text) == canonical_msgpack(body) else None
    except (ValueError, TypeError, RecursionError):
        return None


def msgpack_of_json(text: str) -> bytes:
    """JSON as the MessagePack body that is stored for it. Raises NoSuchContent for what is no JSON, or has a value that
    `canonical_msgpack` refuses."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoSuchContent(f"it is not valid JSON: {error}") from error
    try:
        packed: bytes = packb(_sorted(value, DEEPEST))
    except UnicodeEncodeError as error:
        raise NoSuchContent(f"it has a text that is no UTF-8: {error.reason}") from error
    return packed


def _sorted(value: Any, levels: int) -> Any:
    if isinstance(value, float):
        raise NoSuchContent(f"it has a float: {value!r}")
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise NoSuchContent(f"it has an integer of more than 64 bits with a sign: {value}")
    if isinstance(value, dict | list) and not levels:
        raise NoSuchContent(f"its containers are nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise NoSuchContent("it has a map with keys that are no text")
        return {key: _sorted(value[key], levels - 1) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item, levels - 1) for item in value]
    return value


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"it has an extension value (type {code})")
