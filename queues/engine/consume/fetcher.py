"""Claims ready messages from the store for prefetched queues, one claim at a time.

A prefetched queue asks with `want`; queues take turns. Each claim is one statement that leases a batch to this node. A
claim that fails is repeated for half as many messages, until the message to blame is alone; it becomes a dead letter.
When a claim has nearly emptied a backlog while publishes arrive, the publish writer makes the last one itself between
two writes (`finish`), where no new message can slip in.

A claim takes messages that are stored as segments by whole segments. A segment with more messages than it may have is
unpacked first, and its messages are claimed as rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from queues.database.sql_files import array
from queues.engine.clock import now
from queues.engine.consume.backlog import ClaimResult
from queues.engine.consume.claim_path import State
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.memory import BATCH, OVERHEAD, FlowLimits, detail_weight
from queues.engine.consume.message_runs import MessageRun
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of, is_idle
from queues.engine.health import Health, Trouble
from queues.engine.isolation import StoreBackoff
from queues.engine.message import CONTENT_ONLY, POSITION, Counts, Detail, Message
from queues.engine.node import LocalNode
from queues.engine.rowwise import set_oldest_aside
from queues.engine.settle.segments import OpenSegments

#: Claims that the writer makes in a row to end a backlog.
FINISHING_CLAIMS = 4
#: The trouble in /readyz while the server refuses claims.
CLAIMING = Trouble("Messages are not taken from the store", "claims")
#: Seconds before a claim that had to wait is tried again.
SHORTLY = 0.001
#: Tries of a claim. Each unpacks the next segment if it is too large.
UNPACKED = 3
#: Limit of queues announced as served in one statement.
STARTING = 500
#: Decodes a detail. `json.loads` also looks for white space around it, which doubles the cost.
_DECODER = json.JSONDecoder()
#: Details of messages that have a content type and nothing else, as claims give them.
_OFTEN = {str(int(content)): detail for content, detail in CONTENT_ONLY.items()}


@dataclass(eq=False, repr=False)
class Fetcher:
    """One claim at a time; prefetched queues that want messages take turns."""

    limits: FlowLimits
    node: LocalNode
    counts: Counts
    health: Health
    #: Queues whose messages this node has.
    segments: OpenSegments
    #: Whether a publish is being written or waits to be.
    _writer_busy: Callable[[], bool]
    #: Queues with a message that cannot be claimed, and the limit of their claims until it is found.
    _narrow: dict[PrefetchedQueue, int] = field(default_factory=dict)
    _backoff: StoreBackoff = field(default_factory=StoreBackoff)
    _stopping: bool = False
    _wanted: dict[PrefetchedQueue, None] = field(default_factory=dict)
    #: Queues whose backlog is claimed except for messages that came meanwhile. The publish writer calls `finish` for
    #: them.
    nearly_done: dict[PrefetchedQueue, None] = field(default_factory=dict)
    #: Queues whose low watermark is behind their claims.
    _lagging: dict[PrefetchedQueue, None] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Begin no more claims."""
        self._stopping = True

    def lagging(self) -> list[PrefetchedQueue]:
        """Open queues whose low watermark is behind their claims."""
        for queue in tuple(self._lagging):
            if not queue.backlog.watermark.lags or queue.closed:
                del self._lagging[queue]
        return list(self._lagging)

    def want(self, queue: PrefetchedQueue) -> None:
        """Claim for this queue soon, unless a claim for it is under way or planned."""
        if not queue.backlog.claiming and queue not in self._wanted and queue not in self.nearly_done:
            self._wanted[queue] = None
            self._wake.set()

    async def run(self, connection: Connection) -> None:
        """Claim for ever. Raises when the connection is lost, and may be run again with another."""
        while True:
            if not self._wanted:  # an interrupted run may have left requests
                self._wake.clear()
                await self._wake.wait()
            while self._wanted:
                queue = next(iter(self._wanted))
                del self._wanted[queue]
                if queue.backlog.state is State.NEARLY_DONE and self._writer_busy():
                    self.nearly_done[queue] = None
                else:
                    await self._backoff.after(await self._try(connection, queue), self.health, CLAIMING)

    async def _try(self, connection: Connection, queue: PrefetchedQueue) -> Exception | None:
        """Claim. A claim that fails is repeated for fewer messages, until the one to blame is found. Returns the error
        by which the server refuses claims for now."""
        try:
            await self.claim(connection, queue)
        except Exception as error:
            fault, alone = fault_of(error, connection), not self._narrow.get(queue, 1)
            if alone:  # the next claim is for one message: a claim for none would stop the queue
                self._narrow[queue] = 1
            if fault is Fault.LOST or not is_idle(connection):
                raise
            self.want(queue)  # at once: the next statements may fail, too
            if fault is Fault.BAD and alone:
                return await self._set_aside(connection, queue, error)
            return error if fault is Fault.REFUSED else None
        return None

    async def _set_aside(self, connection: Connection, queue: PrefetchedQueue, error: Exception) -> Exception | None:
        """The oldest message of a queue cannot be claimed: it becomes a dead letter. If it is one already, or not even
        that works, it is passed over until the queue is looked at from its beginning again. Returns the error by which
        the server refuses for now, or that may pass."""
        id, watermark = None, queue.backlog.watermark
        try:
            if not queue.dead:
                id = await set_oldest_aside(connection, queue.id, watermark.value, watermark.pass_over, error)
        except Exception as failure:
            fault = fault_of(failure, connection)
            if fault is Fault.LOST or not is_idle(connection):
                raise
            if fault is not Fault.BAD:
                return failure
        self.health.isolate("claim", error, queue=queue.policy.name, message=id)
        if id is None:
            del self._narrow[queue]
            self._wanted.pop(queue, None)
            queue.prefetch.exhaust()
        return None

    async def finish(self, connection: Connection) -> None:
        """Claim what is left of nearly empty backlogs. The writer calls this between two writes, when no message can
        arrive."""
        left, self.nearly_done = self.nearly_done, {}
        for queue in left:
            for _ in range(FINISHING_CLAIMS):
                backlog, prefetch = queue.backlog, queue.prefetch
                if backlog.unclaimed and not backlog.claiming and (prefetch.room > 0 or prefetch.overtaken):
                    await self._try(connection, queue)

    def take_back(self) -> None:
        """Take the backlogs left to the writer, which is idle."""
        left, self.nearly_done = self.nearly_done, {}
        for queue in left:
            queue.backlog.writer_idle()
            self.want(queue)

    async def claim(self, connection: Connection, queue: PrefetchedQueue) -> None:
        """Fill one queue. While a publish leases to it, or it returns messages, it waits: the order would be lost."""
        if queue.stands_by:
            queue.prefetch.refilled()
            return
        if not queue.interest.known and not queue.dead and not queue.closed:
            await self._serve(connection, queue)
            self._wanted.pop(queue, None)  # this is the claim
        if queue.prefetch.in_transit:
            asyncio.get_running_loop().call_later(SHORTLY, self.want, queue)
            return
        if queue.backlog.claiming:  # the publish writer's: it brings what is wanted
            return
        limit = queue.prefetch.claim_limit()
        limit = min(limit, self._narrow.get(queue, limit))
        if limit <= 0 or queue.policy.paused or queue.closed or queue.stands_by or self._stopping:
            queue.prefetch.refilled()
            return
        policy = queue.policy
        queue.backlog.begin_claim()
        try:
            result, claimed = await self._claim(connection, queue, limit)
        except BaseException as error:
            queue.prefetch.abort_claim()
            if isinstance(error, Exception):
                self._narrow[queue] = limit // 2
            raise
        queue.prefetch.end_claim(result, limit, self.node.horizon)
        self._claimed(queue, result)
        if queue.policy is not policy and queue.policy.taken_as_asked:  # a limit was set meanwhile
            queue.prefetch.decline(chain.from_iterable(claimed))
        else:
            queue.prefetch.add_claimed(*claimed)
        queue.prefetch.refilled()
        if queue.backlog.unclaimed and queue.interest.demand and not queue.ready:
            if result.more and not result.taken:  # another transaction is about to change the next message
                asyncio.get_running_loop().call_later(SHORTLY, self.want, queue)
            else:
                self.want(queue)

    def _claimed(self, queue: PrefetchedQueue, result: ClaimResult) -> None:
        if queue in self._narrow and (most := 2 * self._narrow.pop(queue)) < BATCH:  # the next may take more
            self._narrow[queue] = most
        self.counts.claimed += result.taken
        if result.last_id is not None:
            self.node.note_id(result.last_id & POSITION)
        if queue.backlog.watermark.lags and not queue.dead:
            self._lagging[queue] = None

    async def _serve(self, connection: Connection, queue: PrefetchedQueue) -> None:
        """Announce in one statement that this node serves the queue, and the queues of the next claims."""
        starting = [queue, *(b for b in self._wanted if not (b.interest.known or b.dead or b.closed))][:STARTING]
        for one in starting:
            one.interest.tell(True)
            one.interest.tidy_soon()
        try:
            await connection.run("add_interest", {"queues": array(one.id for one in starting), "node": self.node.id})
        except BaseException:
            for one in starting:  # they are announced again
                one.interest.tell(False)
            raise
        for one in starting:
            one.prefetch.more_in_store(FIRST)  # what became ready before was not announced to this node

    async def _claim(
        self, connection: Connection, queue: PrefetchedQueue, limit: int
    ) -> tuple[ClaimResult, Sequence[MessageRun | list[Message]]]:
        """Claim; returns the messages in order of id."""
        parameters: dict[str, Any] = {
            "queue": queue.id,
            "low": queue.backlog.watermark.value,
            "limit": limit,
            "node": self.node.id,
            "most_packed": 0 if queue in self._narrow else queue.prefetch.most_packed,
            "overhead": OVERHEAD,
        }
        limited = queue.policy.concurrency_limit is not None
        name = "claim_dead" if queue.dead else "claim_alone"
        if not queue.dead and (queue.interest.shared or limited):
            name = "claim"
            parameters["limited"] = limited
        for _ in range(UNPACKED):
            cursor = await connection.run(name, parameters, binary=True)
            (_, snapshot, more, large, _), *rows = await cursor.fetchall()
            if large is None:
                break
            await connection.run("unpack_segments", {"firsts": array([large]), "waiting": False})
        claimed: Sequence[MessageRun | list[Message]]
        last_id: int | None
        if rows and rows[0][4] is not None:
            claimed = runs = [self._run(*row) for row in rows]
            last_id = runs[-1].ids[-1]
        else:  # a row without a detail is a complete message
            claimed = [[row[:4] if row[3] is None else (*row[:3], _detail(row[3])) for row in rows]]
            last_id = rows[-1][0] if rows else None
        return ClaimResult(snapshot.decode(), bool(more), last_id, sum(map(len, claimed)), len(rows)), claimed

    def _run(self, first: int, _: None, attempts: int, detail: str | None, bodies: list[bytes]) -> MessageRun:
        """The messages of a claimed segment, which are this node's now."""
        self.segments.add(first, len(bodies))
        ids = range(first, first + len(bodies))
        return MessageRun(ids, bodies, attempts, None if detail is None else _detail(detail))


def _detail(text: str) -> Detail:
    """`expires_in` is the time left by the server's clock, which may differ from this host's."""
    if (often := _OFTEN.get(text)) is not None:
        return often
    row, _ = _DECODER.raw_decode(text)
    left = row.pop("expires_in", None)
    expires_at = None if left is None else now() + left
    size = len(text) if row.get("headers") else 0
    return Detail(**row, expires_at=expires_at, weight=detail_weight(size, row.get("key")))
