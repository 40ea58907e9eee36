"""Periodic work: release delayed messages, expire messages, fold counts, keep the archive's partitions.

Any node may do any of it at any time, because the statements lock what they change and skip what others have locked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from psycopg.errors import LockNotAvailable

from queues.database.sql_files import array
from queues.engine import audit
from queues.engine.clock import now, until_tick, wait_for
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of
from queues.engine.health import Health, Trouble
from queues.engine.max_length import MaxLength
from queues.engine.message import ROWS_PER_STATEMENT, Counts
from queues.engine.node import SLOTS, LocalNode
from queues.engine.options import EngineOptions
from queues.engine.rowwise import Rows, Rowwise

logger = logging.getLogger(__name__)

#: Seconds between runs of each task. Messages that this node delayed are released when they become due.
DUE = 0.25
SWEEP = 1.0
#: Seconds between full searches for due and expired messages. A longer transaction may commit some late.
ALL_DUE = 5.0
ALL_EXPIRED = 30.0
EVER = "-infinity"
SEAL = 0.5
#: Idle subscriptions named in a log line.
MAX_NAMED = 10
#: The trouble in /readyz while the journal waits for a broken chain.
SEALING = Trouble("The audit journal is not sealed", "journal")
#: Seconds between two samples of the queues, and seconds over which the nodes' turns are spread.
SAMPLES, SPREAD = 60.0, 1.0
PARTITIONS = 3600.0
PARTITIONS_AGAIN = 60.0
#: Ids of letters, and lines of workers, forgotten in one transaction.
FORGOTTEN = 10_000
#: Least number of passes over a partition in its turn, and segments and messages that a pass unpacks. Most messages are
#: settled meanwhile; otherwise the next turn empties the partition.
LOOKS, UNPACKED, UNPACKED_MESSAGES = 5, 5000, 20_000
#: Bytes of a partition that shorten the turns, and the seconds of a shortened turn. Turns stay short until no partition
#: has an eighth of the bytes.
LARGE, SHORT_TURN = 64 << 20, 1.0
#: The search for new tallies skips those older than this many folds. The full search finds late ones of long
#: transactions.
FOLDS_BEHIND = 30


async def in_thread(work: Callable[[], None], failed: str, patience: float | None = None) -> None:
    """Run a function in a thread. A failure is logged and passed to `failed`; the next turn does the rest."""
    try:
        async with asyncio.timeout(patience):
            await asyncio.to_thread(work)
    except Exception as error:
        logger.error("%s: %s", failed, str(error).strip() or type(error).__name__)


class Maintenance:
    """Each method runs for ever on a connection and raises when that is lost. `turn` guards the connection that several
    jobs share."""

    def __init__(
        self, options: EngineOptions, node: LocalNode, counts: Counts, health: Health, turn: asyncio.Lock,
        max_length: MaxLength, ready_everywhere: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.options = options
        self.node = node
        self.counts = counts
        self.health = health
        self.max_length = max_length
        self.ready_everywhere = ready_everywhere
        self._turn = turn
        #: Time of the next look at delayed messages, and the event that it became sooner.
        self._next_look = 0.0
        self._sooner = asyncio.Event()
        self._due = Rowwise("due_ids", "delayed message", health)
        self._expired = Rowwise("expired_ids", "message that outlived its time", health)
        self._tallies = Rowwise("tallied_queues", "count of a queue", health, letters=False)
        #: Whether turns are shortened.
        self._hastened = False
        #: Partitions that could not be emptied. Their tallies are folded like others.
        self._stuck: set[int] = set()
        self._open = Rowwise("slot_segments", "segment whose turn is over", health, letters=False)
        self._idle = Rowwise("idle_subscription_ids", "removal of an idle subscription", health, letters=False)

    async def promote_due(self, connection: Connection) -> None:
        """Make delayed messages ready when their time has come; between two looks, seal the audit journal."""
        sealed, looked, since = -SEAL, 0.0, EVER
        while True:
            if now() - sealed >= SEAL:
                await self._seal(connection)
                sealed = now()
            self._next_look = math.inf
            [(left, mark)] = await connection.rows("next_due", {"since": since, "skip": self._due.parameters["skip"]})
            rows = await self._promote(connection, since) if left is not None and left <= 0 else []
            if not rows:
                looked, since = _next_look(looked, mark, ALL_DUE)
                await self._until_due(min(until_tick(DUE), max(0.002, left if left is not None else DUE)))

    def due_in(self, delay: float) -> None:
        """Take note of a stored message that becomes due after `delay` seconds."""
        if (at := now() + delay) < self._next_look:
            self._next_look = at
            self._sooner.set()

    async def _until_due(self, seconds: float) -> None:
        """Wait up to `seconds`, or until a message stored meanwhile is due."""
        self._next_look = min(self._next_look, now() + seconds)
        while (left := self._next_look - now()) > 0:
            self._sooner.clear()
            await wait_for(self._sooner, left)

    async def _promote(self, connection: Connection, since: str) -> Rows:
        """Make due messages ready, unless another node is doing it."""
        rows = await self._all_but(connection, self._due, "promote_due", limit=ROWS_PER_STATEMENT, since=since)
        for queue, low, drops in rows:
            self.ready_everywhere(queue, low)
            if drops:  # delayed messages could not be dropped for the queue's maximum length
                await self.max_length.keep(connection, queue)
        return rows

    async def _seal(self, connection: Connection) -> None:
        try:
            await audit.seal(connection)
        except audit.AuditError as error:
            self.health.begin(SEALING, str(error).rstrip("."))
        else:
            self.health.end(SEALING)

    async def keep_audit(self, _: Connection) -> None:
        """Maintain the audit chains in a thread: anchors, partitions, retention."""
        look_after = self.options.look_after_audit
        while look_after is not None:
            await asyncio.sleep(self.options.audit_interval)
            await in_thread(look_after, "maintenance of the audit chains failed")

    async def keep_samples(self, _: Connection) -> None:
        """Sample the queues' history at the beginning of each minute, in a thread."""
        take_sample = self.options.take_sample
        while take_sample is not None:
            await asyncio.sleep(SAMPLES - time.time() % SAMPLES + random.uniform(0, SPREAD))
            await in_thread(take_sample, "no sample of the queues was taken")  # the next sample covers this minute, too

    async def sweep(self, connection: Connection) -> None:
        """Every second: remove expired messages, fold tallies."""
        folded, looked, since = [0], 0.0, EVER
        while True:
            gone = ROWS_PER_STATEMENT
            while gone == ROWS_PER_STATEMENT:
                async with self._turn:
                    rows = await self._all_but(
                        connection, self._expired, "expire", limit=ROWS_PER_STATEMENT, since=since
                    )
                gone, mark = sum(row[0] for row in rows), rows[-1][1] if rows else since
                self.counts.expired += gone
            low = 0 if since == EVER else folded[0]
            looked, since = _next_look(looked, mark, ALL_EXPIRED)
            async with self._turn:
                slots = array([0, *self._stuck])
                rows = await self._all_but(connection, self._tallies, "fold_tallies", low=low, slots=slots)
            if last := max((row[0] or 0 for row in rows), default=0):
                folded.append(last)
                del folded[:-FOLDS_BEHIND]
            await asyncio.sleep(until_tick(SWEEP))

    async def rotate(self, connection: Connection) -> None:
        """Empty each partition's tables when its turn is over. `sweep` folds tallies that cannot be truncated."""
        last, full = 0, list[Callable[[Connection, int], Awaitable[bool]]]()
        while True:
            await asyncio.sleep(until_tick(min(SWEEP, self.node.turn / LOOKS)))
            slot = self.node.slot_to_empty
            if slot != last:
                if self._rotate_tallies in full:
                    self._stuck.add(last)
                last, full = slot, [self._rotate_segments, self._rotate_tallies]
            full = [rotate for rotate in full if not await rotate(connection, slot)]
            await self._pace_turns(connection)

    async def _pace_turns(self, connection: Connection) -> None:
        """Shorten turns while partitions are large. Tables that stay in the server's memory cost fewer writes."""
        async with self._turn:
            [(size,)] = await connection.rows("slot_bytes", {"slots": SLOTS})
        if size > LARGE and not self._hastened:
            self.node.take_turns(min(self.options.turn, SHORT_TURN))
            self._hastened = True
        elif size < LARGE / 8 and self._hastened:
            self.node.take_turns(self.options.turn)
            self._hastened = False

    async def _rotate_segments(self, connection: Connection, slot: int) -> bool:
        """Unpack a partition's open messages into rows. Without open messages, truncate its segments; returns whether
        it did."""

        async def unpack(which: dict[str, Any]) -> Rows:
            some = {"slot": slot, "limit": UNPACKED, "messages": UNPACKED_MESSAGES}
            return await _scan(connection, "unpack_slot", some | which)

        async with self._turn:
            rows = await self._open.run(connection, unpack, slot=slot)
        if sum(row[0] for row in rows):  # an older statement may still read them in the old place
            return False
        async with self._turn:
            [(emptied,)] = await _at_once(connection, "rotate_segments", slot=slot)
        return bool(emptied)

    async def _rotate_tallies(self, connection: Connection, slot: int) -> bool:
        """Fold and truncate a partition's tallies; returns whether it did."""
        try:
            async with self._turn:
                [(emptied,)] = await _at_once(connection, "rotate_tallies", slot=slot)
        except Exception as error:
            if fault_of(error, connection) is not Fault.BAD:
                raise
            emptied = False  # `sweep` folds them queue by queue and isolates the faulty one
            self._stuck.add(slot)
        if emptied:
            self._stuck.discard(slot)
        return bool(emptied)

    @staticmethod
    async def _all_but(connection: Connection, units: Rowwise, name: str, **parameters: Any) -> Rows:
        """Run a named statement over all units except failing ones."""

        async def run(which: dict[str, Any]) -> Rows:
            return await connection.rows(name, parameters | which)

        return await units.run(connection, run, **parameters)

    async def keep_partitions(self, connection: Connection) -> None:
        """Create the archive's partitions ahead, and drop old partitions and idle subscriptions."""
        while True:
            pause = PARTITIONS
            try:
                await self._apart(connection, "make_partitions")
                if days := self.options.archive_days:
                    await self._apart(connection, "drop_partitions", days=days)
            except LockNotAvailable:  # the archive is being read, and acknowledgements must not wait for that
                pause = PARTITIONS_AGAIN
            if days := self.options.archive_days:
                await self._apart(connection, "drop_old_log_lines", FORGOTTEN, days=days)
            if days := self.options.idle_subscription_days:
                await self._end_idle(connection, days)
            await self._forget_letters(connection)
            await asyncio.sleep(pause)

    async def _end_idle(self, connection: Connection, days: int) -> None:
        """Announce the end of idle subscriptions, and delete those whose time has come."""
        notice = notice_days(days, self.options.idle_subscription_notice)
        rows = await self._apart(connection, "warn_idle_subscriptions", days=days, notice=notice)
        if rows and notice:
            logger.warning("%s", told_idle(days, rows))
        if rows is not None:
            await self._apart(connection, "drop_idle_subscriptions", 1, self._idle, self._note_idle, days=days)

    def _note_idle(self, rows: Rows) -> None:
        self.counts.forgotten += sum(row[1] for row in rows)

    async def _forget_letters(self, connection: Connection) -> None:
        """Delete ids of letters older than the dedupe window."""
        await self._apart(connection, "forget_letters", FORGOTTEN, window=self.options.dedupe_window)

    async def _apart(
        self, connection: Connection, name: str, limit: int = 0, units: Rowwise | None = None,
        note: Callable[[Rows], object] = len, **parameters: Any,
    ) -> Rows | None:  # fmt: skip
        """Run a named statement; a failure stops no other. With a `limit` it removes that many rows at a time, without
        failing `units`, and lets others run in between; `note` is called with the rows of each. Returns the last rows;
        None after a failure."""
        parameters |= {"limit": limit} if limit else {}
        gone, rows = limit, Rows()
        try:
            while gone >= limit:
                async with self._turn:
                    if units is None:
                        rows = await _scan(connection, name, parameters)
                    else:
                        rows = await units.run(
                            connection, lambda which: _scan(connection, name, parameters | which), **parameters
                        )
                note(rows)
                if not limit:
                    break
                gone = sum(row[0] for row in rows)
        except Exception as error:
            if fault_of(error, connection) is not Fault.BAD:
                raise
            self.health.isolate("upkeep", error, statement=name)
            return None
        return rows


