"""Reading a chain from the database: blocks of columns for the fast check, rows for diagnosis.

Everything is read over a connection of its own in one repeatable-read transaction, so rows appended meanwhile are
not seen, and rows, head and anchors belong together.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import class_row

from queues.audit.anchor import Anchor
from queues.audit.diagnosis import ChainRow
from queues.audit.events import AuditEvent
from queues.database.parameters import primary_parameters
from queues.store.queries import text

Connection = psycopg.Connection[tuple[Any, ...]]

#: Rows that are read at a time.
BLOCK = 10_000
#: A chain may have a partition for each day: plans are made once, and follow the index on (chain, seq) in each.
SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashagg": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "force_generic_plan",
    "timezone": "UTC",
}


class Block(NamedTuple):
    """Rows in order of seq: their numbers, their times in microseconds since 2000, their hashes in one, their events as
    `queues.audit.events.hash_block` takes them."""

    seqs: array[int]
    times: array[int]
    hashes: bytes
    events: bytes


class Head(NamedTuple):
    """The head of a chain."""

    next_seq: int
    hash: bytes


@contextmanager
def snapshot(using: str) -> Iterator[Connection]:
    """A connection that sees the database as it is now, and changes nothing."""
    with psycopg.connect(**primary_parameters(using), autocommit=True) as connection:
        for name, value in SESSION_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        connection.set_autocommit(False)
        connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        connection.set_read_only(True)
        connection.prepare_threshold = 0
        yield connection
        connection.rollback()


class Found(NamedTuple):
    """A chain in the database."""

    id: int
    created_at: datetime


def find_chain(connection: Connection, name: str) -> Found | None:
    """The chain of a name."""
    row = connection.execute("select id, created_at from queues_auditchain where name = %s", (name,)).fetchone()
    return None if row is None else Found(*row)


def read_head(connection: Connection, chain: int) -> Head | None:
    """A chain's head; None when its row is gone."""
    row = connection.execute(
        "select next_seq, hash from queues_audithead where chain_id = %s order by next_seq desc limit 1", (chain,)
    ).fetchone()
    return None if row is None else Head(*row)


def read_anchors(connection: Connection, chain: int, name: str) -> list[Anchor]:
    """A chain's anchors in order of their numbers."""
    with connection.cursor(row_factory=class_row(Anchor)) as cursor:
        cursor.execute(
            "select %s as chain, number, seq, hash, at, kind, previous, key, signature from queues_auditanchor"
            " where chain_id = %s order by number", (name, chain),
        )  # fmt: skip
        return cursor.fetchall()


def first_seq(connection: Connection, chain: int, low: int = 0) -> int | None:
    """The lowest seq from `low` on; None when there is no such row."""
    row = connection.execute(
        "select seq from queues_audit where chain_id = %s and seq >= %s order by seq limit 1", (chain, low)
    ).fetchone()
    return None if row is None else int(row[0])


def read_blocks(connection: Connection, chain: int, low: int, size: int) -> Generator[Block, None, None]:
    """The rows with low <= seq, each block those of the next `size` numbers; ends with the first one that is empty.

    The server reads a block while the caller works on the one before. Close the iterator before the connection.
    """

    def ask() -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(text("audit_block"), {"chain": chain, "low": low, "high": low + size}, binary=True)

    with connection.pipeline():
        asked = ask()
        while (row := asked.fetchone()) is not None and row[0] is not None:
            seqs, times, hashes, events = row
            low += size
            asked = ask()
            yield Block(_integers(seqs), _integers(times), hashes, events)


def _integers(values: bytes) -> array[int]:
    """Numbers of 8 bytes as the server sends them."""
    integers = array("q", values)
    if sys.byteorder == "little":
        integers.byteswap()
    return integers


def read_times(connection: Connection, chain: int, seqs: Sequence[int]) -> dict[int, datetime]:
    """When these rows were written, as they say."""
    rows = connection.execute(
        "select seq, at from queues_audit where chain_id = %s and seq = any(%s)", (chain, list(seqs))
    )
    return dict(rows.fetchall())


def read_rows(connection: Connection, chain: int, low: int, high: int) -> list[ChainRow]:
    """The rows with low <= seq < high, in order of seq."""
    rows = connection.execute(
        "select seq, event, record_id, sender, recipient, hash, at from queues_audit"
        " where chain_id = %s and seq >= %s and seq < %s order by seq, at", (chain, low, high),
    )  # fmt: skip
    return [ChainRow(seq, AuditEvent(*event), hash, at) for seq, *event, hash, at in rows]
