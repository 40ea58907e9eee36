"""Writes one part of gathered settlements: its statements, in the transaction of its lane.

What the statements have changed beside the messages is told by `PartEffects`. A part that is cut off may be written
again: deleting twice is harmless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from queues.database.sql_files import array
from queues.engine.clock import ServerClock, now
from queues.engine.database import Connection
from queues.engine.node import LocalNode
from queues.engine.settle.batches import Part, SettlementKind, each_once, settle_parameters, time_array
from queues.engine.settle.lane import Lane
from queues.engine.settle.partition import Partition, partition, segments_to_unpack
from queues.engine.settle.segments import OpenSegments, Ranges

#: The archive's outcome of a purged message.
PURGED = 2


@dataclass(slots=True)
class PartEffects:
    """A part's effects, published after its commit. `last`: no kind follows its acknowledgements."""

    last: bool = False

    #: Late acknowledgements of messages that another transaction has locked.
    busy: Part = field(default_factory=list)
    #: Queues and the lowest id that became ready there; queues that dead letters came to.
    ready: list[tuple[int, int]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    #: Queues that may exceed their maximum length now.
    overfull: list[int] = field(default_factory=list)
    #: Missing segments, and settled slots of others.
    segments: list[tuple[set[int], Ranges]] = field(default_factory=list)


class PartWriter:
    """Writes parts of this node's settlements."""

    def __init__(self, node: LocalNode, clock: ServerClock) -> None:
        self._node = node
        self._clock = clock
        #: Segments whose messages this node has; the publish writer adds to them.
        self.segments = OpenSegments()

    async def write(self, connection: Connection, lane: Lane, part: Part) -> PartEffects:
        """Write a part; returns its effects, once it is committed."""
        effects = PartEffects(last=bool(part) and part[-1].kind <= SettlementKind.ACKNOWLEDGE)
        if firsts := segments_to_unpack(part, self.segments):
            await self.unpack(connection, sorted(firsts))
        async with lane.transaction(connection, part):
            for kind, some in groupby(part, attrgetter("kind")):
                await self._write_kind(kind)(connection, lane, list(some), effects)
        for gone, ranges in effects.segments:
            self._note_settled(gone, ranges)
        return effects

    async def unpack(self, connection: Connection, firsts: Sequence[int]) -> None:
        """Unpack these segments into rows, in a transaction of its own. A part that is written again finds them
        unpacked."""
        await connection.run("unpack_segments", {"firsts": array(firsts), "waiting": True})
        self.segments.forget(firsts)

    def _write_kind(self, kind: SettlementKind) -> Callable[[Connection, Lane, Part, PartEffects], Awaitable[None]]:
        writes = {
            SettlementKind.DELIVER: self._record, SettlementKind.ACKNOWLEDGE: self._settle,
            SettlementKind.BURY: self._bury, SettlementKind.PURGE: self._purge,
        }  # fmt: skip
        return writes.get(kind, self._return)

    async def _record(self, _: Connection, lane: Lane, delivered: Part, effects: PartEffects) -> None:
        for one in delivered:
            if lane.recording:
                lane.record(one)

    async def _settle(self, connection: Connection, lane: Lane, settled: Part, effects: PartEffects) -> None:
        found = partition(settled, self.segments)
        once = found.rows
        if found.singles or found.ranges.firsts:
            once = await self._settle_segments(connection, lane, settled, found, effects)
        late = [one for one in once if one.late]
        if late:
            mine, busy = await self._lock_late(connection, late)
            once = [one.only(mine) if one.late else one for one in once]
            effects.busy.extend(some for one in late if (some := one.only(busy)).ids)
        if once := [one for one in once if one.ids]:
            parameters = settle_parameters(once, self._clock.offset, lane.recording)
            cursor = await connection.run("settle", parameters, binary=True)
            if effects.last:
                await lane.lock_chain(connection)
            if lane.recording:
                [(ids, published)] = await cursor.fetchall()
                first_ids: dict[int, int] = dict(zip(ids or (), published or (), strict=True))
                for one in once:
                    lane.record(one, first_ids)

    async def _settle_segments(
        self, connection: Connection, lane: Lane, given: Part, found: Partition, effects: PartEffects
    ) -> Part:
        """Settle the messages that are in segments; returns the settlements of the others, unless the lane has no
        transactions: then these are written here, and all in one."""
        singles, ranges, rows = found.singles, found.ranges, found.rows
        several = not lane.in_order and bool(singles) + bool(ranges.firsts) + bool(rows) > 1
        async with connection.transaction() if several else contextlib.nullcontext():
            last = effects.last and not rows
            moved, missing = await self._settle_slots(connection, lane, singles, ranges, last)
            if moved:
                rows = [*rows, *(one.only(moved) for one in singles)]
            if missing:
                rows = each_once([*rows, *self.segments.only(given, missing)])
            rows = [one for one in rows if one.ids]
            gone = missing.union(*(one.ids for one in singles))
            if lane.in_order:
                effects.segments.append((gone, ranges))
                return rows
            if not several:  # it is durable: if the rest fails, this must not be written again
                self._note_settled(gone, ranges)
            if rows:
                await connection.run("settle", settle_parameters(rows, self._clock.offset), binary=True)
        if several:
            self._note_settled(gone, ranges)
        return []

    async def _settle_slots(
        self, connection: Connection, lane: Lane, singles: Part, ranges: Ranges, last: bool
    ) -> tuple[set[int], set[int]]:
        """Settle segments of one message, and slots of others; returns those messages, and those segments, that were
        not there. `last`: if all are, nothing more is to be done."""
        offset, slot = self._clock.offset, self._node.slot
        moved, missing = set[int]().union(*(one.ids for one in singles)), set(ranges.slots)
        of_one = of_many = None
        if singles:
            parameters = settle_parameters(singles, offset) | {"slot": slot}
            of_one = await connection.run("settle_single", parameters, binary=True)
        if missing:
            parameters = self.segments.parameters(ranges, offset) | {"slot": slot}
            of_many = await connection.run("settle_segments", parameters, binary=True)
        if last:
            await lane.lock_chain(connection)
        if of_one is not None:
            moved.difference_update(id for (id,) in await of_one.fetchall())
        if of_many is not None:
            missing.difference_update(first for (first,) in await of_many.fetchall())
        if lane.recording:
            for one in singles:
                lane.record(one.part([n for n, id in enumerate(one.ids) if id not in moved]) if moved else one)
            lane.record_slots(ranges, missing)
        return moved, missing

    def _note_settled(self, gone: set[int], ranges: Ranges) -> None:
        """Note that it is durable which segments are finished or gone, and which slots are settled."""
        self.segments.forget(gone)
        self.segments.settled(ranges, now())

    async def _lock_late(self, connection: Connection, late: Part) -> tuple[set[int], set[int]]:
        """Lock messages that were acknowledged late, which other nodes may lease, claim or return at the same time,
        without waiting for a lock with rows locked. Returns the ids that the open transaction may settle, and those
        that another transaction has locked."""
        await connection.run("unpack_late", {"ids": array(id for one in late for id in one.ids)})
        parameters = {
            "ids": array(id for one in late for id in one.ids),
            "delivered": time_array([time for one in late for time in one.delivered], self._clock.offset),
        }
        rows = await connection.rows("lock_late", parameters)
        return {id for id, locked in rows if locked}, {id for id, locked in rows if not locked}

    async def _return(self, connection: Connection, lane: Lane, returned: Part, effects: PartEffects) -> None:
        for one in returned:
            parameters = one.return_parameters(self._node.id, lane.recording)
            for queue, low, dead, ids, first_ids, drops in await connection.rows("return", parameters):
                if low is not None:
                    effects.ready.append((queue, low))
                    if drops:  # while consumers had them, they could not be dropped for the maximum length
                        effects.overfull.append(queue)
                if dead:
                    effects.dead.append(queue)
                if lane.recording:
                    lane.record(one, dict(zip(ids, first_ids, strict=True)))

    async def _bury(self, connection: Connection, lane: Lane, buried: Part, effects: PartEffects) -> None:
        for one in buried:
            moved = 0
            if one.target is not None:
                parameters = one.return_parameters(self._node.id, lane.recording)
                if rows := await connection.rows("bury_elsewhere", parameters):
                    [(low, moved, name, ids, first_ids, drops)] = rows
                    effects.ready.append((one.target, low))
                    if drops:
                        effects.overfull.append(one.target)
                    if lane.recording:
                        lane.record(one, dict(zip(ids, first_ids, strict=True)), name)
            if moved < len(one.ids):  # messages that the target refuses stay in their queue
                await self._return(connection, lane, [one], effects)

    async def _purge(self, connection: Connection, _: Lane, purged: Part, effects: PartEffects) -> None:
        for one in purged:
            parameters = {"ids": array(one.ids), "node": self._node.id, "outcome": PURGED, "by": one.by}
            await connection.run("remove", parameters)