def notice_days(days: int, notice: int) -> float:
    """Days between announcement and end of an idle subscription: at most half of its idle limit."""
    return min(notice, days / 2)


def told_idle(days: int, rows: Rows) -> str:
    """A sentence about subscriptions that will end: ids, topics and times."""
    named = ", ".join(f"{id} of {bytes(topic).decode('utf-8', 'replace')!r}" for id, topic, _ in rows[:MAX_NAMED])
    more = f" and {len(rows) - MAX_NAMED:,} more" if len(rows) > MAX_NAMED else ""
    first = min(ends_at for _, _, ends_at in rows)
    return (
        f"subscriptions that nobody polls end with their messages after {days} days, the first of these at "
        f"{first:%Y-%m-%d %H:%M} UTC, unless they are polled before: {named}{more}"
    )


async def _at_once(connection: Connection, name: str, **parameters: Any) -> Rows:
    """Run a table-locking statement in autocommit. A transaction of this process could keep the lock while other jobs
    run."""
    return await connection.rows(name, parameters, prepare=False)


async def _scan(connection: Connection, name: str, parameters: dict[str, Any]) -> Rows:
    """Run a statement that finds its rows without an index."""
    async with connection.transaction():
        await connection.execute("set local enable_seqscan = on")
        return await connection.rows(name, parameters, prepare=False)


def _next_look(looked: float, mark: str, every: float) -> tuple[float, str]:
    """Time of the last full search, and the start of the next partial one. Partial searches skip dead rows that an old
    transaction keeps."""
    time = now()
    return (time, EVER) if time - looked >= every else (looked, mark)
