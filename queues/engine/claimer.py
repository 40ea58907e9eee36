"""Takes ready messages from the store into memory, a batch at a time, for buffers whose consumers want more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from queues.engine.buffer import QueueBuffer
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of, is_idle, told
from queues.engine.floor import LOWEST
from queues.engine.health import Health, Trouble
from queues.engine.isolation import Patience
from queues.engine.memory import Memory, detail_weight
from queues.engine.message import CONTENT_ONLY, POSITION, Content, Counts, Detail, Message
from queues.engine.options import EngineOptions
from queues.engine.statements import array, statement

BATCH = 4000
#: Claims in a row that the writer makes to end a backlog, before it goes on writing.
FINISHING_CLAIMS = 4
#: Messages taken for workers at once, at least, while there is room.
FEW = 100
#: Most messages taken although there is no room: of a higher priority than those in memory.
URGENT = 100
#: What does not work while the server refuses claims, as /readyz says it.
CLAIMING = Trouble("Messages are not taken from the store", "claims")
#: Most messages taken at once from a queue that other nodes serve too, so that all of them are busy.
SHARED_BATCH = 200
#: Most queues that this node begins to serve in one statement.
STARTING = 500


class Claimer:
    """One claim at a time; buffers that want messages take turns."""

    def __init__(self, options: EngineOptions, counts: Counts, health: Health) -> None:
        self.prefetch = options.prefetch
        self.most_bytes = options.prefetch_bytes
        self.memory = Memory(options.prefetch_total_bytes)
        self.low_water = max(1, min(options.prefetch // 2, BATCH))
        self.counts = counts
        self.health = health
        #: Buffers with a message that cannot be claimed, and how many may be claimed at once until it is found.
        self._narrow: dict[QueueBuffer, int] = {}
        self._patience = Patience()
        self.node = 0
        self.stopping = False
        #: Until when (monotonic) what is leased to this node is certainly no other's.
        self.trusted_until = float("inf")
        #: The last message id that was claimed, without its priority.
        self.last_id = 0
        self._wanted: dict[QueueBuffer, None] = {}
        self._nearly_done: dict[QueueBuffer, None] = {}
        #: An id that was taken before this node's first claim.
        self.horizon = LOWEST
        #: Queues whose floor is behind their claims.
        self.lagging: dict[QueueBuffer, None] = {}
        self._wake = asyncio.Event()
        #: Whether a publish is being written or waits to be.
        self.writer_busy: Callable[[], bool] = lambda: False

    def want(self, buffer: QueueBuffer) -> None:
        """Claim for this buffer soon, unless it cannot take anything now."""
        if not buffer.claiming and buffer not in self._wanted and buffer not in self._nearly_done:
            self._wanted[buffer] = None
            self._wake.set()

    async def run(self, connection: Connection) -> None:
        """Claim for ever; ends by an exception when the connection is lost, and may be run again with another."""
        while True:
            if not self._wanted:  # a run that was cut off may have left some
                self._wake.clear()
                await self._wake.wait()
            while self._wanted:
                buffer = next(iter(self._wanted))
                del self._wanted[buffer]
                if buffer.nearly_done and self.writer_busy():
                    self._nearly_done[buffer] = None
                elif (refused := await self._try(connection, buffer)) is not None:
                    self.health.begin(CLAIMING, told(refused))
                    await self._patience.wait()
                else:
                    self._patience.reset()
                    self.health.end(CLAIMING)

    async def _try(self, connection: Connection, buffer: QueueBuffer) -> Exception | None:
        """Claim, whatever that meets: what fails for one buffer is tried again for fewer messages, until the one is
        found that is to blame. Returns the error by which the server refuses for now."""
        try:
            await self.claim(connection, buffer)
        except Exception as error:
            fault, alone = fault_of(error, connection), not self._narrow.get(buffer, 1)
            if alone:  # whatever it met, the next claim is of one message: none at all would stop the queue
                self._narrow[buffer] = 1
            if fault is Fault.LOST or not is_idle(connection):
                raise
            if fault is Fault.BAD and alone:
                await self._set_aside(connection, buffer, error)
            self.want(buffer)
            return error if fault is Fault.REFUSED else None
        return None

    async def _set_aside(self, connection: Connection, buffer: QueueBuffer, error: Exception) -> None:
        """The oldest message of a queue cannot be claimed: it becomes a dead letter. If it is one already, or not even
        that works, it is passed over until the queue is looked at from its beginning again."""
        parameters = {"queue": buffer.id, "low": buffer.floor.value}
        row = await (await connection.execute(statement("first_ready"), parameters)).fetchone()
        id = None if row is None or buffer.dead else row[0]
        self.health.isolate("claim", error, queue=buffer.policy.name, message=id)
        if id is None:
            del self._narrow[buffer]
            buffer.backlog = False
            buffer.refilled()
            return
        try:
            given = {"ids": array([id]), "error": f"not claimed: {told(error)}", "node": None}
            await connection.execute(statement("set_aside"), given)
        except Exception as failure:
            if fault_of(failure, connection) is not Fault.BAD:
                raise
            buffer.floor.value = max(buffer.floor.value, id)

    async def finish(self, connection: Connection) -> None:
        """Claim what is left of backlogs that were seen empty but for what came meanwhile. The writer calls this
        between two writes, when nothing can come."""
        buffers, self._nearly_done = self._nearly_done, {}
        for buffer in buffers:
            for _ in range(FINISHING_CLAIMS):
                if buffer.backlog and not buffer.claiming and (buffer.room > 0 or buffer.urgent):
                    await self._try(connection, buffer)

    def take_back(self) -> None:
        """The writer has nothing to write: what was left to it is claimed here."""
        buffers, self._nearly_done = self._nearly_done, {}
        for buffer in buffers:
            buffer.nearly_done = False
            self.want(buffer)

    async def claim(self, connection: Connection, buffer: QueueBuffer) -> None:
        """Fill one buffer. While a publish leases to it, or it hands back, it waits: order would be lost."""
        if not buffer.interested and not buffer.dead and not buffer.closed:
            await self._serve(connection, buffer)
        if buffer.storing or buffer.settler.handed_back < buffer.back_with:
            asyncio.get_running_loop().call_later(0.001, self.want, buffer)
            return
        limit = self._limit(buffer)
        if limit <= 0 or buffer.policy.paused or buffer.closed or self.stopping:
            buffer.refilled()
            if buffer.pusher is not None:
                buffer.pusher.push()  # it may have waited for this
            return
        buffer.claiming = True
        news, policy = buffer.news, buffer.policy
        try:
            snapshot, more, messages = await self._claim(connection, buffer, limit)
        except Exception:
            self._narrow[buffer] = limit // 2
            raise
        finally:
            buffer.claiming = False
        if self._narrow:
            self._widen(buffer)
        self.counts.claimed += len(messages)
        if messages:
            self.last_id = max(self.last_id, max([message[0] & POSITION for message in messages]))
        last_id = messages[-1][0] if messages else buffer.floor.value
        if buffer.news == news:
            buffer.floor.looked(snapshot, last_id if more else None)
        # Ids up to the horizon were all taken before the claim, so one that finds no more has seen to all of them.
        reached = last_id if more or buffer.dead else max(last_id, self.horizon)
        if messages or reached > buffer.floor.highest:
            buffer.floor.claimed(snapshot, reached, len(messages))
        if buffer.floor.lags and not buffer.dead:
            self.lagging[buffer] = None
        # Where a limit was met there is more, but not now.
        emptied = not more or (len(messages) < limit and buffer.policy.concurrency_limit is not None)
        if emptied and buffer.news == news:
            buffer.backlog = False
        buffer.nearly_done = emptied and buffer.backlog
        if buffer.policy is not policy and buffer.policy.taken_as_asked:  # a limit was set meanwhile
            buffer.decline(messages)
        else:
            buffer.add_claimed(messages)
        buffer.refilled()
        if buffer.backlog and buffer.demand and not buffer.ready:
            self.want(buffer)

    def _widen(self, buffer: QueueBuffer) -> None:
        """A claim went well: more may be claimed at once again."""
        most = 2 * self._narrow.pop(buffer, BATCH)
        if most < BATCH:
            self._narrow[buffer] = most

    async def _serve(self, connection: Connection, buffer: QueueBuffer) -> None:
        """Tell the others that this node serves the queue; and all that are to be claimed from next, at once."""
        starting = [buffer, *(b for b in self._wanted if not (b.interested or b.dead or b.closed))][:STARTING]
        for one in starting:
            one.interested = True
            one.tidy_soon()
        parameters = {"queues": array(one.id for one in starting), "node": self.node}
        try:
            await connection.execute(statement("add_interest"), parameters)
        except BaseException:
            for one in starting:  # to be said again
                one.interested = False
            raise

    def _limit(self, buffer: QueueBuffer) -> int:
        held = buffer.ready_bytes
        fitting = max(1, min(self.most_bytes - held, self.memory.room(held)) // max(1, buffer.mean_bytes))
        most = min(BATCH, buffer.room, fitting)
        if buffer.dead or buffer.shared or buffer.policy.taken_as_asked:
            asked = max(buffer.demand, buffer.shortage)  # what is more would be kept from others
            most = min(most, asked, SHARED_BATCH) if len(buffer.ready) < asked else 0
        elif buffer.pusher is not None:  # workers are slow: what they cannot take soon waits in the store
            most = min(most, max(2 * (buffer.demand + len(buffer.unacked)), buffer.shortage, FEW))
        buffer.shortage = 0
        if buffer.urgent:
            buffer.urgent = False
            most = max(most, URGENT)
        return min(most, self._narrow.get(buffer, most))

    async def _claim(
        self, connection: Connection, buffer: QueueBuffer, limit: int
    ) -> tuple[str, bool, list[Message]]:
        """The snapshot that the claim had, whether there may be more, and the messages."""
        parameters: dict[str, Any] = {
            "queue": buffer.id,
            "low": buffer.floor.value,
            "limit": limit,
            "node": self.node,
        }
        limited = buffer.policy.concurrency_limit is not None
        name = "claim_dead" if buffer.dead else "claim_alone"
        if not buffer.dead and (buffer.shared or limited):
            name = "claim"
            parameters["limited"] = limited
        cursor = await connection.execute(statement(name), parameters, binary=True)
        (_, snapshot, more, _), *rows = await cursor.fetchall()
        # A row without a detail is a message as it is.
        messages = [row if row[3] is None else (row[0], row[1], row[2], _detail(row[3])) for row in rows]
        return snapshot.decode(), bool(more), messages


def _detail(row: dict[str, Any] | int) -> Detail:
    """`expires_in` is what the server's clock says is left: this host's may be ahead of it or behind."""
    if isinstance(row, int):
        return CONTENT_ONLY[Content(row)]
    left, size = row.pop("expires_in", None), row.pop("weight", 0)
    expires_at = None if left is None else now() + left
    return Detail(**row, expires_at=expires_at, weight=detail_weight(size, row.get("key")))
