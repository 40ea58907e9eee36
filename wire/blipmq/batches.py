"""Batches: the frames of one read that say the same, decoded together; and deliveries, encoded together. No I/O.

A burst is hundreds of frames of one length and type. Then the bytes in one place of them all are one strided slice, a
column: where the columns of length and type are constant, the frames behind the first one begin where it says, and
where those of what they have in common are, they go together. So a frame costs a few slices' share and no object of its
own, but for the body of a PUBLISH. What is not alike, or too little to be worth it, is read one by one.

`BatchDecoder` reads the same stream as `Decoder`, refuses the same bytes, and what its batches say are the same frames.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

from wire.blipmq.codec import (
    ACK,
    HEADER,
    HEADER_SIZE,
    HELLO,
    LENGTH_SIZE,
    MIN_LENGTH,
    POLL,
    PUBLISH,
    BlipMQReader,
    Frame,
)

_pack_header, _read_header = HEADER.pack, HEADER.unpack_from

#: The offset of the correlation id, and its bytes.
_CID, _CID_SIZE = LENGTH_SIZE + 1, 8
#: Frames that are looked at together: so many if there are, times `_GROWTH` at most.
_GROWTH = 4
_MANY: Final = (16, 64, 256)
#: Frames that are compared as a whole, at most.
_SERIES: Final = 4096
#: Most bytes that frames may have in common to be looked at together.
_WIDE: Final = 64
#: The columns of length and type, those that differ soonest first, and then of what comes behind the correlation id.
_COLUMNS: Final = (4, 3, 2, 1, 0, *range(HEADER_SIZE, HEADER_SIZE + _WIDE))
#: Bytes of a PUBLISH before its topic: QoS and the topic's length.
_BEFORE_TOPIC: Final = 3
#: Types whose frames go together.
_TOGETHER: Final = (PUBLISH, ACK, POLL)
#: All numbers of two bytes, one after the other.
_U16S: Final = b"".join(number.to_bytes(2, "big") for number in range(1 << 16))


@dataclass(slots=True)
class FrameBatch:
    """Frames of one type that have the bytes behind their correlation ids in common: all of them, or for PUBLISH those
    before the body. It is one frame if that is of another type, or a PUBLISH without a whole topic."""

    kind: int
    common: bytes
    cids: Sequence[int]
    #: The bodies of PUBLISHes.
    bodies: list[bytes]

    def __len__(self) -> int:
        return len(self.cids)

    def after(self, count: int) -> FrameBatch:
        """All but the first frames."""
        return FrameBatch(self.kind, self.common, self.cids[count:], self.bodies[count:])

    def frames(self) -> Iterator[Frame]:
        """Its frames, one by one."""
        for cid, body in zip(self.cids, self.bodies or repeat(b""), strict=False):
            yield self.kind, cid, self.common + body

    def extend(self, cids: Sequence[int], bodies: list[bytes]) -> None:
        """Add frames like these."""
        own = self.cids
        if not own:
            self.cids = cids
        elif isinstance(own, list):
            own += cids
        elif isinstance(own, range) and isinstance(cids, range) and own.stop == cids.start:
            self.cids = range(own.start, cids.stop)
        else:
            self.cids = [*own, *cids]
        self.bodies += bodies


class BatchDecoder(BlipMQReader[FrameBatch]):
    """A server's decoder: frames that go together come as one `FrameBatch`."""

    def _cut(self, data: bytes, found: list[FrameBatch]) -> int:
        at, end, limit = 0, len(data), self._limit
        while end - at >= HEADER_SIZE:
            length, kind, cid = _read_header(data, at)
            start, stop = at + HEADER_SIZE, at + LENGTH_SIZE + length
            if not (MIN_LENGTH <= length <= limit and stop <= end and HELLO <= kind <= POLL):
                break
            body = stop
            if kind == PUBLISH:
                body = start + _BEFORE_TOPIC + int.from_bytes(data[start + 1 : start + _BEFORE_TOPIC], "big")
            if body > stop:  # a PUBLISH without a whole topic
                found.append(FrameBatch(kind, data[start:stop], [cid], []))
            elif kind in _TOGETHER and data[stop + LENGTH_SIZE : stop + _CID] == data[at + LENGTH_SIZE : at + _CID]:
                batch, size = FrameBatch(kind, data[start:body], [], []), stop - at
                found.append(batch)
                stop = _read_series(data, at, end, size, batch) if kind != PUBLISH else at
                if stop == at:
                    stop = self._read_alike(data, at, end, size, batch)
                stop = self._read_each(data, stop, end, batch)
            else:  # the next one, if there is one, is of another type
                found.append(FrameBatch(kind, data[start:body], [cid], [data[body:stop]] if kind == PUBLISH else []))
            at = stop
        return at

    def _read_alike(self, data: bytes, at: int, end: int, stride: int, batch: FrameBatch) -> int:
        """Add frames of `stride` bytes as long as many of them go together; returns where the last one ends."""
        common, head = batch.common, data[at : at + _CID]
        size = len(common)
        body = HEADER_SIZE + size
        while data.startswith(head, at) and data.startswith(common, at + HEADER_SIZE):
            if not (count := _count_alike(data, at, end, stride, size)):
                break
            stop = at + count * stride
            bodies = range(at + body, stop + body, stride) if batch.kind == PUBLISH else ()  # they may be empty
            batch.extend(_read_cids(data, at, stride, count), [data[n : n + stride - body] for n in bodies])
            at = stop
        return at

    def _read_each(self, data: bytes, at: int, end: int, batch: FrameBatch) -> int:
        """Add frames of any length, one by one; returns where the last one ends."""
        run_kind, common, limit, body = batch.kind, batch.common, self._limit, HEADER_SIZE + len(batch.common)
        cids: list[int] = []
        bodies: list[bytes] = []
        while end - at >= body:
            length, kind, cid = _read_header(data, at)
            stop = at + LENGTH_SIZE + length
            if kind != run_kind or not at + body <= stop <= end or length > limit:
                break
            if not data.startswith(common, at + HEADER_SIZE):
                break
            if kind == PUBLISH:
                bodies.append(data[at + body : stop])
            elif stop != at + body:
                break
            cids.append(cid)
            at = stop
        if cids:
            batch.extend(cids, bodies)
        return at


