"""Reads the final store by SQL of its own: the engine is under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from brokersite.rigs.torture.history import (
    Archived,
    Recorded,
    Store,
    StoredCounts,
    StoredMessage,
    StoredState,
    parse_body,
)
from queues.audit.events import GENESIS, AuditEvent, hash_after
from queues.audit.spans import parse_span

STATES = (StoredState.READY, StoredState.LEASED, StoredState.DELAYED, StoredState.DEAD, StoredState.DEAD_LEASED)

MESSAGES = """
    select q.name, m.payload, coalesce(m.origin_id, m.id), m.state
    from queues_openmessage m join queues_queue q on q.id = m.queue_id where q.name = any(%s)
"""
ARCHIVE = """
    select q.name, a.id, a.outcome, a.payload
    from queues_archive a join queues_queue q on q.id = a.queue_id where q.name = any(%s)
"""
COUNTS = """
    select q.name, c.ready + coalesce(t.ready, 0), c.leased + coalesce(t.leased, 0),
        c.delayed + coalesce(t.delayed, 0), c.dead + coalesce(t.dead, 0),
        c.published + coalesce(t.published, 0), c.settled + coalesce(t.settled, 0)
    from queues_queue q join queues_queuecount c on c.queue_id = q.id, lateral (
        select sum(ready) as ready, sum(leased) as leased, sum(delayed) as delayed, sum(dead) as dead,
            sum(published) as published, sum(settled) as settled
        from queues_queuetally where queue_id = q.id) as t
    where q.name = any(%s)
"""
RECORD = """
    select q.name, event, record_id, sender, recipient, encode(hash, 'hex')
    from queues_audit a join queues_auditchain c on c.id = chain_id join queues_queue q on 'queue:' || q.name = c.name
    where q.name = any(%s) order by q.name, seq
"""
WAITING = """
    select count(*) from queues_openmessage m join queues_queue q on q.id = m.queue_id
    where q.name = any(%s) and m.state in (0, 1, 2)
"""

Connection = psycopg.Connection[Any]


def read_store(connection: Connection, queues: Sequence[str]) -> Store:
    """Everything of these queues, as of one moment."""
    names = list(queues)
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        record, unproven = _read_record(connection, names)
        return Store(
            [
                StoredMessage(queue, parse_body(bytes(payload)), first_id, STATES[state])
                for queue, payload, first_id, state in connection.execute(MESSAGES, (names,), binary=True)
            ],
            [
                Archived(queue, id, outcome == 0, None if payload is None else parse_body(bytes(payload)))
                for queue, id, outcome, payload in connection.execute(ARCHIVE, (names,), binary=True)
            ],
            {row[0]: StoredCounts(*map(int, row[1:])) for row in connection.execute(COUNTS, (names,))},
            record,
            unproven,
        )


def _read_record(connection: Connection, names: list[str]) -> tuple[list[Recorded], list[str]]:
    """The events of messages in the queues' chains, and the queues whose chains are wrong."""
    record: list[Recorded] = []
    hashes: dict[str, str] = {}
    unproven: dict[str, None] = {}
    for queue, *event, hash_hex in connection.execute(RECORD, (names,)):
        if hash_after(hashes.get(queue, GENESIS), AuditEvent(*event)) != hash_hex:
            unproven[queue] = None
        hashes[queue] = hash_hex
        record += (Recorded(queue, event[0], id) for id in parse_span(event[1]) or ())
    return record, list(unproven)


def count_waiting(connection: Connection, queues: Sequence[str]) -> int:
    """Messages of these queues that are neither finished nor dead."""
    row = connection.execute(WAITING, (list(queues),)).fetchone()
    return int(row[0]) if row else 0
