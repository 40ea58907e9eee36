"""Keeps an engine at work: connects, runs its jobs, and connects anew when a connection is lost.

The supervisor owns the task that does so. What an error means is decided by `faults`: a job in which something failed
is run again after a pause; a lost connection ends all jobs and all connections, and the engine comes back as a new
node. While the database is away, or slow, those who wait for it too long are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

import psycopg

from queues.engine.clock import now, until_tick
from queues.engine.connections import SHARED, Connections
from queues.engine.database import LOST, Connection, answers, watch
from queues.engine.errors import EngineError, OutcomeUnknown, StoreUnavailable
from queues.engine.faults import Fault, fault_of, is_idle, passes, told
from queues.engine.health import Health, Trouble
from queues.engine.isolation import StoreBackoff
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions

logger = logging.getLogger(__name__)

#: Seconds between looks whether the server has closed a connection.
WATCH = 0.125
#: Seconds that jobs have to notice the end of their connections.
HANG_UP = 0.2
#: Seconds after which a job that had failed counts as working, and a process that had started anew as steady.
STEADY_JOB, STEADY = 5.0, 60.0
#: Seconds between looks how long the database lets others wait; that make a look late, since this process stood still;
#: for which a probe may take; and without an answer after which a database counts as silent.
LOOK, STANDSTILL, PROBE, SILENT = 0.25, 2.0, 3.0, 3.0
#: The trouble of /readyz while the database does not answer.
SILENCE = Trouble("The database", "silence")
#: The cause of a commit's wait, by the name or the kind of the server's wait event; the first of several is the cause.
WAITS_FOR = {"SyncRep": "a synchronous standby has not confirmed it", "Lock": "another transaction holds a lock"}


class EngineJob(NamedTuple):
    """A coroutine that runs as long as its connection; `purpose` is the connection's."""

    name: str
    purpose: str
    run: Callable[[Connection], Coroutine[Any, Any, None]]


class Writing(Protocol):
    """A part whose writes clients wait for; `duty` is the trouble while it cannot write."""

    duty: Trouble
    #: Since when (monotonic) something taken waits for the database.
    waiting_since: float | None

    def fail(self, error: EngineError) -> None:
        """Give up everything that waits, telling those who sent it."""


class Supervised(Protocol):
    """The supervised `Engine`, which says what each method does."""

    jobs: Sequence[EngineJob]
    writing: Sequence[Writing]

    async def begin_life(self) -> None: ...
    def end_life(self) -> None: ...
    def look_again(self) -> None: ...
    def progress(self) -> None: ...


