"""What a body must be to go by a content type."""

from __future__ import annotations

from typing import Any

from msgpack import unpackb  # type: ignore[import-untyped]

#: Containers inside each other, at most.
DEEPEST = 62
LEAST, MOST = -(2**63), 2**63 - 1


def msgpack_problem(body: bytes) -> str | None:
    """Why a body is no MessagePack that consumers of every protocol can take as a value; None if it is.

    Values are nil, booleans, integers of 64 bits with a sign, UTF-8 text, bytes, arrays, and maps with text as keys.
    """
    try:
        value = unpackb(body, ext_hook=_refuse)
    except ValueError as error:
        return f"it is no such MessagePack: {error}"
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, float):
                return f"it has a float: {item!r}"
            if isinstance(item, int) and not LEAST <= item <= MOST:
                return f"it has an integer of more than 64 bits with a sign: {item}"
            if isinstance(item, dict):
                if any(not isinstance(key, str) for key in item):
                    return "it has a map with keys that are no text"
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return None
        level = below
    return f"its containers are nested more than {DEEPEST} deep"


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"it has an extension value (type {code})")
