"""Where in a frame a refused value is, and which request it is: for logs, and for clients that ask. No I/O.

It looks at one frame whose connection is about to be closed, within the limits of `msgpack_check`, and allocates no
claimed sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wire.overhop.codec.msgpack_check import MAX_DEPTH, MAX_ELEMENTS, container, extent, is_container

#: Characters of a path, and of a request id.
MAX_TEXT: Final = 200

#: Bytes behind the heads of values that Overhop refuses: floats, extension values of a fixed size.
_REFUSED_SIZES: Final = {0xCA: 4, 0xCB: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
#: Bytes of the length of other extension values.
_EXT_WIDTHS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}


class Explanation(NamedTuple):
    """The place of a value, such as `p.result.items[3]`, and the request id; each empty if it cannot be found."""

    path: str = ""
    rid: str = ""


class _Open:
    """A container that is walked through."""

    __slots__ = ("count", "index", "is_map", "key")

    def __init__(self, is_map: bool, count: int) -> None:
        self.is_map = is_map
        self.count = count
        self.index = -1
        self.key = ""

    def __str__(self) -> str:
        return f".{self.key}" if self.is_map else f"[{self.index}]"


def explain(data: bytes, at: int) -> Explanation:
    """Find the path of the value that begins at `at`, and the envelope's request id."""
    path = rid = ""
    try:
        for where, start, text in _walk(data):
            if start == at and not path:
                path = "".join(map(str, where)).removeprefix(".")
            if text and len(where) == 1 and where[0].key == "rid":
                rid = text
    except (IndexError, ValueError):  # the rest is no MessagePack
        pass
    return Explanation(path[:MAX_TEXT], rid[:MAX_TEXT])


def _walk(data: bytes) -> Iterator[tuple[list[_Open], int, str]]:
    """Each value: the containers that it is in, where it begins, and its text if it is a short one."""
    stack: list[_Open] = []
    at = 0
    for _ in range(MAX_ELEMENTS):
        while stack and stack[-1].index + 1 >= stack[-1].count:
            stack.pop()
        if at >= len(data) or (at and not stack) or len(stack) > MAX_DEPTH:
            return
        if stack:
            inner = stack[-1]
            inner.index += 1
            if inner.is_map and inner.index % 2 == 0:
                inner.key, at = _atom(data, at)
                continue
        text, start = "", at
        if is_container(data[at]):
            at, count, is_map = container(data, at)
            yield stack, start, text
            stack.append(_Open(is_map, count))
        else:
            text, at = _atom(data, at)
            yield stack, start, text


def _atom(data: bytes, at: int) -> tuple[str, int]:
    """The text of a value that is no container, if it is one, and where the value ends."""
    head: Any = data[at]
    if head in _REFUSED_SIZES:
        return "", at + 1 + _REFUSED_SIZES[head]
    if (width := _EXT_WIDTHS.get(head)) is not None:
        return "", at + 2 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
    start, size = extent(data, at)
    text = data[start : start + min(size, MAX_TEXT)].decode(errors="replace") if start + size <= len(data) else ""
    return text, start + size
