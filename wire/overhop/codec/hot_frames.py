"""The frames of the hot path, put together from parts that are made once. No I/O.

Tens of thousands of these a second are written, so each is a join of bytes. `wire.overhop.codec.decoder` writes the
same frames from values; the tests hold the two against each other.
"""

from __future__ import annotations

from msgpack import packb  # type: ignore[import-untyped]

_SHORT = [bytes([0xA0 | size]) for size in range(32)]
_OK_TAIL = b"\xa1t\x65\xa1v\x02"
_NIL = b"\xc0"


def packed_text(text: str) -> bytes:
    """A string as MessagePack."""
    data = text.encode()
    return _SHORT[len(data)] + data if len(data) < 32 else packb(text)


def packed_int(value: int) -> bytes:
    """An integer as MessagePack."""
    return bytes((value,)) if 0 <= value < 128 else packb(value)


def _tail(rid: str) -> bytes:
    """Return the end of an OK with this request id."""
    return b"".join((b"\xa3rid", packed_text(rid), _OK_TAIL))


class OkWriter:
    """Writes the OKs of one connection; most clients use the same request id many times."""

    __slots__ = ("_empty", "_rid", "_tail")

    def __init__(self) -> None:
        self._set("")

    def _set(self, rid: str) -> None:
        self._rid = rid
        self._tail = _tail(rid)
        body = b"\x84\xa1p\x80" + self._tail
        self._empty = len(body).to_bytes(4, "big") + body

    def empty(self, rid: str) -> bytes:
        """OK with an empty payload."""
        if rid != self._rid:
            self._set(rid)
        return self._empty

    def around_jid(self, rid: str, beginning: bytes) -> tuple[bytes, bytes]:
        """Return an OK's bytes before and behind the last three digits of its jid."""
        whole = self.jid(rid, beginning + b"000")
        at = 4 + 8 + len(beginning)
        return whole[:at], whole[at + 3 :]

    def jid(self, rid: str, jid: bytes) -> bytes:
        """OK with a jid, packed: the answer to ENQUEUE."""
        if rid != self._rid:
            self._set(rid)
        tail = self._tail
        return (8 + len(jid) + len(tail)).to_bytes(4, "big") + b"\x84\xa1p\x81\xa3jid" + jid + tail


#: Bytes before the payload in a QUEST.
JOB_PAYLOAD = b"\xabjob_payload"
_HEAD = b"\x84\xa1p\x87\xa7attempt"


class Burst:
    """The parts of QUESTs that have the same deadline.

    Of a first attempt with the usual number of attempts the frame is: the length, `first`, the jid (packed),
    `JOB_PAYLOAD`, the payload (an encoded value), `usual`; the length is that of jid and payload and `rest`.
    """

    __slots__ = ("_due", "_tail", "first", "rest", "usual")

    def __init__(self, deadline: str | None, max_attempts: int, tail: bytes) -> None:
        self._due = b"\xa8deadline" + (_NIL if deadline is None else packed_text(deadline)) + b"\xa3jid"
        self._tail = tail
        self.first = _HEAD + b"\x01" + self._due
        self.usual = b"\xacmax_attempts" + packed_int(max_attempts) + tail
        self.rest = len(self.first) + 3 + len(JOB_PAYLOAD) + len(self.usual)

    def write(self, jid: bytes, payload: bytes, attempt: int, max_attempts: int) -> bytes:
        """The whole frame for any other attempt."""
        body = b"".join((
            _HEAD, packed_int(attempt), self._due, jid, JOB_PAYLOAD, payload, b"\xacmax_attempts",
            packed_int(max_attempts), self._tail,
        ))  # fmt: skip
        return len(body).to_bytes(4, "big") + body


class QuestWriter:
    """Writes the QUESTs of one subscription."""

    __slots__ = ("_tail",)

    def __init__(self, sid: str, q: str) -> None:
        self._tail = b"".join(
            (b"\xa1q", packed_text(q), b"\xa3sid", packed_text(sid), b"\xa3rid\xa10\xa1t\x6a\xa1v\x02")
        )

    def burst(self, deadline: str | None, max_attempts: int) -> Burst:
        """The parts of QUESTs with this deadline; None: the job is the worker's while it is connected."""
        return Burst(deadline, max_attempts, self._tail)
