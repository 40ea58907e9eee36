"""Events and their hashes, byte for byte as every implementation of peerbus computes them.

A row's hash is BLAKE3 over the hash of the row before, as hexadecimal text, and the event as compact JSON with the
keys event, id, from, to in this order. The time of a row is not hashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from blake3 import blake3

from queues.audit.errors import InvalidEvent
from queues.canonical import count_special, is_plain, json_string
from queues.sqlfiles import text_array

#: In place of the hash before the first row: BLAKE3 of nothing.
GENESIS = blake3(b"").hexdigest()

#: Rows that one statement appends.
MOST_ROWS = 4096
#: Bytes of an id as UTF-8, so that it fits into an index.
LONGEST_ID = 2000
#: Characters of an id that certainly fit.
SHORT_ID = LONGEST_ID // 4

#: audit_block.sql's separator between an event and its hash.
_MARK = b"\x1f"
#: Double quotes in an event without special characters.
_QUOTES = 16

#: The columns of audit_head.sql: the chain's id, the next seq, the last hash, the row's place.
Head = tuple[int, int, bytes, str]


class AuditEvent(NamedTuple):
    """An event: `event` (such as send, deliver, ack) to `id`, by `sender`, for `recipient`."""

    event: str
    id: str
    sender: str
    recipient: str


def event_bytes(event: AuditEvent) -> bytes:
    """The bytes of an event that are hashed."""
    name, id, sender, recipient = map(json_string, event)
    return f'{{"event":{name},"id":{id},"from":{sender},"to":{recipient}}}'.encode()


def hash_after(hash_hex: str, event: AuditEvent) -> str:
    """The hash of a row with this event after a row with this hash, both hexadecimal."""
    return blake3(hash_hex.encode() + event_bytes(event)).hexdigest()


def alike(event: str, ids: Iterable[int], senders: Iterable[str], recipients: Iterable[str]) -> Iterator[AuditEvent]:
    """Events of one kind, one for each id."""
    # A NamedTuple's own constructor takes three times as long.
    return map(partial(tuple.__new__, AuditEvent), zip(repeat(event), map(str, ids), senders, recipients, strict=False))


def extend(hash_hex: str, events: Iterable[AuditEvent]) -> list[str]:
    """The hashes of rows with these events after a row with this hash, all hexadecimal."""
    given = list(events)
    if not is_plain("".join(map("".join, given))):
        return [hash_hex := hash_after(hash_hex, event) for event in given]
    hasher, hashes = blake3(), []
    for name, id, sender, recipient in given:
        hasher.reset()  # a new one for each would take as long as the hash
        hasher.update(f'{hash_hex}{{"event":"{name}","id":"{id}","from":"{sender}","to":"{recipient}"}}'.encode())
        hash_hex = hasher.hexdigest()
        hashes.append(hash_hex)
    return hashes


def hash_each(
    before: Iterable[str], names: Sequence[str], ids: Sequence[str], senders: Sequence[str], recipients: Sequence[str]
) -> list[str]:
    """The hash of each of many rows, given that of the row before each; as columns, because that is fastest."""
    rows = zip(before, names, ids, senders, recipients, strict=True)
    if is_plain("".join((*set(names), *ids, *set(senders), *set(recipients)))):
        return [
            blake3(
                f'{hash_hex}{{"event":"{name}","id":"{id}","from":"{sender}","to":"{recipient}"}}'.encode()
            ).hexdigest()
            for hash_hex, name, id, sender, recipient in rows
        ]
    return [hash_after(hash_hex, AuditEvent(*event)) for hash_hex, *event in rows]


def hash_block(before: str, rows: str, count: int) -> bytes | None:
    """The hashes, in one, of the `count` rows that audit_block.sql has read, each computed with the stored hash of the
    row before; `before` is that before the first, hexadecimal. None when a field has a special character.

    The database spells the events: that is right if they have no other special characters than those it has put there.
    """
    if rows.count('"') != _QUOTES * count or count_special(rows) != (_QUOTES + 1) * count:
        return None
    inputs = f"{before}{rows}".encode().split(_MARK)
    if len(inputs) != count + 1:
        return None
    del inputs[-1]  # the last row's own hash
    hasher = blake3()  # to make a new one for each takes longer than the hash
    reset, update, digest = hasher.reset, hasher.update, hasher.digest
    hashes = []
    for row in inputs:
        reset()
        update(row)
        hashes.append(digest())
    return b"".join(hashes)


def columns(events: Sequence[AuditEvent]) -> dict[str, Any]:
    """Events as the statements take them: one list a column. Raises InvalidEvent for what cannot be stored."""
    names, ids, senders, recipients = map(list, zip(*events, strict=True)) if events else ([], [], [], [])
    everything = "".join((*names, *ids, *senders, *recipients))
    if "\0" in everything:
        raise InvalidEvent("it has a NUL character")
    if not everything.isascii():
        try:
            everything.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("it is not valid Unicode text") from error
    if max(map(len, ids), default=0) > SHORT_ID and max(len(id.encode()) for id in ids) > LONGEST_ID:
        raise InvalidEvent(f"its id has more than {LONGEST_ID} bytes")
    return {"events": names, "ids": ids, "senders": senders, "recipients": recipients}


def append_parameters(head: Sequence[Any], events: Sequence[AuditEvent]) -> dict[str, Any]:
    """The parameters of audit_append.sql for at least one event and up to MOST_ROWS, after a locked head.

    `head` is the row that audit_head.sql returned in the same transaction. Raises InvalidEvent.
    """
    chain, seq, last, place = head
    parameters = columns(events)
    hashes = bytes.fromhex("".join(extend(bytes(last).hex(), events)))
    return {name: text_array(column) for name, column in parameters.items()} | {
        "chain": chain, "seq": seq, "place": str(place), "count": len(events), "hashes": hashes, "last": hashes[-32:],
    }  # fmt: skip


def parts(events: Sequence[AuditEvent]) -> Iterable[Sequence[AuditEvent]]:
    """The events in parts small enough for one statement."""
    for start in range(0, len(events), MOST_ROWS):
        yield events[start : start + MOST_ROWS]
