"""The frames of the hot path, put together from parts that are made once. No I/O.

Tens of thousands of these a second are written, so each is a join of bytes. `wire.overhop.codec.decoder` writes the
same frames from values; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

from msgpack import packb  # type: ignore[import-untyped]

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


def empty_ok(rid: str) -> bytes:
    """OK with an empty payload."""
    return empty_oks([rid.encode()])


def empty_oks(rids: Sequence[bytes]) -> bytes:
    """OKs with empty payloads to request ids of one length, of which there is one at least."""
    return _around(b"\x84\xa1p\x80", rids, [b""] * len(rids))


def jid_oks(rids: Sequence[bytes], head: bytes, jids: Sequence[bytes]) -> bytes:
    """OKs with jids to as many request ids, all of one length; `head` is that of each jid in MessagePack."""
    return _around(b"\x84\xa1p\x81\xa3jid" + head, rids, jids)


def _around(before: bytes, rids: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    rid, middle = rids[0], b"\xa3rid" + text_head(len(rids[0]))
    size = len(before) + len(values[0]) + len(middle) + len(rid) + len(_OK_TAIL)
    before = size.to_bytes(4, "big") + before
    if rids.count(rid) == len(rids):
        behind = middle + rid + _OK_TAIL
        return b"".join((before, (behind + before).join(values), behind))
    return b"".join(chain.from_iterable(zip(repeat(before), values, repeat(middle), rids, repeat(_OK_TAIL))))


#: Bytes before the payload in a QUEST.
_JOB_PAYLOAD = b"\xabjob_payload"


class QuestWriter:
    """Writes the QUESTs of one subscription."""

    __slots__ = ("_tail",)

    def __init__(self, sid: str, q: str) -> None:
        self._tail = b"".join(
            (b"\xa1q", packed_text(q), b"\xa3sid", packed_text(sid), b"\xa3rid\xa10\xa1t\x6a\xa1v\x02")
        )

    def write(
        self, deadline: str | None, attempt: int, max_attempts: int, head: bytes, jids: Sequence[bytes],
        payloads: Sequence[bytes],
    ) -> bytes:  # fmt: skip
        """The frames of jobs, of which there is one at least, that have a deadline (None: the job is the worker's while
        it is connected), an attempt and their number in common. All jids have one length, and `head` in MessagePack;
        payloads are encoded values."""
        due = _NIL if deadline is None else packed_text(deadline)
        before = b"".join((b"\x84\xa1p\x87\xa7attempt", packed_int(attempt), b"\xa8deadline", due, b"\xa3jid", head))
        behind = b"".join((b"\xacmax_attempts", packed_int(max_attempts), self._tail))
        bare = len(before) + len(jids[0]) + len(_JOB_PAYLOAD) + len(behind)
        heads = {size: (bare + size).to_bytes(4, "big") + before for size in set(map(len, payloads))}
        if len(heads) == 1:  # then what is between two jobs is always the same
            [head] = heads.values()
            alike = chain.from_iterable(zip(repeat(behind + head), jids, repeat(_JOB_PAYLOAD), payloads))
            next(alike)
            return b"".join(chain((head,), alike, (behind,)))
        parts = zip(map(heads.__getitem__, map(len, payloads)), jids, repeat(_JOB_PAYLOAD), payloads, repeat(behind))
        return b"".join(chain.from_iterable(parts))
