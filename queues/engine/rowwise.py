"""Statements over all rows that are due, which go on past a row that they cannot change.

A statement takes rows by itself, many at once. When it fails for a reason of its own, its candidates are read and taken
apart with the common helper until the ones to blame are left. Each of these is set aside as a dead letter of its queue.
A row that cannot even be set aside is passed over as long as this process runs. All is counted, and logged once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from queues.database.sql_files import ALL, array
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of, is_idle, told
from queues.engine.health import Health
from queues.engine.isolation import carry_out, halves

Rows = list[tuple[Any, ...]]
#: Rows that fail without one that does not, after which the statement is to blame and no row.
MAX_FAILURES = 50
#: Rows that are passed over, at most: they go into each statement.
MAX_PASSED = 1000


class Rowwise:
    """A statement over units that another one, `candidates`, lists with their queues: it takes them as `ids` (null:
    all), without those in `skip`. `unit` is the name under which one that fails is counted."""

    def __init__(self, candidates: str, unit: str, health: Health, *, letters: bool = True) -> None:
        """`letters`: units are messages, and can be dead letters."""
        self.health = health
        #: Whether it had to be taken apart.
        self.narrowed = False
        self._candidates = candidates
        self._unit = unit
        self._letters = letters
        self._passed: dict[int, None] = {}

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters by which the statement does all that it can."""
        return ALL | {"skip": array(self._passed)}

    async def run(self, connection: Connection, run: Callable[[dict[str, Any]], Awaitable[Rows]], **more: Any) -> Rows:
        """Have `run` execute the statement with its `ids` and `skip`, for all units or a part at a time; returns the
        rows of all parts. `more` goes into the list of candidates. Raises an error that no unit is to blame for."""
        try:
            return await run(self.parameters)
        except Exception as error:
            if fault_of(error, connection) is not Fault.BAD or not is_idle(connection):
                raise
            return await self._run_apart(connection, run, more, error)

    async def _run_apart(
        self, connection: Connection, run: Callable[[dict[str, Any]], Awaitable[Rows]], more: dict[str, Any],
        error: Exception,
    ) -> Rows:  # fmt: skip
        self.narrowed = True
        units = {row[0]: row[1] for row in await self._list(connection, more)}
        found: Rows = []
        failed: dict[int, Exception] = {}
        parts = deque([list(units)] if units else [])
        done = False

        async def write(ids: list[int]) -> None:
            nonlocal done
            found.extend(await run(self.parameters | {"ids": array(ids)}))
            done = True

        def refuse(ids: list[int], why: Exception) -> None:
            failed[ids[0]] = why
            if not done and len(failed) == MAX_FAILURES:
                parts.clear()

        refused = await carry_out(parts, write, halves, refuse, connection, in_order=False)
        if refused is not None:
            raise refused
        if not done and len(failed) in (0, MAX_FAILURES):
            raise error
        for id, why in failed.items():
            await self._set_aside(connection, id, units[id], why, more.get("node"))
        return found

    async def _list(self, connection: Connection, more: dict[str, Any]) -> Rows:
        async with connection.transaction():
            await connection.execute("set local enable_seqscan = on")
            parameters = {"skip": array(self._passed)} | more
            return await connection.rows(self._candidates, parameters, prepare=False)

    async def _set_aside(self, connection: Connection, id: int, queue: int, why: Exception, node: int | None) -> None:
        self.health.isolate(self._unit, why, id=id, queue=queue)
        if self._letters:
            try:
                await set_aside(connection, id, f"{self._unit} failed: {told(why)}", node)
                return
            except Exception as error:
                if fault_of(error, connection) is not Fault.BAD or not is_idle(connection):
                    raise
        if len(self._passed) < MAX_PASSED:
            self._passed[id] = None


async def set_oldest_aside(
    connection: Connection, queue: int, low: int, pass_over: Callable[[int], None], error: Exception
) -> int | None:
    """The oldest ready message of a queue above an id cannot be claimed: it becomes a dead letter. If it has no row, or
    not even that works, `pass_over(id)` is called. Returns its id; None if there is none. Raises an error that says
    nothing of the message."""
    [(id,)] = await connection.rows("first_ready", {"queue": queue, "low": low})
    if id is None:
        return None
    try:
        done = await set_aside(connection, id, f"not claimed: {told(error)}")
    except Exception as failure:
        if fault_of(failure, connection) is not Fault.BAD or not is_idle(connection):
            raise
        done = False
    if not done:
        pass_over(id)
    return int(id)


async def set_aside(connection: Connection, id: int, error: str, node: int | None = None) -> bool:
    """Make a message that waits, or is leased to `node`, a dead letter of its queue; returns whether that was done: not
    if it has no row, or if another transaction has that locked."""
    return bool(await connection.rows("set_aside", {"ids": array([id]), "error": error, "node": node}))
