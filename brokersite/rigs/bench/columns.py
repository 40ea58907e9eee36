"""Sequence numbers of messages, written and checked as columns of bytes.

A field of many frames of one length is a column with a stride: strided slices read and write it in C, eight slice
assignments for a thousand numbers. A number has 8 bytes, big-endian: the run (16 bits, so that what another run has
left is told apart), the producer (16 bits), the position (32 bits).
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

#: Bytes of a number, and the hexadecimal digits of one.
WIDTH: Final = 8
DIGITS: Final = 2 * WIDTH
_POSITION: Final = (1 << 32) - 1


def read_column(data: bytes | bytearray, start: int, stride: int, count: int, width: int = WIDTH) -> bytearray:
    """`width` bytes at `start` of each of `count` records of `stride` bytes, joined."""
    column = bytearray(width * count)
    end = start + stride * (count - 1) + 1
    for i in range(width):
        column[i::width] = data[start + i : end + i : stride]
    return column


def write_column(records: bytearray, offset: int, stride: int, column: bytes | bytearray, width: int = WIDTH) -> None:
    """The reverse, into as many records as the column has values."""
    for i in range(width):
        records[offset + i :: stride] = column[i::width]


def numbers(run: int, producer: int, first: int, count: int) -> bytes:
    """The numbers of a producer's messages from position `first` on, joined."""
    base = run << 48 | producer << 32 | first
    values = array("Q", range(base, base + count))
    values.byteswap()
    return values.tobytes()


def positions(column: bytes | bytearray) -> array[int]:
    """The numbers of a column as integers, the run and the producer included."""
    values = array("Q", bytes(column))
    values.byteswap()
    return values


class Records:
    """Encoded frames of one length, which differ in the number at `offset`; as hexadecimal digits if `digits`."""

    def __init__(self, frame: bytes, offset: int, run: int, producer: int, digits: bool = False) -> None:
        self.stride = len(frame)
        self._frame = frame
        self._offset = offset
        self._run = run
        self._producer = producer
        self._digits = digits
        self._buffer = bytearray()

    def take(self, first: int, count: int) -> bytearray:
        """The frames from position `first` on, joined; the buffer is written anew by the next call."""
        if len(self._buffer) != count * self.stride:
            self._buffer = bytearray(self._frame * count)
        column = numbers(self._run, self._producer, first, count)
        if self._digits:
            write_column(self._buffer, self._offset, self.stride, column.hex().encode(), DIGITS)
        else:
            write_column(self._buffer, self._offset, self.stride, column)
        return self._buffer


class Verified(NamedTuple):
    """The counts of faulty messages, by the kind of fault."""

    lost: int
    duplicates: int
    foreign: int
    unordered: int


def verify(run: int, sent: Sequence[int], received: Iterable[bytes]) -> Verified:
    """Compare what each producer has sent, a count, with the columns of what each consumer has received.

    Messages are out of order where a consumer first got one behind a later one of the same producer.
    """
    counts = [bytearray(count) for count in sent]
    foreign = unordered = 0
    for column in received:
        values = positions(column)
        for producer, count in enumerate(counts):
            low = run << 48 | producer << 32
            mine = array("Q", [value for value in values if low <= value <= low + _POSITION])
            firsts = dict.fromkeys(mine)
            unordered += sum(map(operator.gt, firsts, islice(firsts, 1, None)))
            for value in mine:
                position = value - low
                if position >= len(count):
                    foreign += 1
                elif count[position] < 255:
                    count[position] += 1
            foreign -= len(mine)
        foreign += len(values)
    lost = sum(count.count(0) for count in counts)
    return Verified(lost, sum(map(sum, counts)) - (sum(sent) - lost), foreign, unordered)
