"""Texts that are alike, held and written as columns. No I/O.

The jids of a batch differ in their last digits, and the request ids of a client in a few. So many of them are one
pattern and, for each place in which they may differ, the bytes of all of them there: a slice with a stride of the
frames that they came in or are written into. A text then costs a few bytes, and no object of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import overload


class AlikeTexts(Sequence[bytes]):
    """Texts of one length that differ in few places."""

    __slots__ = ("_columns", "_count", "pattern")

    def __init__(self, pattern: bytes, columns: dict[int, bytes], count: int) -> None:
        """`pattern` is one of them, with zeros in the places of the columns."""
        #: One of them, with zeros where they may differ.
        self.pattern = pattern
        self._columns = columns
        self._count = count

    @classmethod
    def read(cls, frames: bytes, at: int, size: int, stride: int, places: Iterable[int]) -> AlikeTexts:
        """The texts of `size` bytes that begin at `at` in frames of `stride` bytes, and differ in these places only."""
        pattern = bytearray(frames[at : at + size])
        columns: dict[int, bytes] = {}
        for place in places:
            pattern[place] = 0
            columns[place] = frames[at + place :: stride]
        return cls(bytes(pattern), columns, len(frames) // stride)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> AlikeTexts: ...

    def __getitem__(self, at: int | slice) -> bytes | AlikeTexts:
        if isinstance(at, slice):
            count = len(range(*at.indices(self._count)))
            return AlikeTexts(self.pattern, {place: column[at] for place, column in self._columns.items()}, count)
        if not -self._count <= at < self._count:
            raise IndexError(at)
        text = bytearray(self.pattern)
        for place, column in self._columns.items():
            text[place] = column[at]
        return bytes(text)

    def __iter__(self) -> Iterator[bytes]:
        texts, size = bytes(write_frames([self], self._count)), len(self.pattern)
        return (texts[at : at + size] for at in range(0, len(texts), size))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AlikeTexts) and self._columns.keys() == other._columns.keys():
            return (self._count, self.pattern, self._columns) == (other._count, other.pattern, other._columns)
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def isascii(self) -> bool:
        """Whether all are ASCII."""
        return self.pattern.isascii() and all(map(bytes.isascii, self._columns.values()))

    def write(self, frames: bytearray, at: int, stride: int) -> None:
        """Write what differs into as many frames of `stride` bytes, in each of which a text begins at `at`."""
        for place, column in self._columns.items():
            frames[at + place :: stride] = column


#: A part of frames: the same bytes in all of them, or a text for each.
FramePart = bytes | Sequence[bytes]


def write_frames(parts: Sequence[FramePart], count: int) -> bytes | bytearray:
    """So many frames, of which there is one at least, made of these parts, one behind the other."""
    if count == 1:
        return b"".join([part if isinstance(part, bytes) else part[0] for part in parts])
    several = [part for part in parts if not isinstance(part, bytes | AlikeTexts)]
    if len(several) > 1 or len(set(map(len, chain(*several)))) > 1:
        columns = (repeat(part, count) if isinstance(part, bytes) else part for part in parts)
        return b"".join(chain.from_iterable(zip(*columns, strict=True)))
    return _write_alike(parts, several[0] if several else [b""] * count)


def _write_alike(parts: Sequence[FramePart], values: Sequence[bytes]) -> bytearray:
    """Frames of one length: `values` are the texts of the part that is neither bytes nor columns, or empty."""
    before = behind = b""
    alike: list[tuple[int, AlikeTexts]] = []
    size = 0
    for part in parts:
        if isinstance(part, bytes):
            text = part
        elif isinstance(part, AlikeTexts):
            alike.append((size, part))
            text = part.pattern
        else:
            before, behind, text = behind, b"", b""
            size += len(values[0])
        behind += text
        size += len(text)
    frames = bytearray(behind + before).join((b"", *values, b""))
    del frames[len(frames) - len(before) :]
    del frames[: len(behind)]
    for at, texts in alike:
        texts.write(frames, at, size)
    return frames
