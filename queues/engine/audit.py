"""The engine's side of the audit chains: rows are appended in the transaction that they record.

A caller with a pipeline of its own puts `statement("audit_head")` at its end and gives `append` the head's row. Between
the two and the commit no other transaction can append to the chain, so little else belongs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from queues.audit.errors import AuditError, InvalidEvent
from queues.audit.events import MOST_ROWS, AuditEvent, AuditRecord, append_parameters
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of, told
from queues.engine.health import Trouble
from queues.engine.statements import statement

__all__ = [
    "MOST_ROWS", "AuditError", "AuditRecord", "ChainBroken", "ChainPosition", "InvalidEvent", "append", "append_all",
    "has", "seal", "trouble",
]  # fmt: skip


class ChainBroken(AuditError):
    """The audit chain cannot be appended to."""

    def __init__(self, chain: str, why: str) -> None:
        super().__init__(f"{chain}: {why}")
        self.chain = chain
        self.why = why


def trouble(chain: str) -> Trouble:
    """The trouble of /readyz while a chain is broken."""
    return Trouble(f"The audit chain {chain!r} cannot be appended to", "chain")


class ChainPosition(NamedTuple):
    """A row of a chain. If the row exists with this hash, its transaction was committed."""

    chain: int
    seq: int
    hash: bytes


async def append(
    connection: Connection, chain: str, record: AuditRecord, head: Any = None
) -> ChainPosition | None:
    """Append events to a chain in the open transaction, which holds the chain's lock until it ends. `head` is the row
    of audit_head.sql, if the chain was locked already.

    Returns the place of the last row. Raises InvalidEvent; ChainBroken when the chain does not take the rows;
    psycopg.Error when the connection is lost or the server refuses.
    """
    last = None
    for part in record.parts:
        if head is None:
            head = await (await connection.execute(statement("audit_head"), {"chain": chain})).fetchone()
        last, head = await _append_part(connection, chain, head, part), None
    return last


async def _append_part(connection: Connection, chain: str, head: Any, record: AuditRecord) -> ChainPosition:
    """Append up to MOST_ROWS events after a locked head. Raises as `append`."""
    try:
        parameters = append_parameters(_locked(head, chain), record)
        await connection.execute(statement("audit_append"), parameters)
    except Exception as error:
        raise _of_chain(error, chain, connection) from error
    return ChainPosition(parameters["chain"], parameters["seq"] + parameters["count"] - 1, parameters["last"])


def _locked(head: Any, chain: str) -> Any:
    """The row of audit_head.sql. Raises ChainBroken when there is none."""
    if head is None:
        raise ChainBroken(chain, "it has no head")
    return head


def _of_chain(error: Exception, chain: str, connection: Connection) -> Exception:
    """ChainBroken, unless the connection, the server or the event caused the error: then the error itself."""
    if isinstance(error, AuditError) or fault_of(error, connection) is not Fault.BAD:
        return error
    return ChainBroken(chain, told(error))


async def has(connection: Connection, chain: str, place: ChainPosition) -> bool:
    """Whether a row was committed. Waits for other transactions that append, so it needs a transaction of its own."""
    await connection.execute(statement("audit_head"), {"chain": chain})
    row = await (await connection.execute(statement("audit_has"), place._asdict())).fetchone()
    return row is not None and bool(row[0])


async def append_all(connection: Connection, records: Mapping[str, AuditRecord]) -> None:
    """Append to several chains in the open transaction, locking them in order of their names. Raises as `append`."""
    for chain in sorted(records):
        await append(connection, chain, records[chain])


async def seal(connection: Connection) -> int:
    """Move the events of the journal into their chains, each chain in transactions of its own; returns their number.

    For a connection in autocommit mode; an empty journal costs one small query. Raises AuditError, after all other
    chains, when a chain cannot be appended to.
    """
    sealed, broken = 0, None
    for chain, _ in await (await connection.execute(statement("audit_waiting"))).fetchall():
        moved = MOST_ROWS
        while moved == MOST_ROWS:
            try:
                moved = await _seal_part(connection, chain)
            except Exception as error:
                known, moved = _of_chain(error, chain, connection), 0
                if not isinstance(known, AuditError):
                    raise
                broken = known
            sealed += moved
    if broken is not None:
        raise broken
    return sealed


async def _seal_part(connection: Connection, chain: str) -> int:
    async with connection.transaction():
        # The head first: a transaction that waits for the lock then sees what the one before has left.
        head = await (await connection.execute(statement("audit_head"), {"chain": chain})).fetchone()
        head = _locked(head, chain)
        cursor = await connection.execute(statement("audit_take"), {"chain": chain, "limit": MOST_ROWS})
        rows = sorted(await cursor.fetchall())
        if rows:
            record = AuditRecord(AuditEvent(*row[1:]) for row in rows)
            await connection.execute(statement("audit_append"), append_parameters(head, record))
    return len(rows)
