"""Names that IRC takes as the same. No I/O."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase
from typing import Final

#: RFC 2812, 2.2.
_LOWER: Final = str.maketrans(ascii_uppercase + "[]\\^", ascii_lowercase + "{}|~")


def fold(name: str) -> str:
    """A nick or a channel's name in IRC's lower case."""
    return name.translate(_LOWER)
