"""The engine's side of the audit chains: rows are appended in the transaction that they record.

Between the lock of a chain's head and the commit no other transaction can append to the chain, so little else belongs
there: `transaction` has two round trips.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import psycopg
from psycopg import AsyncCursor, AsyncTransaction
from psycopg.errors import PipelineAborted
from psycopg.rows import TupleRow

from queues.audit.errors import AuditError, InvalidEvent
from queues.audit.events import MAX_ROWS, AuditEvent, AuditRecord, append_parameters, head_after
from queues.engine.database import Connection
from queues.engine.driver import Answer
from queues.engine.faults import Fault, fault_of, told
from queues.engine.health import Trouble
from queues.engine.statements import statement

__all__ = [
    "MAX_ROWS", "AuditError", "AuditEvent", "AuditRecord", "ChainBroken", "ChainPosition", "InvalidEvent",
    "RecordedTransaction", "append_all", "has", "seal", "transaction", "trouble",
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


def _of_chain(error: Exception, chain: str, connection: Connection) -> Exception:
    """ChainBroken, unless the connection, the server or the event caused the error: then the error itself."""
    if isinstance(error, AuditError) or fault_of(error, connection) is not Fault.BAD:
        return error
    return ChainBroken(chain, told(error))


async def has(connection: Connection, chain: str, place: ChainPosition) -> bool:
    """Whether a row was committed. Waits for other transactions that append, so it needs a transaction of its own."""
    await connection.run("audit_head", {"chain": chain})
    [(found,)] = await connection.rows("audit_has", place._asdict())
    return bool(found)


class RecordedTransaction:
    """A transaction that `transaction` has begun, as far as it appends to chains."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heads: dict[str, Answer] = {}
        self._appended: list[tuple[str, AsyncCursor[TupleRow]]] = []

    async def lock(self, chain: str) -> None:
        """Lock a chain until the transaction ends: nothing is waited for here. Several are locked in order of their
        names."""
        self._heads[chain] = await self._connection.run("audit_head", {"chain": chain})

    async def append(self, chain: str, record: AuditRecord) -> ChainPosition | None:
        """Append events to a chain that is locked; returns the place of the last row. That the chain does not take them
        may show at the end. Raises as `append_all`."""
        last = None
        try:
            if (head := await self._heads[chain].fetchone()) is None:
                raise ChainBroken(chain, "it has no head")
        except Exception as error:
            raise _of_chain(error, chain, self._connection) from error
        for part in record.parts:
            try:
                parameters = append_parameters(head, part)
            except Exception as error:
                raise _of_chain(error, chain, self._connection) from error
            # An error here may be that of an earlier statement, for another chain: `explained` tells.
            self._appended.append((chain, await self._connection.execute(statement("audit_append"), parameters)))
            head = head_after(parameters)
            last = ChainPosition(head[0], head[1] - 1, head[2])
        return last

    def explained(self, error: Exception) -> Exception:
        """ChainBroken, if the error that ended the transaction says that a chain did not take its rows."""
        while isinstance(error, PipelineAborted) and isinstance(error.__context__, Exception):
            error = error.__context__  # what came before it
        broken = next((chain for chain, cursor in self._appended if cursor.pgresult is None), None)
        return error if broken is None else _of_chain(error, broken, self._connection)


async def append_all(connection: Connection, records: Mapping[str, AuditRecord]) -> None:
    """Append to several chains in the open transaction, which holds their locks until it ends: they are locked in order
    of their names. Raises InvalidEvent; ChainBroken when a chain does not take the rows; psycopg.Error when the
    connection is lost or the server refuses."""
    recorded = RecordedTransaction(connection)
    for chain in sorted(records):
        try:
            await recorded.lock(chain)
            await recorded.append(chain, records[chain])
        except psycopg.Error as error:
            raise _of_chain(error, chain, connection) from error


@contextlib.asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[RecordedTransaction]:
    """A transaction that appends to chains, of two round trips: one for the begin, for what is sent before the first
    result is fetched, and for the locks of the chains, one for what is appended and for the commit.

    Raises as `append_all`, and what the statements within raise.
    """
    recorded = RecordedTransaction(connection)
    try:
        # Not `connection.transaction()`, which waits for the answers to its begin and to all before its commit.
        async with connection.pipeline() as pipeline, AsyncTransaction(connection):
            try:
                yield recorded
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    await pipeline.sync()  # after an error the server ignores everything until then
                raise
    except BaseException as error:
        if not connection.closed:
            with contextlib.suppress(psycopg.Error):
                await connection.rollback()
        explained = recorded.explained(error) if isinstance(error, Exception) else error
        if explained is error:
            raise
        raise explained from error


async def seal(connection: Connection) -> int:
    """Move the events of the journal into their chains, each chain in transactions of its own; returns their number.

    For a connection in autocommit mode; an empty journal costs one small query. Raises AuditError, after all other
    chains, when a chain cannot be appended to.
    """
    sealed, broken = 0, None
    for chain, _ in await connection.rows("audit_waiting"):
        moved = MAX_ROWS
        while moved == MAX_ROWS:
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
        recorded = RecordedTransaction(connection)
        await recorded.lock(chain)
        rows = sorted(await connection.rows("audit_take", {"chain": chain, "limit": MAX_ROWS}))
        if rows:
            await recorded.append(chain, AuditRecord(AuditEvent(*row[1:]) for row in rows))
    return len(rows)