@dataclass(eq=False, repr=False)
class Supervisor:
    """The lives of one engine."""

    _engine: Supervised
    _options: EngineOptions
    _counts: Counts
    _health: Health
    _node: LocalNode
    _connections: Connections
    #: The reason for the database's absence, without names of hosts and users.
    away: str = "a connection is lost"
    _away_since: float = 0.0
    _back_at: float = 0.0
    #: The count of writes when the database last came back.
    _written_before: int = 0
    _backoff: StoreBackoff = field(default_factory=StoreBackoff)
    task: asyncio.Task[None] | None = None

    # Begin and end.

    async def start(self, *, patient: bool) -> None:
        """Connect, and begin; with `patient`, wait for a server that takes no connections, or no writes, for now.
        Raises as `Engine.start`."""
        pauses, said = StoreBackoff(), ""
        while True:
            try:
                await self._open()
                break
            except psycopg.OperationalError as error:
                if not (patient and passes(error)):
                    raise
                if said != (said := told(error)):
                    logger.warning("waiting for the database: %s", said)
            await pauses.wait()
        self.task = asyncio.create_task(self._supervise(), name="engine")

    async def stop(self, timeout: float) -> None:
        """End all jobs; the connections stay open."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=timeout)

    async def _open(self) -> None:
        """Open all connections and become a node."""
        try:
            await self._engine.begin_life()
        except BaseException:
            await self._connections.close()
            raise
        self._back_at, self._written_before = now(), self._written()
        self._connections.begin_service()

    async def _supervise(self) -> None:
        while True:
            self._engine.look_again()
            await self._work()
            ticking = asyncio.create_task(self._give_up_in_time())  # to open may last, too
            try:
                await self._come_back()
            finally:
                await _cancel([ticking])

    async def _work(self) -> None:
        """Run every job until one of them loses its connection."""
        connections = self._connections
        jobs = map(self._keep_running, self._engine.jobs)
        watches = self._watch_waits(), watch(dict(connections.items()), WATCH), connections.lost.wait()
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (*jobs, *watches)]
        for task in tasks:
            task.add_done_callback(_heard)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel(tasks)
            raise
        connections.end_service()
        self._away_since = now()
        error = next(iter(done)).exception()
        self.away = told(error)
        self._health.restarted(self.away)
        logger.warning("the database is away: %s", str(error or "a connection is lost").strip().split("\n")[0])
        connections.hang_up()
        await asyncio.wait(tasks, timeout=HANG_UP)
        await _cancel(tasks)
        await connections.close()

    async def _keep_running(self, job: EngineJob) -> None:
        """Run a job again when something has failed in it, after growing pauses. Raises when its connection is lost."""
        connection = self._connections[job.purpose]
        backoff, trouble = StoreBackoff(), Trouble(f"The engine's {job.name} does not work", "job")
        loop = asyncio.get_running_loop()

        def works() -> None:
            backoff.reset()
            self._health.end(trouble)

        while True:
            working = loop.call_later(STEADY_JOB, works)
            try:
                await job.run(connection)
            except Exception as error:
                fault = fault_of(error, connection)
                if fault is Fault.LOST or not (job.purpose in SHARED or is_idle(connection)):
                    raise
                if fault is Fault.BAD:
                    self._health.isolate("job", error, job=job.name)
                self._health.begin(trouble, told(error))
            finally:
                working.cancel()
            await backoff.wait()

    async def _come_back(self) -> None:
        """Reconnect, with growing pauses."""
        self._counts.reconnects += 1
        self._health.forget()
        self._engine.end_life()
        if self._written() != self._written_before or now() - self._back_at > STEADY:
            self._backoff.reset()
        else:  # nothing could be written since the last time
            await self._backoff.wait()
        while True:
            try:
                await self._open()
            except Exception as error:
                self.away = told(error)
                if not isinstance(error, LOST):  # it is being restored, or a standby: it may be fit again
                    unforeseen = not isinstance(error, psycopg.Error | EngineError)
                    text = str(error).strip().split("\n")[0]
                    logger.warning("the database cannot be used: %s", text, exc_info=unforeseen)
                await self._backoff.wait()
            else:
                logger.info("the database is back; this is node %d now", self._node.id)
                return

    def _written(self) -> int:
        """Grows with everything that is written."""
        counts = self._counts
        return counts.published + counts.acknowledged + counts.returned + counts.buried + counts.claimed

    # Waiting for the database.

    async def _watch_waits(self) -> NoReturn:
        """See how long the database lets clients wait: they are told when it is too long, and a server that does not
        answer is left. Raises psycopg.OperationalError. While this process itself stands still, none of it counts."""
        seen = awake_since = now()
        asking: dict[object, asyncio.Task[Any]] = {}  # questions to the server: nothing here waits for an answer
        try:
            while True:
                await asyncio.sleep(until_tick(LOOK))
                if now() - seen > STANDSTILL:
                    awake_since = now()
                seen = now()
                if self._connections.primary.outdated:
                    raise psycopg.OperationalError("the primary was replaced by another host")
                for part in self._engine.writing:
                    self._look_at_writing(part, awake_since, asking)
                self._look_at_silence(self._node.silent_for(seen, awake_since), asking)
        finally:
            await _cancel(list(asking.values()))

    def _look_at_writing(self, part: Writing, awake_since: float, asking: dict[object, asyncio.Task[Any]]) -> None:
        waited = _waited(part, awake_since)
        if waited > self._options.stall_timeout and not self._health.has(part.duty):
            self._connections.primary.look_soon()
            if part not in asking or asking[part].done():
                asking[part] = asyncio.create_task(self._explain(part, awake_since))
        if waited > self._options.publish_timeout:
            part.fail(OutcomeUnknown())
            self._engine.progress()

    async def _explain(self, part: Writing, awake_since: float) -> None:
        why = await self._explain_wait()
        if _waited(part, awake_since) > self._options.stall_timeout:
            self._health.begin(part.duty, why)

    def _look_at_silence(self, silent: float, asking: dict[object, asyncio.Task[Any]]) -> None:
        if silent > SILENT:
            self._health.begin(SILENCE, "it does not answer")
        else:
            self._health.end(SILENCE)
        if silent <= self._options.database_timeout:
            return
        probe = asking.get(answers)
        if probe is not None and probe.done() and not probe.result():
            raise psycopg.OperationalError("the database has not answered for too long")
        if probe is None or probe.done():
            to = answers(self._connections["liveness"], self._options.conninfo, PROBE)
            asking[answers] = asyncio.create_task(to)

    async def _explain_wait(self) -> str:
        """The server's wait events of commits."""
        why = ""
        with contextlib.suppress(TimeoutError, StoreUnavailable, psycopg.Error):
            async with asyncio.timeout(PROBE):
                committing = [at for purpose, at in self._connections.items() if purpose in ("writer", "mailboxes")]
                pids = [at.info.backend_pid for at in committing]
                rows = await self._connections.look_up("waits_for", pids=pids)
                why = next((f": {text}" for kind, text in WAITS_FOR.items() if (kind,) in rows), "")
        return f"the database has taken more than {self._options.stall_timeout:g} s for a commit{why}"

    async def _give_up_in_time(self) -> NoReturn:
        """While the database is away: tell those who have waited for too long."""
        while True:
            if now() - self._away_since > self._options.publish_timeout:
                for part in self._engine.writing:
                    part.fail(StoreUnavailable(self.away))
                self._engine.progress()
            await asyncio.sleep(LOOK)


def _waited(part: Writing, awake_since: float) -> float:
    """Seconds that what a part has taken waits for the database, of those since this process works."""
    return 0.0 if part.waiting_since is None else now() - max(part.waiting_since, awake_since)


def _heard(task: asyncio.Task[Any]) -> None:
    """Look at a job's error: the first one is told, and the others of a lost database say the same."""
    if not task.cancelled():
        task.exception()


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
