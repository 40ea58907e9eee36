"""Who runs a node: one process at a time, as long as its session holds the advisory lock of the node's row."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID, uuid4

from hydra import clock
from hydra.database import LOCK_CLASS, Connection, session_name
from hydra.errors import NodeForgotten, NodeNameTaken, UnreadableRow
from hydra.protocol.effects import Stored
from hydra.protocol.electorate import Electorate, parse_electorate
from hydra.protocol.node import new_stored
from hydra.statements import statement

LOOK: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A node that this process runs."""

    id: int
    name: str
    run: UUID
    """This process's, in the row: it writes nothing once another has taken its place."""
    new: bool
    """Whether the row was made just now."""
    first: bool
    """Whether this database has never known another node or a vote: then no network can have lost this one's row."""
    stored: Stored
    position: tuple[int, int] | None
    """The term and index of the last line that was delivered."""


async def take(connection: Connection, name: str, rng: Random, patience: float) -> Holding:
    """Begin to run a node, with a row made and committed if it has none; `connection` holds its lock from now on.

    Waits up to `patience` seconds for a process that is just ending. Raises NodeNameTaken or UnreadableRow.
    """
    deadline = clock.now() + patience
    while True:
        try:
            return await _take(connection, name, new_stored(rng).voter)
        except NodeNameTaken:
            if clock.now() > deadline:
                raise
        await asyncio.sleep(LOOK)


async def _take(connection: Connection, name: str, voter: str) -> Holding:
    # In one transaction, so that nobody else can lock a row that was made just now.
    async with connection.transaction():
        # One after the other, so that of nodes that begin at once one alone is the first.
        await connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCK_CLASS,))
        cursor = await connection.execute(statement("insert_node").encode(), {"name": name, "voter": voter})
        new = await cursor.fetchone() is not None
        first = new and not await _knows_a_network(connection, name)
        row = await (await connection.execute(statement("find_node").encode(), {"name": name})).fetchone()
        if row is None:  # forgotten at this very moment
            raise NodeNameTaken(f"The node {name!r} is being forgotten.")
        id, host, pid = row
        if not await _try_lock(connection, id):
            raise NodeNameTaken(f"Another process runs the node {name!r}: {pid} on {host}.")
        run = uuid4()
        cursor = await connection.execute(
            statement("begin_run").encode(), {"id": id, "run": run, "host": socket.gethostname(), "pid": os.getpid()}
        )
        found = await cursor.fetchone()
        assert found is not None
        stored = _stored(name, *found[:4])
        position = None if found[4] is None else (found[4], found[5])
    return Holding(id=id, name=name, run=run, new=new, first=first, stored=stored, position=position)


async def take_again(connection: Connection, holding: Holding, lost: list[int], patience: float) -> Stored:
    """Go on to run a node after its connection was lost; `lost` are the backends of the former connections.

    Returns what is on disk: the answer to the last write may have been lost. Raises NodeNameTaken if another process
    runs it or has run it meanwhile, and NodeForgotten.
    """
    names = [session_name(holding.name, purpose) for purpose in ("keeper", "writer")]
    await connection.execute(statement("end_own_sessions").encode(), {"pids": lost, "names": names})
    deadline = clock.now() + patience
    while True:
        locked = await _try_lock(connection, holding.id)
        stored = await check(connection, holding)
        if locked:
            return stored
        if clock.now() > deadline:
            raise NodeNameTaken(f"Another session holds the node {holding.name!r}.")
        await asyncio.sleep(LOOK)


async def check(connection: Connection, holding: Holding) -> Stored:
    """Return what is on disk.

    Raises NodeForgotten if the node has no row any more, NodeNameTaken if another process runs it or has run it.
    """
    row = await (await connection.execute(statement("run_of_node").encode(), {"id": holding.id})).fetchone()
    if row is None:
        raise NodeForgotten(f"The node {holding.name!r} was forgotten.")
    run, host, pid, *promised = row
    if run != holding.run:
        raise NodeNameTaken(f"Another process has run the node {holding.name!r} meanwhile: {pid} on {host}.")
    return _stored(holding.name, *promised)


async def _knows_a_network(connection: Connection, name: str) -> bool:
    row = await (await connection.execute(statement("knows_a_network").encode(), {"name": name})).fetchone()
    return row is not None and bool(row[0])


async def _try_lock(connection: Connection, id: int) -> bool:
    row = await (await connection.execute("select pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, id))).fetchone()
    return row is not None and bool(row[0])


def _stored(name: str, voter: str, term: int, pledge: int | None, electorate: str) -> Stored:
    try:
        known: Electorate | None = parse_electorate(electorate) if electorate else None
    except ValueError as error:
        raise UnreadableRow(f"The row of the node {name!r}: {error}, not {electorate[:100]!r}.") from error
    return Stored(voter=voter, term=term, pledge=pledge, electorate=known)
