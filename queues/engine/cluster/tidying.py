"""Returns messages of queues without consumers on this node, and polls for messages in case a notification was lost.

One job runs eight times a second. It also announces queues that this node no longer serves, raises the low watermarks
of quiet queues, and records used subscriptions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from queues.database.sql_files import array
from queues.engine.clock import now, until_tick
from queues.engine.consume.fetcher import Fetcher
from queues.engine.consume.interest import COLD
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.consume.registry import PrefetchedQueues
from queues.engine.database import Connection
from queues.engine.health import Health
from queues.engine.isolation import carry_out, halves
from queues.engine.node import LocalNode

#: Seconds between rounds, between polls for messages, and between records of use.
TIDY, UNSEEN, TOUCH = 0.125, 5.0, 60.0
#: Queues in one statement.
TOGETHER = 1000
#: With more served queues, all counts are read at once to find those with messages.
MANY = 1000
#: Seconds until a queue is tried again after a failure.
UNTIDY = 60.0


def _ids(queues: list[PrefetchedQueue]) -> str:
    return array(queue.id for queue in queues)


@dataclass(eq=False, repr=False)
class Tidying:
    """The job's state. `turn` guards the connection that several jobs share."""

    _node: LocalNode
    _health: Health
    _prefetched_queues: PrefetchedQueues
    _fetcher: Fetcher
    _turn: asyncio.Lock

    async def run(self, connection: Connection) -> None:
        """Tidy for ever. Raises when the connection is lost."""
        rounds = 0
        for buffer in self._prefetched_queues.queues.values():
            buffer.interest.tidy_soon()
        while True:
            await asyncio.sleep(until_tick(TIDY))
            time, rounds = now(), rounds + 1
            cold = self._cold(time)
            await self._leave(connection, cold)
            await self._raise_floors(connection, time)
            if rounds % int(UNSEEN / TIDY) == 0:
                await self._look_for_unseen(connection)
                self._look_for_dead_letters()
            if rounds % int(TOUCH / TIDY) == 0:
                await self._touch_subscriptions(connection, time)

    def _cold(self, time: float) -> list[PrefetchedQueue]:
        """Empty buffers without consumers or with too slow ones, and schedule their next check."""
        cold: list[PrefetchedQueue] = []
        for at, buffer in self._prefetched_queues.schedule.idle.due(time):
            if not buffer.interest.begin_look(at):
                continue
            if not buffer.interest.is_cold(time):
                if buffer.line is None and buffer.interest.has_surplus(time):
                    buffer.prefetch.return_all()
                buffer.interest.look_at(max(buffer.interest.look_again_at(time), time + TIDY))
                continue
            buffer.prefetch.return_all()
            if buffer.unacked and buffer.interest.settled_anywhere:
                buffer.interest.look_at(time + COLD)
                continue
            buffer.interest.tell(False)
            cold.append(buffer)
        return cold

    async def _leave(self, connection: Connection, cold: list[PrefetchedQueue]) -> None:
        """Tell other nodes that this one no longer serves these queues."""
        left: set[PrefetchedQueue] = set()

        async def leave(some: list[PrefetchedQueue]) -> None:
            await connection.run("drop_interest", {"queues": _ids(some), "node": self._node.id})
            left.update(some)

        async def serve(some: list[PrefetchedQueue]) -> None:
            await connection.run("add_interest", {"queues": _ids(some), "node": self._node.id})
            for buffer in some:
                buffer.prefetch.more_in_store(FIRST)

        try:
            await self._each(connection, "end of interest in a queue", cold, leave)
        finally:
            for buffer in cold:  # announced again later
                if buffer not in left:
                    buffer.interest.tell(True)
                    buffer.interest.look_at(now() + UNTIDY)
        back = [buffer for buffer in left if buffer.interest.known]  # perhaps announced before the drop
        for buffer in await self._each(connection, "interest in a queue", back, serve):
            buffer.interest.tell(False)  # announced again with the next claim

    async def _raise_floors(self, connection: Connection, time: float) -> None:
        """After the last claim, only this finds an earlier id that became visible later."""
        quiet = [buffer for buffer in self._fetcher.lagging() if not buffer.backlog.unclaimed]
        await self._each(connection, "look below a floor", quiet, partial(self._raise_some, connection, time))

    async def _raise_some(self, connection: Connection, time: float, buffers: list[PrefetchedQueue]) -> None:
        looks = [(buffer, buffer.backlog.news, buffer.backlog.watermark.highest) for buffer in buffers]
        parameters = {
            "queues": _ids(buffers),
            "lows": array(buffer.backlog.watermark.value for buffer in buffers),
            "highs": array(high for _, _, high in looks),
        }  # fmt: skip
        rows = await connection.rows("look_below", parameters)
        found = {queue for _, queue, ready in rows if ready}
        for buffer, news, high in looks:
            if buffer.backlog.news != news:
                continue
            if buffer.id in found:
                buffer.prefetch.more_in_store(buffer.backlog.watermark.value + 1)
            else:
                buffer.backlog.watermark.looked(rows[0][0], high)
                buffer.backlog.watermark.give_up_waiting(time)

    async def _look_for_unseen(self, connection: Connection) -> None:
        served = self._prefetched_queues.queues

        def is_quiet(buffer: PrefetchedQueue) -> bool:
            return buffer.interest.known and not buffer.backlog.unclaimed

        def claim(rows: Iterable[tuple[int]]) -> None:
            for (queue,) in rows:
                if (buffer := served.get(queue)) is not None and is_quiet(buffer):  # it may have been removed meanwhile
                    buffer.prefetch.more_in_store(FIRST)

        async def look(some: list[PrefetchedQueue]) -> None:
            claim(await connection.rows("unseen", {"queues": _ids(some)}))

        if len(served) <= MANY:
            await self._each(connection, "look for messages", filter(is_quiet, served.values()), look)
        else:
            async with self._turn:
                claim(await connection.rows("unseen_of_many"))

    def _look_for_dead_letters(self) -> None:
        """Have consumers that wait for dead letters ask again, in case a notification was lost."""
        for buffer in self._prefetched_queues.dead_letters.values():
            if buffer.interest.demand:
                buffer.prefetch.more_in_store(FIRST)

    async def _touch_subscriptions(self, connection: Connection, time: float) -> None:
        async def touch(some: list[PrefetchedQueue]) -> None:
            await connection.run("touch_subscriptions", {"queues": _ids(some)})

        queues = self._prefetched_queues.queues.values()
        used = [buffer for buffer in queues if time - buffer.interest.last_demand < TOUCH]
        await self._each(connection, "note that a subscription is used", used, touch)

    async def _each(
        self, connection: Connection, unit: str, buffers: Iterable[PrefetchedQueue],
        write: Callable[[list[PrefetchedQueue]], Awaitable[None]], together: int = TOGETHER,
    ) -> list[PrefetchedQueue]:  # fmt: skip
        """Call `write` for batches of queues on the shared connection. A failing queue is counted as `unit`, left out,
        and returned. Raises the server's error of a temporary refusal."""
        failed: list[PrefetchedQueue] = []
        waiting = list(buffers)
        parts = deque(waiting[start : start + together] for start in range(0, len(waiting), together))

        def refuse(some: list[PrefetchedQueue], error: Exception) -> None:
            failed.extend(some)
            self._health.isolate(unit, error, queue=some[0].policy.name)

        if not parts:
            return failed
        async with self._turn:
            refused = await carry_out(parts, write, halves, refuse, connection, in_order=False)
        if refused is not None:
            raise refused
        return failed
