"""Lines in datagrams (docs/protocols/hydra.md, "Transports"). No I/O.

A datagram holds whole lines, as many as fit into 1400 bytes; one longer line goes alone.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol.codec import MAX_LINE, IgnoredLine, parse

#: Bytes of a datagram with several lines: most networks carry as many unfragmented.
MAX_JOINED: Final = 1400


class DatagramPacker:
    """Packs lines into datagrams."""

    def __init__(self) -> None:
        self._waiting = b""

    def add(self, lines: bytes) -> list[bytes]:
        """Add whole lines; returns the full datagrams."""
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
        """The waiting lines as one datagram, which may be empty."""
        waiting, self._waiting = self._waiting, b""
        return waiting


def whole_lines(datagram: bytes) -> bytes:
    """A datagram's lines, the last one with its end too."""
    return datagram if datagram.endswith(b"\n") else datagram + b"\n"


def begins_with_message(datagram: bytes) -> bool:
    """Whether a datagram's first line is a message."""
    line = datagram[: MAX_LINE + 2].partition(b"\n")[0]
    try:
        parse(line.removesuffix(b"\r").decode())
    except (UnicodeDecodeError, IgnoredLine):
        return False
    return True
