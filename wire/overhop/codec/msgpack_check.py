"""Checks whether Overhop accepts a MessagePack value, exactly and without allocating claimed sizes.

A container's head may claim four billion elements in five bytes, and a reader that believes it has lost; nested
arrays do the same to its stack. `check` walks over the bytes with a list of open containers, at most
`max_depth` long, and refuses what docs/protocols/overhop.md refuses. UTF-8 is left to the reader.

Most small messages need no such walk: `is_plain` sees that from their bytes alone.
"""

from typing import Final

from wire.framing import StreamError

#: Containers inside each other in one frame, the envelope being the first.
MAX_DEPTH: Final = 64
#: Values and keys in one frame, every container counting as one besides what it holds.
MAX_ELEMENTS: Final = 250_000


class CodecError(StreamError):
    """The bytes are not Overhop: close the connection without an answer (section "Errors", first tier)."""


class RefusedValue(CodecError):
    """A value that MessagePack has and Overhop has not, at this place of a whole frame."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


_UINT64 = 0xCF
_REFUSED: dict[int, str] = {
    0xC1: "byte 0xc1 begins no MessagePack value",
    0xCA: "floats are not allowed",
    0xCB: "floats are not allowed",
    **dict.fromkeys((*range(0xC7, 0xCA), *range(0xD4, 0xD9)), "extension values are not allowed"),
}
_BIN = range(0xC4, 0xC7)
_WIDE_CONTAINERS = range(0xDC, 0xE0)
_SMALL_CONTAINERS = range(0x80, 0xA0)

#: Bytes of the length that follows the head of a bin or a str.
_LENGTH_WIDTHS: dict[int, int] = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNT_WIDTHS: dict[int, int] = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_CONTAINERS = frozenset((*_SMALL_CONTAINERS, *_WIDE_CONTAINERS))
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
STRINGS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))


def _fixed_size(head: int) -> int:
    """Bytes of a value whose head says all about its size; 0 for the others."""
    if head < 0x80 or head >= 0xE0 or head in (0xC0, 0xC2, 0xC3):
        return 1
    if 0xA0 <= head < 0xC0:
        return 1 + (head & 0x1F)
    return {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(head, 0)


_SIZES: Final = bytes(_fixed_size(head) for head in range(256))

# The class of each byte as a head: 1 for a container of up to 15, 2 for what needs a closer look (refused, wide,
# a uint64 that may be too large, or a bin that may be a key), 0 for what every reader takes care of itself.
_CLOSER_LOOK = frozenset((*_REFUSED, *_BIN, *_WIDE_CONTAINERS, _UINT64)) - {0xC1}
_MARKS: Final = bytes(2 if head in _CLOSER_LOOK else 1 if head in _SMALL_CONTAINERS else 0 for head in range(256))
ELEMENTS_PER_SMALL_CONTAINER: Final = 31  # a map of 15 pairs, and the map itself


def is_plain(data: bytes, most_containers: int) -> bool:
    """Would `check` find nothing that a reader does not find? Sure if True; if False, `check` has to say.

    No byte of `data`, in any meaning, could begin a value that only `check` refuses, and no more than
    `most_containers` bytes could begin a container: so neither depth nor number of elements can be exceeded.
    """
    return 0 <= count_containers(data) <= most_containers


def count_containers(data: bytes) -> int:
    """The number of bytes that, in some meaning, could begin a container; -1 if some could begin a value that only
    `check` refuses."""
    marks = data.translate(_MARKS)
    return -1 if 2 in marks else marks.count(1)


def extent(data: bytes, at: int) -> tuple[int, int]:
    """The offset and the number of the bytes of an atom's value; its head is at `at`, and it is whole."""
    if size := _SIZES[data[at]]:
        return at + 1, size - 1
    width = _LENGTH_WIDTHS.get(data[at], 0)
    start = at + 1 + width
    return start, int.from_bytes(data[at + 1 : start], "big") if width else 8


def check(data: bytes, max_depth: int = MAX_DEPTH, max_elements: int = MAX_ELEMENTS) -> None:
    """Raise CodecError unless `data` is exactly one MessagePack value within the limits, UTF-8 aside."""
    end, at = len(data), 0
    outer: list[tuple[int, bool]] = []
    left, in_map = 1, False  # values and keys still to come in the innermost container, and is it a map?
    room = max_elements - 1
    while left or outer:
        if not left:
            left, in_map = outer.pop()
            continue
        if at >= end:
            break
        head = data[at]
        if in_map and not left & 1 and head not in STRINGS:
            raise CodecError("a map has a key that is not a string")
        left -= 1
        size = _SIZES[head]
        if size:
            at += size
        elif head in _LENGTH_WIDTHS:
            at += 1 + _LENGTH_WIDTHS[head]
            at += int.from_bytes(data[at - _LENGTH_WIDTHS[head] : at], "big")
        elif head in _CONTAINERS:
            if len(outer) >= max_depth:
                raise CodecError(f"containers are nested deeper than {max_depth}")
            outer.append((left, in_map))
            at, left = _open(data, at, head)
            in_map = head in _MAPS
            room -= left
            if room < 0:
                raise CodecError(f"more than {max_elements} elements")
        else:
            _check_uint64(data, at)
            at += 9
    if at > end or left:
        raise CodecError("ends inside a value")
    if at < end:
        raise CodecError(f"{end - at} bytes after the value")


def is_container(head: int) -> bool:
    """Whether a value with this head holds others."""
    return head in _CONTAINERS


def container(data: bytes, at: int) -> tuple[int, int, bool]:
    """Where the first element of the container at `at` begins, how many values and keys it claims, whether it is a map.

    Raises CodecError if it claims more than there are bytes.
    """
    start, count = _open(data, at, data[at])
    return start, count, data[at] in _MAPS


def _open(data: bytes, at: int, head: int) -> tuple[int, int]:
    """Return where the container at `at` has its first element, and how many values and keys it claims."""
    if head < 0xA0:
        start, count = at + 1, head & 0x0F
    else:
        start = at + 1 + _COUNT_WIDTHS[head]
        count = int.from_bytes(data[at + 1 : start], "big")
    if head in _MAPS:
        count *= 2
    if count > len(data) - start:
        raise CodecError("a container claims more elements than there are bytes")
    return start, count


def _check_uint64(data: bytes, at: int) -> None:
    """Refuse what may not be here at all, and a uint64 that is no int64."""
    if data[at] != _UINT64:
        raise RefusedValue(_REFUSED[data[at]], at)
    if data[at + 1 : at + 2] >= b"\x80":
        raise RefusedValue("an integer is over 2**63 - 1", at)
