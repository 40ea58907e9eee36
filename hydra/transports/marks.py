r"""Where a link begins in what comes through a named pipe (docs/protocols/hydra.md, "Transports"). No I/O.

    FF 5f3c09a1b2c3d4e55f3c09a1b2c3d4e5 \r\n    a mark: a byte that no text has, 32 hexadecimal digits, an end of line

A pipe outlives those who use it: what one of them has left in it, perhaps half a line, is read before what the next one
writes. So each link begins with a mark. Who dials draws one and writes it; who listens writes the same one back. What
stands before a mark belongs to an earlier link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TOKEN_SIZE: Final = 16
"""Random bytes in a mark."""

_FIRST: Final = b"\xff"
_FORM: Final = re.compile(rb"[0-9a-f]{32}\r?", re.ASCII)
_MAX_REST: Final = 33
"""Bytes of a mark between the first and the end of its line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A link begins, and one before it is over."""

    token: str
    """32 hexadecimal digits; empty if something else stood there: then nothing begins, and the rest is noise."""

    def __bytes__(self) -> bytes:
        return _FIRST + self.token.encode() + b"\r\n"


class Marks:
    """Takes what is read from a pipe, in any pieces, and finds the marks in it."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial: bytes | None = None
        """What has come of a mark that is not complete."""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        """Return the marks, and the bytes between them, in order."""
        found: list[bytes | Mark] = []
        first, *others = data.split(_FIRST)
        if self._partial is None:
            if first:
                found.append(first)
        else:
            self._complete(first, found)
        for other in others:
            if self._partial is not None:
                found.append(Mark(""))  # somebody began and did not get further
            self._partial = b""
            self._complete(other, found)
        return found

    def _complete(self, data: bytes, found: list[bytes | Mark]) -> None:
        """Bytes have come behind the first of a mark."""
        line, end, rest = ((self._partial or b"") + data).partition(b"\n")
        if not end and len(line) <= _MAX_REST:
            self._partial = line
            return
        self._partial = None
        token = line.removesuffix(b"\r").decode("ascii", "replace") if end and _FORM.fullmatch(line) else ""
        found.append(Mark(token))
        if rest:
            found.append(rest)
