"""Events and their hashes, byte for byte as every implementation of peerbus computes them.

A row's hash is BLAKE3 over the hash of the row before, as hexadecimal text, and the event as compact JSON with the
keys event, id, from, to in this order. The time of a row is not hashed.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as chained
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from blake3 import blake3

from queues.audit.errors import InvalidEvent
from queues.audit.spans import span_ids
from queues.database.sql_files import text_array
from queues.formats.canonical import escape_stored, is_plain, json_string

#: In place of the hash before the first row: BLAKE3 of nothing.
GENESIS = blake3(b"").hexdigest()

#: Rows that one statement appends, and the first of several: while the server does it, the hashes of the next ones are
#: computed, and for those of the first it waits.
MAX_ROWS = 2048
FIRST_ROWS = 512
#: Bytes of an id as UTF-8, so that it fits into an index.
MAX_ID = 2000
#: Characters of an id that certainly fit.
SHORT_ID = MAX_ID // 4

#: Texts before, between and after the fields of an event, by the marks that audit_block.sql puts there.
_MARK = b"\0"
_FIRST, _LAST = b'{"event":"', b'"}'
_SPELLINGS = ((b"\xfc", b'","id":"'), (b"\xfd", b'","from":"'), (b"\xfe", b'","to":"'), (_MARK, _LAST + _MARK + _FIRST))
#: Bytes of a hash.
HASH = 32

#: The columns of audit_head.sql: the chain's id, the next seq, the last hash.
Head = tuple[int, int, bytes]


class AuditEvent(NamedTuple):
    """An event: `event` (such as send, deliver, ack) to `id`, by `sender`, for `recipient`."""

    event: str
    id: str
    sender: str
    recipient: str


#: The fields that events of a run have in common: event, sender, recipient.
Kind = tuple[str, str, str]


class AuditRecord:
    """Events in their order, each a row, in runs of those that differ in their ids only: a long run costs little a
    row."""

    __slots__ = ("runs",)

    def __init__(self, events: Iterable[AuditEvent] = ()) -> None:
        self.runs: list[tuple[Kind, list[str]]] = [
            (kind, [event.id for event in some]) for kind, some in groupby(events, itemgetter(0, 2, 3))
        ]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __len__(self) -> int:
        return sum(len(ids) for _, ids in self.runs)

    def add(self, event: str, ids: Sequence[str], sender: str, recipient: str) -> None:
        """Add an event of each of these."""
        kind = (event, sender, recipient)
        if self.runs and self.runs[-1][0] == kind:
            self.runs[-1][1].extend(ids)
        elif ids:
            self.runs.append((kind, [*ids]))

    def add_messages(self, event: str, sender: str, recipient: str, *parts: Sequence[int]) -> None:
        """Add an event of each of these messages of a queue, in parts of any size: those whose ids follow each other
        share a row."""
        if ids := span_ids(*parts):
            self.runs.append(((event, sender, recipient), ids))

    def extend(self, other: AuditRecord) -> None:
        """Add the events of another record."""
        self.runs += other.runs

    @property
    def ids(self) -> list[str]:
        """The id of each event."""
        return self.runs[0][1] if len(self.runs) == 1 else [id for _, ids in self.runs for id in ids]

    @property
    def parts(self) -> Iterator[AuditRecord]:
        """The events in parts small enough for one statement."""
        part, room = AuditRecord(), FIRST_ROWS
        for kind, ids in self.runs:
            start = 0
            while start < len(ids):
                some = ids[start : start + room]
                part.runs.append((kind, some))
                start, room = start + len(some), room - len(some)
                if not room:
                    yield part
                    part, room = AuditRecord(), MAX_ROWS
        if part:
            yield part

    def spelled(self) -> list[bytes]:
        """The bytes of each event that are hashed."""
        texts = []
        for (event, sender, recipient), ids in self.runs:
            start = f'{{"event":{json_string(event)},"id":"'
            end = f'","from":{json_string(sender)},"to":{json_string(recipient)}}}'
            if not is_plain("".join(ids)):
                ids = [json_string(id)[1:-1] for id in ids]
            texts.append(start + f"{end}\0{start}".join(ids) + end)
        return "\0".join(texts).encode().split(b"\0") if texts else []


def event_bytes(event: AuditEvent) -> bytes:
    """The bytes of an event that are hashed."""
    name, id, sender, recipient = map(json_string, event)
    return f'{{"event":{name},"id":{id},"from":{sender},"to":{recipient}}}'.encode()


def hash_after(hash_hex: str, event: AuditEvent) -> str:
    """The hash of a row with this event after a row with this hash, both hexadecimal."""
    return blake3(hash_hex.encode() + event_bytes(event)).hexdigest()


def hashes_after(hash_hex: str, record: AuditRecord) -> bytes:
    """The hashes, in one, of rows with these events after a row with this hash, which is hexadecimal."""
    hasher, before, hashes = blake3(), hash_hex.encode(), []
    reset, update, digest = hasher.reset, hasher.update, hasher.digest  # a new one for each takes as long as the hash
    for event in record.spelled():
        reset()
        update(before + event)
        found = digest()
        before = hexlify(found)
        hashes.append(found)
    return b"".join(hashes)


def hash_block(before: str, events: bytes, stored: bytes) -> bytes:
    """The hashes, in one, of the rows that audit_block.sql has read, each computed with the stored hash of the row
    before; `before` is that before the first, hexadecimal."""
    events = escape_stored(events)
    for mark, spelling in _SPELLINGS:
        events = events.replace(mark, spelling)
    befores = hexlify(bytes.fromhex(before) + stored[:-HASH], _MARK, HASH).split(_MARK)
    hasher = blake3()  # to make a new one for each takes longer than the hash
    reset, update, digest = hasher.reset, hasher.update, hasher.digest
    hashes = []
    spelled = (_FIRST + events + _LAST).split(_MARK)
    for hash_hex, event in zip(befores, spelled, strict=True):
        reset()
        update(hash_hex + event)
        hashes.append(digest())
    return b"".join(hashes)


def columns(events: Sequence[AuditEvent]) -> dict[str, Any]:
    """Events as the statements take them: one list a column. Raises InvalidEvent for what cannot be stored."""
    names, ids, senders, recipients = map(list, zip(*events, strict=True)) if events else ([], [], [], [])
    check_storable(ids, (*names, *senders, *recipients))
    return {"events": names, "ids": ids, "senders": senders, "recipients": recipients}


def check_storable(ids: Sequence[str], others: Iterable[str]) -> None:
    """Raise InvalidEvent for ids, or other values of events, that cannot be stored."""
    everything = "".join((*ids, *others))
    if "\0" in everything:
        raise InvalidEvent("it has a NUL character")
    if not everything.isascii():
        try:
            everything.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("it is not valid Unicode text") from error
    if max(map(len, ids), default=0) > SHORT_ID and max(len(id.encode()) for id in ids) > MAX_ID:
        raise InvalidEvent(f"its id has more than {MAX_ID} bytes")


def append_parameters(head: Sequence[Any], record: AuditRecord) -> dict[str, Any]:
    """The parameters of audit_append.sql for at least one event and up to MAX_ROWS, after a locked head.

    `head` is the row that audit_head.sql returned in the same transaction, or `head_after` what was appended since.
    Raises InvalidEvent.
    """
    chain, seq, last = head
    ids = record.ids
    kinds = {kind: f"{n}," for n, kind in enumerate(dict.fromkeys(kind for kind, _ in record.runs), 1)}
    numbers = "".join(kinds[kind] * len(some) for kind, some in record.runs)
    check_storable(ids, chained.from_iterable(kinds))
    names, senders, recipients = map(text_array, zip(*kinds, strict=True))
    hashes = hashes_after(bytes(last).hex(), record)
    return {
        "ids": text_array(ids), "kinds": f"{{{numbers[:-1]}}}", "events": names, "senders": senders,
        "recipients": recipients, "chain": chain, "seq": seq, "count": len(ids),
        "hashes": hashes, "last": hashes[-HASH:],
    }  # fmt: skip


def head_after(appended: Mapping[str, Any]) -> Head:
    """The head of a chain after a statement with these parameters."""
    return appended["chain"], appended["seq"] + appended["count"], appended["last"]
