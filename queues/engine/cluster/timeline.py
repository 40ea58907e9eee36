"""Checks that the store still has the history that this process knows.

After a failover to an asynchronous standby, or when a backup was restored, the store lacks the last confirmed messages,
and gives their ids to other messages. An acknowledgement of a delivery made before would then settle a message that no
consumer has seen. So each engine reads, whenever it connects and once a minute, the marks of one past:
the system's identifier, the timeline, the ids of database and table must be the same, the last message id and the
position in the log must not have gone back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from queues.engine.clock import ServerClock, now
from queues.engine.confirmed import Confirmations
from queues.engine.database import Connection
from queues.engine.message import ROWS_PER_STATEMENT, Counts
from queues.engine.node import LocalNode

logger = logging.getLogger(__name__)

#: Seconds between checks of the store's history and clock.
KNOWN = 60.0
ANOTHER_PAST = "the database has another past than this process knew, and earlier deliveries are not settled any more"
#: Steps of a sequence that one statement takes.
MAX_STEPS = 1_000_000


class Reading(NamedTuple):
    """One reading of the store. None: the role may not see it. `clock` converts a monotonic time to the server's."""

    system: int | None
    timeline: str | None
    database: int
    table: int
    last_id: int
    log_position: int | None
    clock: float


async def read(connection: Connection) -> Reading:
    """Read the store's marks."""
    system = None
    [(shown,)] = await connection.fetch("select has_function_privilege('pg_control_system()', 'execute')")
    if shown:
        [(system,)] = await connection.fetch("select system_identifier from pg_control_system()")
    before = now()
    [(timeline, database, table, last_id, log_position, time)] = await connection.rows("history")
    return Reading(system, timeline, database, table, last_id, log_position, time - before)


def broken_by(known: Reading, last_id: int, reading: Reading) -> str | None:
    """Evidence that the store's history differs from the known one, whose messages had ids up to `last_id`. None: no
    evidence."""
    for name, before, after in (
        ("system identifier", known.system, reading.system),
        ("timeline", known.timeline, reading.timeline),
        ("database", known.database, reading.database),
        ("table of messages", known.table, reading.table),
    ):
        if before is not None and after is not None and before != after:
            return f"another {name}: {before} before, {after} now"
    if reading.last_id + ROWS_PER_STATEMENT <= last_id:
        return f"message ids went back from {last_id} to {reading.last_id}"
    if reading.log_position is not None and reading.log_position < (known.log_position or 0):
        return f"the log went back from {known.log_position} to {reading.log_position}"
    return None


def _lost(lost_from: float | None) -> str:
    """In words: what this process confirmed and the store lacks."""
    if lost_from is None:
        return "it has all that this process had confirmed"
    first = f"{datetime.fromtimestamp(lost_from, UTC):%Y-%m-%d %H:%M:%S.%f} UTC" if lost_from else "the first one"
    return f"what this process confirmed may be lost from {first} on"


async def _advance(connection: Connection, sequence: str, steps: int) -> None:
    for done in range(0, steps, MAX_STEPS):
        await connection.run("move_ids", {"sequence": sequence, "steps": min(MAX_STEPS, steps - done)})


@dataclass(eq=False, repr=False)
class Timeline:
    """The store's history and clock, read at each connect and once a minute. `forget(connection)` is
    called when the history differs."""

    _name: str
    _counts: Counts
    _node: LocalNode
    _clock: ServerClock
    _forget: Callable[[Connection], Awaitable[None]]
    _confirmed: Sequence[Confirmations] = ()
    #: The known history, and the last seen message id without its priority.
    _known: Reading | None = None
    _seen: int = 0
    #: The first evidence, kept until the new history is known, because later work hides it and may be cut off.
    _broken_by: str | None = None
    #: Time and reason of the last loss of confirmed messages, for operators.
    rewritten: str = ""

    async def check(self, connection: Connection) -> None:
        """Compare the store with the known history. If it differs, all that is remembered of messages is dropped."""
        self._seen = max(self._seen, self._node.last_id)
        reading = await self._read(connection)
        if self._known is not None and self._broken_by is None:
            self._broken_by = broken_by(self._known, self._seen, reading)
        if (reason := self._broken_by) is not None:
            lost = [await one.lost_from(connection, reading.clock) for one in self._confirmed]
            lost_from = min((time for time in lost if time is not None), default=None)
            await self._move_on(connection, reading)
            await self._forget(connection)
            said = f"{reason}; {_lost(lost_from)}"
            await connection.run("note_history", {"node": self._name, "reason": said})
            self._counts.rewritten += 1
            for one in self._confirmed:
                one.forget()
            if lost_from is not None:
                self.rewritten = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {said}"
            logger.log(logging.WARNING if lost_from is None else logging.ERROR, "%s: %s", ANOTHER_PAST, said)
        self._know(reading)

    async def run(self, connection: Connection) -> None:
        """Go on reading, for ever."""
        while True:
            await asyncio.sleep(KNOWN)
            self._know(await self._read(connection))

    async def _read(self, connection: Connection) -> Reading:
        reading = await read(connection)
        self._clock.set(reading.clock)
        return reading

    def _know(self, reading: Reading) -> None:
        """Take this as the known history."""
        self._known, self._broken_by = reading, None
        self._seen = max(self._seen, reading.last_id)

    async def _move_on(self, connection: Connection, reading: Reading) -> None:
        """Advance the sequences, so that no message or node id that this process has seen is used again."""
        missing = max(0, self._seen + ROWS_PER_STATEMENT - reading.last_id)
        await _advance(connection, "queues_message_id", -(-missing // ROWS_PER_STATEMENT))
        [(last,)] = await connection.fetch("select coalesce(pg_sequence_last_value('queues_node_id_seq'), 0)")
        await _advance(connection, "queues_node_id_seq", max(0, self._node.id - last))
