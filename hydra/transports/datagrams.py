"""How lines go into datagrams and come out (docs/protocols/hydra.md, "Transports"). No I/O.

A datagram holds whole lines, as many as fit into 1400 bytes; one longer line goes alone.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol.codec import MAX_LINE, Ignored, parse

MAX_JOINED: Final = 1400
"""Bytes of a datagram with several lines: less than what most networks carry in one piece."""


class Packer:
    """Gathers lines, and gives them as datagrams."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = b""

    def add(self, lines: bytes) -> list[bytes]:
        """Add whole lines; return the datagrams that are full."""
        full: list[bytes] = []
        for line in lines.split(b"\n"):
            if not line:
                continue
            if self._waiting and len(self._waiting) + len(line) + 1 > MAX_JOINED:
                full.append(self._waiting)
                self._waiting = b""
            self._waiting += line + b"\n"
        return full

    def take(self) -> bytes:
        """Return what waits, as one datagram, empty if nothing does."""
        waiting, self._waiting = self._waiting, b""
        return waiting


def whole_lines(datagram: bytes) -> bytes:
    """What a datagram holds, with an end behind its last line, so that it is not glued to the next datagram's first."""
    return datagram if datagram.endswith(b"\n") else datagram + b"\n"


def begins_with_message(datagram: bytes) -> bool:
    """Whether the first line means something."""
    line = datagram[: MAX_LINE + 2].partition(b"\n")[0]
    try:
        parse(line.removesuffix(b"\r").decode())
    except (UnicodeDecodeError, Ignored):
        return False
    return True
