"""The engine's side of the audit chains: rows are appended in the transaction of what they record.

A caller with a pipeline of its own puts `statement("audit_head")` at the end of it, and then executes
`statement("audit_append")` with `append_parameters(head row, events)`. From the one to the commit no other
transaction appends to the chain, so as little as possible belongs in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from queues.audit.errors import AuditError, HeadNotLocked
from queues.audit.events import MOST_ROWS, Event, append_parameters, parts
from queues.engine.database import Connection
from queues.engine.statements import statement

__all__ = ["MOST_ROWS", "AuditError", "Event", "Place", "append", "append_all", "append_parameters", "has", "seal"]


class Place(NamedTuple):
    """A row of a chain. If it is there with this hash, then so is everything that its transaction did."""

    chain: int
    seq: int
    hash: bytes


async def append(connection: Connection, chain: str, events: Sequence[Event]) -> Place | None:
    """Append events to a chain in the open transaction, which holds the chain's lock until it ends.

    Returns where the last of them stands. Raises InvalidEvent, HeadNotLocked when the chain has lost its head,
    psycopg.OperationalError outside a transaction.
    """
    last = None
    for part in parts(events):
        head = await (await connection.execute(statement("audit_head"), {"chain": chain})).fetchone()
        if head is None:
            raise HeadNotLocked(f"{chain} has no head")
        parameters = append_parameters(head, part)
        await connection.execute(statement("audit_append"), parameters)
        last = Place(parameters["chain"], parameters["seq"] + len(part) - 1, parameters["last"])
    return last


async def has(connection: Connection, chain: str, place: Place) -> bool:
    """Whether a row was committed. Waits for whoever appends to the chain now, so inside a transaction of its own."""
    await connection.execute(statement("audit_head"), {"chain": chain})
    row = await (await connection.execute(statement("audit_has"), place._asdict())).fetchone()
    return row is not None and bool(row[0])


async def append_all(connection: Connection, events: Mapping[str, Sequence[Event]]) -> None:
    """Append to several chains in the open transaction, locking them in order of their names. Raises as `append`."""
    for chain in sorted(events):
        await append(connection, chain, events[chain])


async def seal(connection: Connection) -> int:
    """Move what waits in the journal into its chains, each in transactions of its own; returns how many events.

    For a connection in autocommit mode; costs one small query when nothing waits. Raises AuditError when a chain cannot
    be appended to, after all others.
    """
    sealed, broken = 0, None
    for chain, _ in await (await connection.execute(statement("audit_waiting"))).fetchall():
        moved = MOST_ROWS
        while moved == MOST_ROWS:
            try:
                moved = await _seal_part(connection, chain)
            except AuditError as error:
                broken, moved = error, 0
            sealed += moved
    if broken is not None:
        raise broken
    return sealed


async def _seal_part(connection: Connection, chain: str) -> int:
    async with connection.transaction():
        # The head first: who waits for it finds afterwards what the one before has left.
        head = await (await connection.execute(statement("audit_head"), {"chain": chain})).fetchone()
        if head is None:
            raise HeadNotLocked(f"{chain} has no head")
        cursor = await connection.execute(statement("audit_take"), {"chain": chain, "limit": MOST_ROWS})
        events = [Event(*row[1:]) for row in sorted(await cursor.fetchall())]
        if events:
            await connection.execute(statement("audit_append"), append_parameters(head, events))
    return len(events)
