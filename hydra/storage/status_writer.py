"""Writes what operators see of a running node: its state, links and members, and its events.

No other work waits for these writes. While the database is away only the newest state and events are kept.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Final

from hydra.snapshot import LinkStatus, MemberStatus, NodeSnapshot, Occurrence, occurrences
from hydra.storage.database import Connection
from hydra.storage.node_lease import NodeLease
from hydra.storage.statements import execute
from hydra.storage.tenures import Tenures
from queues.formats.texts import storable

#: Seconds between two writes of the status; role, term, leader and IRC are written at once.
INTERVAL: Final = 1.0
#: Seconds after which an unchanged status is written again.
SIGN_OF_LIFE: Final = 10.0
#: Waiting events; then the oldest are dropped.
MAX_WAITING: Final = 500
PRUNING: Final = 60.0
#: Events of each node that are kept.
EVENTS_KEPT: Final = 1000
DAYS_KEPT: Final = 30
#: Tenures of all nodes that are kept.
TENURES_KEPT: Final = 5000
MAX_TEXT: Final = 2000
#: Seconds between a node's clock and the database's above which the shown moments are corrected.
DRIFT: Final = 0.5


class StatusWriter:
    """Collects snapshots and events, and writes them."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake` is called when there may be something to write."""
        self._wake = wake
        self.listen: tuple[str, ...] = ()
        self._status: NodeSnapshot | None = None
        self._shown: NodeSnapshot | None = None
        self._shown_listen: tuple[str, ...] = ()
        self._shown_at = -SIGN_OF_LIFE
        self._pruned_at = -PRUNING
        self._events: deque[tuple[float, Occurrence]] = deque()
        self._lost = 0
        self._tenures = Tenures()
        self._database_ahead = 0.0
        self._offset = 0.0

    # From the node.

    def publish(self, status: NodeSnapshot) -> None:
        """Show a snapshot, and note its occurrences."""
        before, self._status = self._status, status
        self.note(occurrences(before, status))
        offset = time.time() - status.now
        if abs(offset - self._offset) > DRIFT:
            self._offset = offset
        self._tenures.follow(status, time.time() + self._database_ahead, self._moment(status.lease_until))

    def note(self, events: Iterable[Occurrence]) -> None:
        """Note events of this moment."""
        now = time.time()
        for event in events:
            self._events.append((now, event))
            while len(self._events) > MAX_WAITING:
                self._events.popleft()
                self._lost += 1
        self._wake()

    def happened(self, kind: str, text: str) -> None:
        """Note an event of this moment, in the last snapshot's term."""
        self.note([Occurrence(kind, self._term, text)])

    @property
    def _term(self) -> int:
        return 0 if self._status is None else self._status.term

    def listening(self, addresses: Iterable[str]) -> None:
        """Show the node's listening addresses."""
        self.listen = tuple(addresses)
        self._wake()

    # To the database.

    async def connected(self, connection: Connection) -> None:
        """A session begins: nothing is known of what the last one has written."""
        self._shown = None
        row = await (await connection.execute("select extract(epoch from clock_timestamp())::float8")).fetchone()
        assert row is not None
        self._database_ahead = row[0] - time.time()

    def due(self, now: float) -> float:
        """In how many seconds there is something to write, 0 or less if there is now."""
        if self._events:
            return 0.0
        pruning = self._pruned_at + PRUNING - now
        if self._status is None:
            return pruning
        if self._shown is None or self._status.standing != self._shown.standing:
            return 0.0
        changed = self._status is not self._shown or self.listen != self._shown_listen
        return min(pruning, self._shown_at + (INTERVAL if changed else SIGN_OF_LIFE) - now)

    async def write(self, connection: Connection, lease: NodeLease, now: float) -> None:
        """Write the due part of the status."""
        if self._pruned_at + PRUNING <= now:
            self._pruned_at = now
            await execute(connection, "prune_events", id=lease.id, kept=EVENTS_KEPT, days=DAYS_KEPT)
            await execute(connection, "prune_tenures", kept=TENURES_KEPT, days=DAYS_KEPT)
        events, self._events = self._events, deque()
        lost, self._lost = self._lost, 0
        try:
            async with connection.transaction():
                await connection.execute("set local synchronous_commit to off")
                await self._write_events(connection, lease, [*events], lost)
                tenures = await self._write_tenures(connection, lease)
                status = await self._write_status(connection, lease)
        except BaseException:
            self._events.extendleft(reversed(events))
            self._lost += lost
            raise
        self._tenures.written(tenures)
        if status is not None:
            self._shown, self._shown_at = status, now

    async def _write_events(
        self, connection: Connection, lease: NodeLease, events: list[tuple[float, Occurrence]], lost: int
    ) -> None:
        if lost:
            events.insert(0, (events[0][0], Occurrence("events lost", self._term, f"{lost:,} more before")))
        if events:
            await execute(
                connection, "write_events",
                id=lease.id,
                at=[at + self._database_ahead for at, _ in events],
                kind=[event.kind[:32] for _, event in events],
                term=[event.term for _, event in events],
                text=[_clean(event.text) for _, event in events],
            )  # fmt: skip

    async def _write_tenures(self, connection: Connection, lease: NodeLease) -> int:
        tenures = list(self._tenures)
        if tenures:
            await execute(
                connection, "write_tenures",
                id=lease.id, kinds=[one.kind for one in tenures], terms=[one.term for one in tenures],
                began=[one.began for one in tenures], until=[one.until for one in tenures],
            )  # fmt: skip
        return len(tenures)

    async def _write_status(self, connection: Connection, lease: NodeLease) -> NodeSnapshot | None:
        status, shown = self._status, self._shown
        if status is None:
            return None
        listen = self.listen
        await execute(
            connection, "write_status",
            id=lease.id, run=lease.run, role=status.role, current_id=status.id, leader=status.leader,
            leader_name=_clean(status.leader_name), lease_until=self._moment(status.lease_until), irc=status.irc,
            listen=[*listen], faults=status.faults, lines_refused=status.lines_refused, lines_lost=status.lines_lost,
        )  # fmt: skip
        if shown is None or shown.links != status.links:
            await execute(connection, "write_links", id=lease.id, rows=self._rows(status.links))
        if shown is None or shown.members != status.members:
            await execute(connection, "write_members", id=lease.id, rows=self._rows(status.members))
        self._shown_listen = listen
        return status

    def _rows(self, rows: Iterable[LinkStatus | MemberStatus]) -> str:
        return json.dumps([self._row(asdict(row)) for row in rows])

    def _row(self, fields: dict[str, Any]) -> dict[str, Any]:
        for name, value in fields.items():
            if isinstance(value, str):
                fields[name] = _clean(value)
            elif name in ("opened", "answered"):
                fields[name] = self._moment(value)
        return fields

    def _moment(self, moment: float | None) -> float | None:
        """A moment of the node's clock as the database's time."""
        return None if moment is None else moment + self._offset + self._database_ahead


def _clean(text: str) -> str:
    """A text that PostgreSQL can hold."""
    return storable(text[:MAX_TEXT])
