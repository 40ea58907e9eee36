"""Runs: the messages of one read that differ in one value only, decoded together. No I/O.

Half of a worker's messages are DONEs, and nearly all of other clients' are ENQUEUEs: envelopes that begin and end alike
around a payload or a jid. The meaning of a byte follows from those before it. So an envelope that begins like an
earlier one, and goes on like that one behind a value that is whole, says the same but for that value. The values of a
run are read by one call of the MessagePack library, and what they need not be unpacked for is done to their bytes.

`RunDecoder` reads the same stream as `Decoder`, refuses the same bytes, and what its runs say are the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from msgpack import Packer, packb, unpackb  # type: ignore[import-untyped]

from wire.overhop.codec.columns import AlikeTexts, write_frames
from wire.overhop.codec.decoder import LENGTH_SIZE, MAX_ENVELOPE, OverhopEnvelope, OverhopReader, read_length
from wire.overhop.codec.msgpack_check import STRINGS, count_containers, extent, is_plain
from wire.overhop.codec.names import Type

ENQUEUE: Final = int(Type.ENQUEUE)
DONE: Final = int(Type.DONE)

#: The beginning of an envelope whose payload comes first and has two keys, the first of them a job's.
_JOB: Final = b"\x84\xa1p\x82\xabjob_payload"
#: The beginning of an envelope whose payload comes first and has nothing but a jid of 32 to 255 bytes, up to its size.
_JID: Final = b"\x84\xa1p\x81\xa3jid\xd9"
#: Longer payloads of jobs are messages of their own, in bytes: they may be too long to be delivered.
_MAX_PAYLOAD: Final = 32 * 1024
#: The heads of small maps.
_MAP_HEADS: Final = frozenset(range(0x80, 0x90))
#: From so many messages of one length on these are looked at together: so many times as many as the last time, at most.
_MANY, _GROWTH = 16, 4
#: The digits in which the jids of a batch differ.
_DIGITS: Final = 3
#: From so many jobs on the shape of their payloads is learned.
_WORTH_LEARNING: Final = 16
#: So many columns of bytes are looked at for each payload, at most: more cost as much as reading it.
_COLUMNS: Final = 4
#: The head of no frame.
_NONE: Final = b"\xff" * LENGTH_SIZE

_first = itemgetter(0)
#: A packer that is kept is faster than `packb`, which makes one each time.
_pack: Final = Packer(buf_size=1 << 16).pack


@dataclass(slots=True)
class JobRun:
    """ENQUEUEs of one queue, of a payload and nothing else: request ids of one length, and payloads as `encode_value`
    writes them."""

    q: str
    rids: Sequence[bytes]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.rids)

    def envelopes(self) -> Iterator[OverhopEnvelope]:
        """Its messages, one by one."""
        for rid, payload in zip(self.rids, self.payloads, strict=True):
            yield OverhopEnvelope(ENQUEUE, rid.decode(), {"job_payload": unpackb(payload), "q": self.q})


@dataclass(slots=True)
class DoneRun:
    """DONEs without a result: request ids of one length, and jids as UTF-8."""

    rids: Sequence[bytes]
    jids: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.rids)

    def envelopes(self) -> Iterator[OverhopEnvelope]:
        """Its messages, one by one."""
        for rid, jid in zip(self.rids, self.jids, strict=True):
            yield OverhopEnvelope(DONE, rid.decode(), {"jid": jid.decode()})


Run = JobRun | DoneRun
Received = OverhopEnvelope | Run


class _Ending:
    """The bytes behind the value in envelopes of one kind: `before`, a request id, `after`."""

    def __init__(self, kind: int, between: bytes = b"") -> None:
        """`between` comes between the value and the request id's key."""
        self._middle = between + b"\xa3rid"
        self._after = b"\xa1t" + bytes((kind,)) + b"\xa1v\x02"
        #: All of it, with the last request id, and where in it that begins and ends. Empty before there was one.
        self._tail = b""
        self._rid_at = self._rid_end = 0
        #: So many are looked at together, at most.
        self._most = _GROWTH * _MANY

    def learn(self, body: bytes, rid: str) -> None:
        """Envelopes like this one, whose request id is as long, are recognized from now on."""
        tail: bytes = b"".join((self._middle, packb(rid), self._after))
        if rid.isascii() and body.endswith(tail):
            self._tail, self._rid_end = tail, len(tail) - len(self._after)
            self._rid_at = self._rid_end - len(rid)

    def cut(
        self, data: bytes, at: int, prefix: bytes, limit: int, digits: int = 0
    ) -> tuple[list[bytes] | AlikeTexts, list[bytes] | AlikeTexts, int]:
        """Envelopes from `at` on that begin with `prefix`, end like this and have up to `limit` bytes: their values,
        their request ids, and where the last one ends. Not all that there are, if some are many of one length. Of many
        whose values differ in the last `digits` bytes alone these are columns, unless `digits` is 0."""
        return self._cut_alike(data, at, prefix, limit, digits) or self._cut_each(data, at, prefix, limit)

    def _cut_alike(
        self, data: bytes, at: int, prefix: bytes, limit: int, digits: int
    ) -> tuple[list[bytes] | AlikeTexts, AlikeTexts, int] | None:
        """The same for many envelopes of one length, cut as columns and compared as a whole; None if there are few."""
        (length,) = read_length(data, at)
        stride, value, before = LENGTH_SIZE + length, LENGTH_SIZE + len(prefix), self._tail[: self._rid_at]
        head, end = data[at : at + value], stride - len(self._tail)
        if not data.startswith(head, at + (_MANY - 1) * stride) or length > limit or end - value < digits:
            return None
        rid, size = range(end + self._rid_at, end + self._rid_end), end - value
        if not (before and data.startswith(before, at + end) and data.startswith(self._after, at + rid.stop)):
            return None
        count = _count_alike(data, at, min(self._most, (len(data) - at) // stride), stride, LENGTH_SIZE - 1)
        few = min(count, _GROWTH * _MANY)
        if digits:  # where jids of two batches nearly always differ
            count = _count_alike(data, at, count, stride, end - digits - 1)
        if count < (few if digits else _MANY):
            return self._cut_alike(data, at, prefix, limit, 0) if digits else None
        frames = data[at : at + count * stride]
        rids = AlikeTexts.read(frames, rid.start, len(rid), stride, range(len(rid)))
        values: list[bytes] | AlikeTexts
        if digits:
            values = AlikeTexts.read(frames, value, size, stride, range(size - digits, size))
        else:
            values = [frames[n : n + size] for n in range(value, len(frames), stride)]
        alike = write_frames((head, values, before, rids, self._after), count)
        count = _count_same(alike, frames, stride)
        if digits and count < few:
            return self._cut_alike(data, at, prefix, limit, 0)
        self._most = _GROWTH * max(count, _MANY)
        return (values[:count], rids[:count], at + count * stride) if count >= _MANY else None

    def _cut_each(self, data: bytes, at: int, prefix: bytes, limit: int) -> tuple[list[bytes], list[bytes], int]:
        """The same for envelopes of any length, until many have had the same."""
        values: list[bytes] = []
        rids: list[bytes] = []
        tail, rid_at, rid_end = self._tail, self._rid_at, self._rid_end
        size, end = len(tail), len(data)
        rid, before = tail[rid_at:rid_end], tail[:rid_at]
        body = LENGTH_SIZE + len(prefix)
        head, stride, alike = _NONE, 0, 0
        while tail and alike < _GROWTH * _MANY:
            if not data.startswith(head, at):  # most are as long as the one before
                if not data.startswith(prefix, at + LENGTH_SIZE):
                    break
                (length,) = read_length(data, at)
                if length > limit:
                    break
                head, stride, alike = data[at : at + body], LENGTH_SIZE + length, 0
            stop = at + stride
            cut = stop - size
            if stop > end:
                break
            if data[cut:stop] != tail:
                if not (data.startswith(before, cut) and data.startswith(self._after, cut + rid_end)):
                    break
                tail = data[cut:stop]
                rid = tail[rid_at:rid_end]
            values.append(data[at + body : cut])
            rids.append(rid)
            alike += 1
            at = stop
        self._tail = tail
        return values, rids, at


def _count_alike(data: bytes, at: int, most: int, stride: int, place: int) -> int:
    """How many of the first frames, from `at` on, have the same byte in this place."""
    column = data[at + place : at + most * stride : stride]
    return len(column) - len(column.lstrip(column[:1]))


def _count_same(one: bytes | bytearray, other: bytes, stride: int) -> int:
    """How many of the first frames are the same in both."""
    low, high = 0, len(other) // stride
    if one == other:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * stride : middle * stride] == other[low * stride : middle * stride]:
            low = middle
        else:
            high = middle
    return low


class _Shape:
    """Maps without containers in them, as `encode_value` writes them, that are alike but for the text of their values.

    The meaning of a byte follows from those before it. So what has the bytes of such a map but for those within the
    strings that are values, and ASCII there, is such a map.
    """

    def __init__(self) -> None:
        self._size = 0
        #: The bytes that are not within such strings, by their places; and the places of those that are not ASCII.
        self._fixed: dict[int, bytes] = {}
        self._high: list[int] = []

    def learn(self, value: bytes) -> None:
        """Maps like this one are recognized from now on."""
        self._size, at = len(value), 1
        free: set[int] = set()
        for _ in range(value[0] & 0x0F):
            at = sum(extent(value, at))
            start, size = extent(value, at)
            if value[at] in STRINGS:
                free.update(range(start, start + size))
            at = start + size
        self._fixed = {at: value[at : at + 1] for at in range(self._size) if at not in free}
        self._high = [at for at, byte in self._fixed.items() if byte >= b"\x80"]

    def fits(self, data: bytes, count: int) -> bool:
        """Whether these are `count` such maps; False if unsure."""
        size = self._size
        if not size or len(data) != count * size or len(self._fixed) > _COLUMNS * count:
            return False
        for at, byte in self._fixed.items():
            if data[at::size] != byte * count:
                return False
        texts, blank = bytearray(data), bytes(count)
        for at in self._high:
            texts[at::size] = blank
        return texts.isascii()


class RunDecoder(OverhopReader[Received]):
    """A server's decoder: messages that go together come as one `Run`."""

    def __init__(self, max_envelope: int = MAX_ENVELOPE) -> None:
        """`max_envelope` is the largest length that is accepted, in bytes."""
        super().__init__(max_envelope)
        self._done = _Ending(DONE)
        self._enqueue, self._q = _enqueue_ending(""), ""
        #: The last ENQUEUE, with its bytes, if it was read by itself and nothing was learned from it yet.
        self._alone: tuple[OverhopEnvelope, bytes] | None = None
        self._shape = _Shape()

    def _read(self, data: bytes, start: int, stop: int, found: list[Received]) -> int:
        if data.startswith(_JID, start):
            return self._read_dones(data, start, stop, found)
        if data.startswith(_JOB, start):
            return self._read_jobs(data, start, stop, found)
        found.append(self._decode(data[start:stop]))
        return stop

    def _read_dones(self, data: bytes, start: int, stop: int, found: list[Received]) -> int:
        size = start + len(_JID)
        jids, rids, end = self._done.cut(data, start - LENGTH_SIZE, data[start : size + 1], self._limit, _DIGITS)
        if not jids:
            message = self._decode(data[start:stop])
            self._done.learn(data[start:stop], message.rid)
            found.append(message)
            return stop
        if _have_size(jids, data[size]) and _are_ascii(jids) and _are_ascii(rids):
            found.append(DoneRun(rids, jids))
        else:
            found += map(self._decode, _bodies(data, start, end))
        return end

    def _read_jobs(self, data: bytes, start: int, stop: int, found: list[Received]) -> int:
        if self._alone is not None:
            self._learn_job(*self._alone, data[start:stop])
        payloads, rids, end = self._enqueue.cut(data, start - LENGTH_SIZE, _JOB, min(_MAX_PAYLOAD, self._limit))
        if not payloads:
            message = self._decode(data[start:stop])
            self._alone = message, data[start:stop]
            found.append(message)
            return stop
        assert isinstance(payloads, list)
        if self._are_canonical(payloads) and _are_ascii(rids):
            found.append(JobRun(self._q, rids, payloads))
        else:
            self._read_each(payloads, rids, _bodies(data, start, end), found)
        return end

    def _are_canonical(self, payloads: list[bytes]) -> bool:
        """Whether these are maps without containers in them, each as `encode_value` writes it; False if unsure."""
        data, count = b"".join(payloads), len(payloads)
        alike = list(map(len, payloads)).count(len(payloads[0])) == count
        if alike and self._shape.fits(data, count):
            return True
        if not _are_canonical(payloads, data):
            return False
        if alike and count >= _WORTH_LEARNING:
            self._shape.learn(payloads[0])
        return True

    def _learn_job(self, message: OverhopEnvelope, body: bytes, next: bytes) -> None:
        """Recognize ENQUEUEs like this one, unless the next one is for another queue: a client may use thousands."""
        self._alone = None
        q = message.p.get("q")
        if type(q) is str and q.encode() in next:
            if q != self._q:
                self._enqueue, self._q = _enqueue_ending(q), q
            self._enqueue.learn(body, message.rid)

    def _read_each(
        self, values: list[bytes], rids: Sequence[bytes], bodies: Iterator[bytes], found: list[Received]
    ) -> None:
        """ENQUEUEs that are alike, one by one: runs of those whose payload needs no closer look, and the others."""
        run: JobRun | None = None
        its: list[bytes] = []
        for value, rid, body in zip(values, rids, bodies, strict=True):
            payload = self._payload(value) if rid.isascii() else None
            if payload is None:
                found.append(self._decode(body))
                run = None
            elif run is None:
                its = [rid]
                run = JobRun(self._q, its, [payload])
                found.append(run)
            else:
                its.append(rid)
                run.payloads.append(payload)

    def _payload(self, value: bytes) -> bytes | None:
        """The payload of a job as `encode_value` writes it; None if it needs a closer look, is wrong, or is nil."""
        if not is_plain(value, self._most_containers - 2):
            return None
        try:
            job = unpackb(value, object_pairs_hook=_sorted_map)
        except ValueError:
            return None
        payload: bytes = _pack(job)
        return None if job is None else payload


def _sorted_map(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    keys = sorted(found)
    return found if list(found) == keys else {key: found[key] for key in keys}


def _enqueue_ending(q: str) -> _Ending:
    return _Ending(ENQUEUE, b"\xa1q" + packb(q))


def _bodies(data: bytes, start: int, end: int) -> Iterator[bytes]:
    """The bodies of whole frames; `start` is where the first one begins, `end` where the last one ends."""
    while start <= end:
        stop = start + int.from_bytes(data[start - LENGTH_SIZE : start], "big")
        yield data[start:stop]
        start = stop + LENGTH_SIZE


def _have_size(texts: list[bytes] | AlikeTexts, size: int) -> bool:
    some = texts[:1] if isinstance(texts, AlikeTexts) else texts  # all of these have one size
    return set(map(len, some)) == {size}


def _are_ascii(texts: list[bytes] | AlikeTexts) -> bool:
    return texts.isascii() if isinstance(texts, AlikeTexts) else b"".join(texts).isascii()


def _are_canonical(values: list[bytes], data: bytes) -> bool:
    """The same, of values that may have any shape; `data` is all of them.

    Only as many bytes as there are values could begin a container, and each value begins with one. So when all values
    together are read as so many maps, each of these is one of the values, and whole. Written anew they are the same
    bytes: integers and lengths are as short as they go, and no key is there twice. What is left is the order of keys.
    """
    if count_containers(data) != len(values) or not all(values) or not _MAP_HEADS.issuperset(map(_first, values)):
        return False
    try:
        maps = unpackb(b"\xdd" + len(values).to_bytes(4, "big") + data)
    except ValueError:
        return False
    if set(map(type, maps)) != {dict} or not _pack(maps).endswith(data):
        return False
    return all(list(keys) == sorted(keys) for keys in set(map(tuple, maps)))
