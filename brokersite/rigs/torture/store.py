"""Reads the final store by SQL of its own: the engine is under test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from brokersite.rigs.torture import history
from queues.audit.events import GENESIS, AuditEvent, hash_after
from queues.audit.spans import parse_span
from queues.database.sql_files import statements
from queues.store.counts import QueueCounts

_sql = statements(Path(__file__).with_name("sql"))

#: By their numbers in the store.
STATES = tuple(history.StoredState)


Connection = psycopg.Connection[Any]


def read_store(connection: Connection, queues: Sequence[str]) -> history.Store:
    """Everything of these queues, as of one moment."""
    names = list(queues)
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        record, unproven = _read_record(connection, names)
        return history.Store(
            [
                history.StoredMessage(queue, history.parse_body(bytes(payload)), first_id, STATES[state])
                for queue, payload, first_id, state in connection.execute(_sql("messages"), (names,), binary=True)
            ],
            [
                history.Archived(queue, id, outcome == 0, None if body is None else history.parse_body(bytes(body)))
                for queue, id, outcome, body in connection.execute(_sql("archive"), (names,), binary=True)
            ],
            {row[0]: QueueCounts(*map(int, row[1:])) for row in connection.execute(_sql("counts"), (names,))},
            record,
            unproven,
        )


def _read_record(connection: Connection, names: list[str]) -> tuple[list[history.Recorded], list[str]]:
    """The events of messages in the queues' chains, and the queues whose chains are wrong."""
    record: list[history.Recorded] = []
    hashes: dict[str, str] = {}
    unproven: dict[str, None] = {}
    for queue, *event, hash_hex in connection.execute(_sql("record"), (names,)):
        if hash_after(hashes.get(queue, GENESIS), AuditEvent(*event)) != hash_hex:
            unproven[queue] = None
        hashes[queue] = hash_hex
        record += (history.Recorded(queue, event[0], id) for id in parse_span(event[1]) or ())
    return record, list(unproven)


def count_waiting(connection: Connection, queues: Sequence[str]) -> int:
    """Messages of these queues that are neither finished nor dead."""
    row = connection.execute(_sql("waiting"), (list(queues),)).fetchone()
    return int(row[0]) if row else 0
