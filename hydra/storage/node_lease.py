"""The lease of a node's name: one process runs the node while its session holds the advisory lock of the node's row."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID, uuid4

from hydra import clock
from hydra.errors import NodeForgotten, NodeNameTaken, UnreadableRow
from hydra.locks import LOCK_CLASS
from hydra.protocol.effects import StoredNode
from hydra.protocol.electorate import Electorate, parse_electorate
from hydra.protocol.node import new_stored
from hydra.storage.database import Connection, session_name
from hydra.storage.statements import execute, fetch

LOOK: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLease:
    """This process' hold on a node."""

    id: int
    name: str
    run: UUID
    """This process' mark in the row: without it the process writes nothing."""
    new: bool
    """Whether the row is new."""
    first: bool
    """Whether this database has never known another node or a vote: then no network has lost this node's row."""
    stored: StoredNode
    position: tuple[int, int] | None
    """Term and index of the last delivered line."""


async def take(connection: Connection, name: str, rng: Random, timeout: float) -> NodeLease:
    """Begin to run a node, with a new row if it has none; `connection` holds its lock from now on.

    Waits up to `timeout` seconds for a process that is ending. Raises NodeNameTaken or UnreadableRow.
    """
    deadline = clock.now() + timeout
    while True:
        try:
            return await _take(connection, name, new_stored(rng).voter)
        except NodeNameTaken:
            if clock.now() > deadline:
                raise
        await asyncio.sleep(LOOK)


async def _take(connection: Connection, name: str, voter: str) -> NodeLease:
    # In one transaction, so that no other process locks the new row.
    async with connection.transaction():
        # One process at a time, so that only one node of several is the first.
        await connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCK_CLASS,))
        new = await fetch(connection, "insert_node", name=name, voter=voter) is not None
        first = new and not await _knows_a_network(connection, name)
        row = await fetch(connection, "find_node", name=name)
        if row is None:  # forgotten at this moment
            raise NodeNameTaken(f"The node {name!r} is being forgotten.")
        id, host, pid = row
        if not await _try_lock(connection, id):
            raise NodeNameTaken(f"Another process runs the node {name!r}: {pid} on {host}.")
        run = uuid4()
        found = await fetch(connection, "begin_run", id=id, run=run, host=socket.gethostname(), pid=os.getpid())
        assert found is not None
        stored = _stored(name, *found[:4])
        position = None if found[4] is None else (found[4], found[5])
    return NodeLease(id=id, name=name, run=run, new=new, first=first, stored=stored, position=position)


async def take_again(connection: Connection, lease: NodeLease, lost: list[int], timeout: float) -> StoredNode:
    """Take the lease again after a lost connection; `lost` are the backends of the former connections.

    Returns the row on disk: the last write's answer may be lost. Raises NodeNameTaken if another process runs the node
    or has run it meanwhile, and NodeForgotten.
    """
    names = [session_name(lease.name, purpose) for purpose in ("keeper", "writer")]
    await execute(connection, "end_own_sessions", pids=lost, names=names)
    deadline = clock.now() + timeout
    while True:
        locked = await _try_lock(connection, lease.id)
        stored = await check(connection, lease)
        if locked:
            return stored
        if clock.now() > deadline:
            raise NodeNameTaken(f"Another session holds the node {lease.name!r}.")
        await asyncio.sleep(LOOK)


async def check(connection: Connection, lease: NodeLease) -> StoredNode:
    """Return the row on disk.

    Raises NodeForgotten without a row, NodeNameTaken if another process runs the node or has run it.
    """
    row = await fetch(connection, "run_of_node", id=lease.id)
    if row is None:
        raise NodeForgotten(f"The node {lease.name!r} was forgotten.")
    run, host, pid, *promised = row
    if run != lease.run:
        raise NodeNameTaken(f"Another process has run the node {lease.name!r} meanwhile: {pid} on {host}.")
    return _stored(lease.name, *promised)


async def _knows_a_network(connection: Connection, name: str) -> bool:
    row = await fetch(connection, "knows_a_network", name=name)
    return row is not None and bool(row[0])


async def _try_lock(connection: Connection, id: int) -> bool:
    row = await (await connection.execute("select pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, id))).fetchone()
    return row is not None and bool(row[0])


def _stored(name: str, voter: str, term: int, pledge: int | None, electorate: str) -> StoredNode:
    try:
        known: Electorate | None = parse_electorate(electorate) if electorate else None
    except ValueError as error:
        raise UnreadableRow(f"The row of the node {name!r}: {error}, not {electorate[:100]!r}.") from error
    return StoredNode(voter=voter, term=term, pledge=pledge, electorate=known)
