"""Lines in datagrams (docs/protocols/hydra.md, "Transports"). No I/O.

A datagram holds whole lines, as many as fit into 1400 bytes; one longer line goes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hydra.protocol.codec import MAX_LINE, IgnoredLine, parse

#: Bytes of a datagram with several lines: most networks carry as many unfragmented.
MAX_JOINED: Final = 1400


def packed(lines: bytes) -> Iterator[bytes]:
    """The datagrams of whole lines; empty ones are left out."""
    waiting = b""
    for line in filter(None, lines.split(b"\n")):
        if waiting and len(waiting) + len(line) + 1 > MAX_JOINED:
            yield waiting
            waiting = b""
        waiting += line + b"\n"
    if waiting:
        yield waiting


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
