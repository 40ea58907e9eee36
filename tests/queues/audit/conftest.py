"""Chains to look at, and a way to tamper with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from blake3 import blake3

from queues.audit.chains import append
from queues.audit.events import AuditEvent
from queues.audit.verify import Verification, verify
from queues.database.parameters import connection_parameters

CHAIN = "peerbus"
Rows = list[tuple[Any, ...]]


def letters(count: int, first: int = 0) -> list[AuditEvent]:
    """Events of which no two are equal."""
    return [AuditEvent(("send", "deliver", "ack")[n % 3], f"m{n}", "alice", "bob") for n in range(first, first + count)]


def reference_hashes(events: Sequence[AuditEvent], before: str | None = None) -> list[str]:
    """The hashes of plain events, computed as the specification says it."""
    hash_hex, hashes = before or blake3(b"").hexdigest(), []
    for event in events:
        record = {"event": event.event, "id": event.id, "from": event.sender, "to": event.recipient}
        text = json.dumps(record, separators=(",", ":"))
        hash_hex = blake3(hash_hex.encode("ascii") + text.encode()).hexdigest()
        hashes.append(hash_hex)
    return hashes


class Intruder:
    """A superuser of the database, and another connection to it."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.connection = connection

    def run(self, sql: str, *parameters: Any) -> Rows:
        """Run a statement with the chain's triggers off; returns its rows."""
        with self.connection.transaction():
            self.connection.execute("alter table queues_audit disable trigger user")
            cursor = self.connection.execute(sql.encode(), parameters)
            rows = cursor.fetchall() if cursor.description else []
            self.connection.execute("alter table queues_audit enable trigger user")
        return rows

    def number(self, chain: str = CHAIN) -> int:
        """A chain's id."""
        return int(self.run("select id from queues_auditchain where name = %s", chain)[0][0])

    def rows(self, chain: str = CHAIN) -> Rows:
        """A chain's rows: seq, event, id, from, to, hash as hexadecimal text."""
        return self.run(
            "select seq, event, record_id, sender, recipient, encode(hash, 'hex') from queues_audit"
            " where chain_id = %s order by seq", self.number(chain),
        )  # fmt: skip

    def rewrite(self, first: int, chain: str = CHAIN) -> None:
        """Change the row `first`, and give it and all after it hashes that follow, the head too."""
        rows = self.rows(chain)
        events = [AuditEvent(*row[1:5]) for row in rows[first:]]
        events[0] = events[0]._replace(sender="mallory")
        hashes = reference_hashes(events, rows[first - 1][5] if first else None)
        for row, event, hash_hex in zip(rows[first:], events, hashes, strict=True):
            self.run(
                "update queues_audit set sender = %s, hash = decode(%s, 'hex') where chain_id = %s and seq = %s",
                event.sender, hash_hex, self.number(chain), row[0],
            )  # fmt: skip
        self.run(
            "update queues_audithead set hash = decode(%s, 'hex') where chain_id = %s", hashes[-1], self.number(chain)
        )

    def cut(self, first: int, with_head: bool, chain: str = CHAIN) -> None:
        """Take away the rows from `first` on, and perhaps move the head back to what is left."""
        number = self.number(chain)
        self.run("delete from queues_audit where chain_id = %s and seq >= %s", number, first)
        if with_head:
            self.run(
                "update queues_audithead set next_seq = %s, hash = (select hash from queues_audit"
                " where chain_id = %s and seq = %s) where chain_id = %s", first, number, first - 1, number,
            )  # fmt: skip


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    """The directory in which this test's key and copies of anchors are kept."""
    settings.DATA_DIR = tmp_path
    settings.BROKER_AUDIT_KEY = None
    settings.BROKER_AUDIT_TRUSTED_KEYS = ()
    return tmp_path


@pytest.fixture
def intruder(transactional_db: None) -> Iterator[Intruder]:
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        yield Intruder(connection)


@pytest.fixture
def ten(transactional_db: None) -> list[AuditEvent]:
    """A chain of ten rows, appended in two batches."""
    events = letters(10)
    append(CHAIN, events[:4])
    append(CHAIN, events[4:])
    return events


#: Verifies the chain; a finding there must be is asserted by kind and seq.
Verify = Callable[[], Verification]


@pytest.fixture
def check(transactional_db: None) -> Verify:
    return lambda: verify(CHAIN)
