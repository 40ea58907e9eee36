"""A chain as JSON, enough to compute its hashes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from queues.audit.anchor import time_text
from queues.audit.chains import seal
from queues.audit.diagnosis import ChainRow
from queues.audit.errors import NoSuchChain
from queues.audit.events import GENESIS
from queues.audit.reading import BLOCK, Connection, find_chain, first_seq, read_anchors, read_rows, snapshot


def export(
    chain: str, low: int = 0, high: int | None = None, using: str = DEFAULT_DB_ALIAS
) -> Iterator[dict[str, Any]]:
    """The rows of a chain with low <= seq <= high, as dicts of what JSON has; the first also has `previous`.

    `previous` is the hash of the row before: null when that row is not there and no anchor has its hash. Raises
    NoSuchChain.
    """
    seal(using)
    with snapshot(using) as connection:
        found = find_chain(connection, chain)
        if found is None:
            raise NoSuchChain(repr(chain))
        seq = first_seq(connection, found.id, low)
        previous = {} if seq is None else {"previous": _hash_before(connection, found.id, chain, seq)}
        while seq is not None and (high is None or seq <= high):
            end = seq + BLOCK if high is None else min(seq + BLOCK, high + 1)
            for row in read_rows(connection, found.id, seq, end):
                yield _values(chain, row) | previous
                previous = {}
            seq = first_seq(connection, found.id, end)


def _hash_before(connection: Connection, chain: int, name: str, seq: int) -> str | None:
    if seq == 0:
        return GENESIS
    rows = read_rows(connection, chain, seq - 1, seq)
    if rows:
        return rows[0].hash.hex()
    return next((a.hash.hex() for a in read_anchors(connection, chain, name) if a.seq == seq - 1), None)


def _values(chain: str, row: ChainRow) -> dict[str, Any]:
    event = row.event
    return {
        "chain": chain, "seq": row.seq, "at": time_text(row.at), "event": event.event, "id": event.id,
        "from": event.sender, "to": event.recipient, "hash": row.hash.hex(),
    }  # fmt: skip
