"""The frames of the hot path, put together from parts that are made once. No I/O.

Hundreds of thousands of these a second are written, so many are one join of bytes. `wire.overhop.codec.decoder` writes
the same frames from values; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgpack import packb  # type: ignore[import-untyped]

from wire.overhop.codec.columns import FramePart, write_frames

_SHORT = [bytes([0xA0 | size]) for size in range(32)]
_OK_TAIL = b"\xa1t\x65\xa1v\x02"
_NIL = b"\xc0"


def text_head(size: int) -> bytes:
    """The bytes before a string of this many bytes of UTF-8 in MessagePack."""
    return _SHORT[size] if size < len(_SHORT) else packb("x" * size)[:-size]


def packed_text(text: str) -> bytes:
    """A string as MessagePack."""
    data = text.encode()
    return text_head(len(data)) + data


def packed_int(value: int) -> bytes:
    """An integer as MessagePack."""
    return bytes((value,)) if 0 <= value < 128 else packb(value)


def empty_ok(rid: str) -> bytes | bytearray:
    """OK with an empty payload."""
    return empty_oks([rid.encode()])


def empty_oks(rids: Sequence[bytes]) -> bytes | bytearray:
    """OKs with empty payloads to request ids of one length, of which there is one at least."""
    return _oks(b"\x84\xa1p\x80", b"", 0, rids)


def jid_oks(rids: Sequence[bytes], head: bytes, jids: Sequence[bytes]) -> bytes | bytearray:
    """OKs with jids to as many request ids, all of one length; `head` is that of each jid in MessagePack."""
    return _oks(b"\x84\xa1p\x81\xa3jid" + head, jids, len(jids[0]), rids)


def _oks(before: bytes, values: FramePart, size: int, rids: Sequence[bytes]) -> bytes | bytearray:
    """OKs with values of `size` bytes."""
    rid, middle = rids[0], b"\xa3rid" + text_head(len(rids[0]))
    size += len(before) + len(middle) + len(rid) + len(_OK_TAIL)
    same = isinstance(rids, list) and rids.count(rid) == len(rids)
    parts = (size.to_bytes(4, "big") + before, values, middle, rid if same else rids, _OK_TAIL)
    return write_frames(parts, len(rids))


#: Bytes before the payload in a QUEST.
_JOB_PAYLOAD = b"\xabjob_payload"


class QuestWriter:
    """Writes the QUESTs of one subscription."""

    def __init__(self, sid: str, q: str) -> None:
        self._tail = b"".join(
            (b"\xa1q", packed_text(q), b"\xa3sid", packed_text(sid), b"\xa3rid\xa10\xa1t\x6a\xa1v\x02")
        )

    def write(
        self, deadline: str | None, attempt: int, max_attempts: int, head: bytes, jids: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> bytes | bytearray:  # fmt: skip
        """The frames of jobs, of which there is one at least, that have a deadline (None: the job is the worker's while
        it is connected), an attempt and their number in common. All jids have one length, and `head` in MessagePack;
        payloads are encoded values."""
        due = _NIL if deadline is None else packed_text(deadline)
        before = b"".join((b"\x84\xa1p\x87\xa7attempt", packed_int(attempt), b"\xa8deadline", due, b"\xa3jid", head))
        behind = b"".join((b"\xacmax_attempts", packed_int(max_attempts), self._tail))
        bare = len(before) + len(jids[0]) + len(_JOB_PAYLOAD) + len(behind)
        heads = {size: (bare + size).to_bytes(4, "big") + before for size in set(map(len, payloads))}
        start: FramePart = [*map(heads.__getitem__, map(len, payloads))] if len(heads) > 1 else heads.popitem()[1]
        return write_frames((start, jids, _JOB_PAYLOAD, payloads, behind), len(payloads))