def _read_series(data: bytes, at: int, end: int, stride: int, batch: FrameBatch) -> int:
    """Add frames of `stride` bytes, without bodies, if they differ in nothing, or only in that their correlation ids
    follow each other: what most clients send, and what is compared as a whole. Returns where the last one ends."""
    head = data[at : at + _CID]
    while data.startswith(head, at) and data.startswith(batch.common, at + HEADER_SIZE):
        stop = _read_one_series(data, at, end, stride, batch)
        if stop == at:
            break
        at = stop
    return at


def _read_one_series(data: bytes, at: int, end: int, stride: int, batch: FrameBatch) -> int:
    if not data.startswith(data[at : at + _CID], at + (_MANY[0] - 1) * stride):
        return at
    kinds = data[at + LENGTH_SIZE : min(end, at + _SERIES * stride) : stride]
    count = min(len(kinds) - len(kinds.lstrip(kinds[:1])), (end - at) // stride)
    frames = data[at : at + count * stride]
    first = int.from_bytes(frames[_CID:HEADER_SIZE], "big")
    alike = frames[:stride] * count
    if frames == alike:
        batch.extend([first] * count, [])
        return at + count * stride
    columns = _u16s(first, count)
    if len(columns[0]) == count:
        series = bytearray(alike)
        for n, column in enumerate(columns, HEADER_SIZE - 2):
            series[n::stride] = column
        if series == frames:
            batch.extend(range(first, first + count), [])
            return at + count * stride
    return at


def _count_alike(data: bytes, at: int, end: int, stride: int, common: int) -> int:
    """The number of whole frames from `at` on, of `stride` bytes each, that have length, type and so many bytes in
    common with the first one; 0 if that is too few to be worth it."""
    head, count = data[at : at + _CID], 0
    for some in _MANY:  # the first and the last are looked at before all of them
        if common > _WIDE or at + some * stride > end or not data.startswith(head, at + (some - 1) * stride):
            break
        count = min((end - at) // stride, some * _GROWTH)
    for column in _COLUMNS[: _CID + common] if count else ():
        found = data[at + column : at + count * stride : stride]
        if found != found[:1] * count:
            count -= len(found.lstrip(found[:1]))
    return count if count >= _MANY[0] else 0


def _read_cids(data: bytes, at: int, stride: int, count: int) -> Sequence[int]:
    """The correlation ids of frames of `stride` bytes."""
    last = at + (count - 1) * stride + HEADER_SIZE
    columns = [data[n:last:stride] for n in range(at + _CID, at + HEADER_SIZE)]
    first = int.from_bytes(data[at + _CID : at + HEADER_SIZE], "big")
    if _u16s(first, count) == columns[-2:] and all(column == column[:1] * count for column in columns[:-2]):
        return range(first, first + count)
    numbers = bytearray(_CID_SIZE * count)
    for n, column in enumerate(columns):
        numbers[n::_CID_SIZE] = column
    cids = array("Q", bytes(numbers))
    if sys.byteorder == "little":
        cids.byteswap()
    return cids.tolist()


def _u16s(first: int, count: int) -> list[bytes]:
    """The columns of the last two bytes of consecutive numbers; too short when a third byte would change."""
    low = 2 * (first & 0xFFFF)
    return [_U16S[low + n : low + 2 * count : 2] for n in range(2)]


def encode_deliveries(tags: Sequence[int], prefix: bytes, bodies: Sequence[bytes]) -> bytes | bytearray:
    """PUBLISHes to a subscriber, as many as there are tags, from `delivery_prefix`. All of them have to fit into a
    frame."""
    count, size, bare = len(tags), len(bodies[0]), MIN_LENGTH + len(prefix)
    if count >= _MANY[0] and isinstance(tags, range) and [*map(len, bodies)].count(size) == count:
        before = bytearray(_pack_header(bare + size, PUBLISH, tags[0]) + prefix)
        frames = before.join((b"", *bodies))
        if _renumber(frames, len(before) + size, tags):
            return frames
    heads = [_pack_header(bare + len(body), PUBLISH, tag) for tag, body in zip(tags, bodies, strict=True)]
    return b"".join(chain.from_iterable(zip(heads, repeat(prefix), bodies, strict=False)))


def _renumber(frames: bytearray, stride: int, tags: range) -> bool:
    """Write tags into frames of one length, of which the first has its tag; False if they differ in more bytes than the
    last two."""
    columns = _u16s(tags[0], len(tags))
    if len(columns[0]) < len(tags):
        return False
    for n, column in enumerate(columns, HEADER_SIZE - 2):
        frames[n::stride] = column
    return True


class SharedDeliveries:
    """PUBLISHes of the same bodies to several subscribers of a topic: they differ in their tags, or not even in these,
    since subscriptions that were made together count alike."""

    __slots__ = ("_high", "_prefix", "_size", "_tags", "frames")

    def __init__(self, tags: Sequence[int], prefix: bytes, bodies: Sequence[bytes]) -> None:
        """As `encode_deliveries`."""
        self._tags = tags
        self._prefix = prefix
        self.frames = bytes(encode_deliveries(tags, prefix, bodies))
        #: Bytes of each frame; 0 if they differ in more than the last two bytes of their tags, and these before.
        self._size = 0
        self._high = tags[0] >> 16
        if isinstance(tags, range) and tags[-1] >> 16 == self._high and len(set(map(len, bodies))) == 1:
            self._size = len(self.frames) // len(tags)

    def to(self, tags: Sequence[int], prefix: bytes) -> bytes | bytearray | None:
        """The same with other tags; None if they are to be encoded anew."""
        if prefix != self._prefix:
            return None
        if tags == self._tags:
            return self.frames
        if not (self._size and isinstance(tags, range) and tags.start >> 16 == self._high):
            return None
        frames = bytearray(self.frames)
        return frames if _renumber(frames, self._size, tags) else None
