r"""The beginning of a link in the bytes of a named pipe (docs/protocols/hydra.md, "Named pipes"). No I/O.

    FF 5f3c09a1b2c3d4e55f3c09a1b2c3d4e5 \r\n    a start: a byte that no text has, 32 hexadecimal digits, an end of line

A pipe outlives its users: bytes that one of them has left, perhaps half a line, are read before the next one's. So each
link begins with a start, drawn by the dialler and repeated by the listener. Bytes before it belong to an earlier link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: Random bytes in a start.
TOKEN_SIZE: Final = 16

_FIRST: Final = b"\xff"
_FORM: Final = re.compile(rb"[0-9a-f]{32}\r?", re.ASCII)
#: Bytes of a start between its first and the end of its line.
_MAX_REST: Final = 33


@dataclass(frozen=True, slots=True)
class LinkStart:
    """The start of a link, and the end of the one before."""

    token: str
    """32 hexadecimal digits; empty for a broken start: no link begins."""

    def __bytes__(self) -> bytes:
        return _FIRST + self.token.encode() + b"\r\n"


class FifoDecoder:
    """Finds the starts in a pipe's bytes, which come in any pieces."""

    def __init__(self) -> None:
        self._partial: bytes | None = None
        """The bytes of an incomplete start."""

    def feed(self, data: bytes) -> list[bytes | LinkStart]:
        """Return the starts, and the bytes between them, in order."""
        found: list[bytes | LinkStart] = []
        first, *others = data.split(_FIRST)
        if self._partial is None:
            if first:
                found.append(first)
        else:
            self._complete(first, found)
        for other in others:
            if self._partial is not None:
                found.append(LinkStart(""))  # a start without its end
            self._partial = b""
            self._complete(other, found)
        return found

    def _complete(self, data: bytes, found: list[bytes | LinkStart]) -> None:
        """Take bytes behind the first of a start."""
        line, end, rest = ((self._partial or b"") + data).partition(b"\n")
        if not end and len(line) <= _MAX_REST:
            self._partial = line
            return
        self._partial = None
        token = line.removesuffix(b"\r").decode("ascii", "replace") if end and _FORM.fullmatch(line) else ""
        found.append(LinkStart(token))
        if rest:
            found.append(rest)
