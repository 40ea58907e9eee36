"""Workers do the jobs of Overhop queues. `Worker` runs handlers in threads, `AsyncWorker` in tasks.

    def send_email(job):
        job.log(f"attempt {job.attempt} of {job.max_attempts}")
        if not smtp_is_up():
            raise Retry(60)                      # FAIL, and again in a minute
        return {"sent": deliver(job.payload)}    # DONE with this result; any other exception is FAIL with its text

    worker = Worker("127.0.0.1", 9876, {"emails": send_email}, concurrency=8)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()

A job may be delivered more than once: when its deadline passes, or the connection or the worker is lost before the
broker has its answer. Handlers must allow for that.
"""

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from wire.client.errors import ClientError, ConnectionLost
from wire.client.reconnecting import OnEvent, Reconnect, Reconnecting, passes
from wire.overhop import requests
from wire.overhop.async_connection import AsyncConnection
from wire.overhop.blocking_calls import Threads
from wire.overhop.client_core import Reply
from wire.overhop.codec.decoder import MAX_ENVELOPE
from wire.overhop.codec.encoder import Unencodable
from wire.overhop.codec.names import Code, Type
from wire.overhop.errors import MessageTooLarge, OverhopError
from wire.overhop.job_context import AsyncHandler, AsyncJobContext, Handler, JobContext, Retry, outcome
from wire.overhop.requests import Quest, Request

__all__ = ["AsyncJobContext", "AsyncWorker", "JobContext", "Retry", "Worker"]

logger = logging.getLogger(__name__)
H = TypeVar("H")

#: Seconds after which an idle worker asks whether the broker is still there.
QUIET: Final = 30.0
SHORTEST_HEARTBEAT: Final = 0.05


class _Lane:
    """A queue with its handler, its jobs under way, and the credits that the broker has."""

    def __init__(self, queue: str, handler: AsyncHandler) -> None:
        self.queue = queue
        self.handler = handler
        self.busy = 0
        self.credits = 0
        self.sid: str | None = None
        #: Whether credits are given at the next turn of the event loop, for all jobs that end in this one.
        self.is_due = False


class _Heart:
    """Beats every `pause` seconds until it is stopped, by a timer: most jobs end before the first beat."""

    def __init__(self, pause: float | None, beat: Callable[[], bool]) -> None:
        """`beat` says whether to go on. Without a pause it is never called."""
        self._pause = pause
        self._beat = beat
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def _wait(self) -> None:
        if self._pause is not None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def _next(self) -> None:
        if self._beat():
            self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class AsyncWorker:
    """Does the jobs of queues with async handlers, until it is told to stop. One that has run is used up.

    For example, in a coroutine:

        async def resize(job):
            await job.log("begun")
            return await shrink(job.payload)

        worker = AsyncWorker("127.0.0.1", 9876, {"images": resize}, concurrency=100)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[str, AsyncHandler] | None = None,
        *,
        queue: str | None = None,
        handler: AsyncHandler | None = None,
        concurrency: int = 1,
        heartbeat: float | None = None,
        grace: float = 30.0,
        timeout: float = 30.0,
        reconnect: Reconnect = True,
        on_event: OnEvent | None = None,
        max_envelope: int = MAX_ENVELOPE,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Nothing happens yet: `run`. Arguments as for `Worker`."""
        self._lanes = [_Lane(*each) for each in _handlers(handlers, queue, handler).items()]
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: it must be 1 or more")
        if heartbeat is not None and not heartbeat > 0:
            raise ValueError(f"heartbeat is {heartbeat}: give seconds, or None")
        self._concurrency = concurrency
        self._heartbeat = heartbeat
        self._grace = grace
        self._address = f"{host}:{port}"
        self._new_connection = functools.partial(
            AsyncConnection, host, port,
            timeout=timeout, max_envelope=max_envelope, tls=tls, server_hostname=server_hostname,
        )  # fmt: skip
        self._life = Reconnecting(reconnect, on_event)
        self._connection: AsyncConnection | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Do jobs until `stop` is called, connecting until that succeeds, and again when the connection is lost.

        Raises OverhopError if the broker does not let us subscribe (QueueNotFound, Forbidden, …), TlsFailed if it
        is not trusted or does not trust us, ProtocolViolation if it speaks something else; without `reconnect`
        anything that keeps it from connecting, and that the connection is lost. Being cancelled ends
        it at once: what runs is left undone, for another attempt.
        """
        if self._loop is not None:
            raise RuntimeError("this worker has run: make another")
        self._loop = asyncio.get_running_loop()
        try:
            while not self._stopping.is_set():
                if await self._connect():
                    await self._serve()
            await self._finish()
        finally:
            self._leave()
            self._life.closed()

    def stop(self) -> None:
        """Take no more jobs, give those that run their time, hand the rest back; `run` returns then.

        May be called from any thread, and from a signal handler.
        """
        if self._loop is None:
            self._stopping.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                self._loop.call_soon_threadsafe(self._stopping.set)

    # The connection

    async def _connect(self) -> bool:
        """Connect and subscribe, however long it takes; False when stopping."""
        while True:
            opening = asyncio.create_task(self._open())
            try:
                await self._first(opening)
                if opening.done():
                    opening.result()
                    return True
            except (OSError, OverhopError) as error:
                if not passes(error) or not self._life.goes_on(error):
                    raise
                pause = self._life.delay_after(error)
                logger.warning("%s: %s; next attempt in %.1f s", self._address, error or type(error).__name__, pause)
                opening = asyncio.create_task(asyncio.sleep(pause))
                await self._first(opening)
            finally:
                await _cancelled(opening)
            if self._stopping.is_set():
                return False

    async def _open(self) -> None:
        connection: AsyncConnection = self._new_connection()
        try:
            await connection.connect()
            await connection.ask(requests.ping())  # deadlines are by the broker's clock
            for lane in self._lanes:
                lane.credits = max(self._concurrency - lane.busy, 0)
                lane.sid = await connection.ask(requests.subscribe(lane.queue, lane.credits))
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        self._life.connected()
        connection.core.on_quest = self._take
        while connection.core.quests:
            self._take(connection.core.quests.popleft())
        for lane in self._lanes:
            self._top_up(lane)  # jobs of the connection before have come to an end meanwhile

    async def _serve(self) -> None:
        """Let the jobs come until the connection ends, or the worker is to stop."""
        connection = self._connection
        assert connection is not None
        logger.info("%s: ready for jobs of %s", self._address, ", ".join(lane.queue for lane in self._lanes))
        ended = asyncio.create_task(connection.ended.wait())
        try:
            while not connection.ended.is_set() and not self._stopping.is_set():
                if not await self._first(ended, QUIET):
                    with contextlib.suppress(ClientError):
                        await connection.ask(requests.ping())
        finally:
            await _cancelled(ended)
        if connection.ended.is_set():
            logger.warning("%s: connection lost: %s", self._address, connection.error)
            self._connection = None
            self._life.disconnected(connection.error)
            await connection.close()
            if not self._life.goes_on(connection.error):
                raise connection.error

    async def _first(self, other: asyncio.Future[Any], timeout: float | None = None) -> bool:
        """Wait until the other is done or the worker is to stop; False if the time is over before."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait((other, stopping), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        return bool(done)

    async def _finish(self) -> None:
        """Take no more jobs, wait for those that run, and give the rest back."""
        connection = self._connection
        if connection is not None and not connection.ended.is_set():
            for lane in self._lanes:
                if lane.sid is not None:
                    connection.post(requests.unsubscribe(lane.sid))
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=self._grace)
        self._connection = None  # jobs that finish from now on are too late
        for job in self._jobs:
            logger.warning("%s: still running after %s s, and given back", job.get_name(), self._grace)
            job.cancel()
        if connection is not None:
            with contextlib.suppress(ClientError):
                await connection.ask(requests.goodbye("the worker stops"))
            with contextlib.suppress(ClientError):
                await connection.close()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        for job in self._jobs:
            job.cancel()

    # Jobs

    def _take(self, quest: Quest) -> None:
        connection = self._connection
        lane = next((lane for lane in self._lanes if lane.sid == quest.sid), None)
        if connection is None or connection.ended.is_set() or lane is None or self._stopping.is_set():
            return  # not begun: it is given back together with what else there is
        lane.credits -= 1
        lane.busy += 1

        async def tell(request: Request[None]) -> None:
            await self._tell(connection, context, request)

        context = AsyncJobContext(quest, tell)
        self._post(connection, context, requests.ack(quest.jid))
        job = asyncio.create_task(self._do(connection, lane, context), name=f"job {quest.jid}")
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _do(self, connection: AsyncConnection, lane: _Lane, context: AsyncJobContext) -> None:
        pause = self._heartbeat or _time_between_beats(context.deadline, connection.core.now())
        heart = _Heart(pause, functools.partial(self._beat, connection, context))
        try:
            answer = await outcome(lane.handler, context)
        finally:
            heart.stop()
            lane.busy -= 1
        self._top_up_soon(lane)
        if self._connection is connection and not connection.ended.is_set():
            self._answer(connection, context, answer)
        else:
            logger.warning("job %s: its connection is gone, and its %s is dropped", context.jid, answer.t.name)

    def _answer(self, connection: AsyncConnection, context: AsyncJobContext, answer: Request[None]) -> None:
        try:
            self._post(connection, context, answer)
        except (Unencodable, MessageTooLarge) as error:
            logger.error("job %s: its result cannot be sent: %s", context.jid, error)
            text = f"the result cannot be sent: {error}"
            self._post(connection, context, requests.fail(context.jid, text, None))

    def _top_up_soon(self, lane: _Lane) -> None:
        if not lane.is_due:
            lane.is_due = True
            asyncio.get_running_loop().call_soon(self._top_up, lane)

    def _top_up(self, lane: _Lane) -> None:
        """Give the broker a credit for each free place."""
        lane.is_due = False
        connection, missing = self._connection, self._concurrency - lane.busy - lane.credits
        if connection is None or connection.ended.is_set() or lane.sid is None or self._stopping.is_set():
            return
        if missing > 0:
            lane.credits += missing
            reply = connection.post(requests.grant(lane.sid, missing))
            reply.wake = functools.partial(self._granted, connection, lane, reply)

    def _granted(self, connection: AsyncConnection, lane: _Lane, reply: Reply[None]) -> None:
        if isinstance(reply.error, OverhopError) and not self._stopping.is_set():
            logger.warning("queue %s: no credits taken (%s): subscribing again", lane.queue, reply.error)
            connection.lose(ConnectionLost("no credits were taken"))

    def _beat(self, connection: AsyncConnection, context: AsyncJobContext) -> bool:
        """Move a job's deadline; False when it is lost."""
        if self._connection is not connection or connection.ended.is_set():
            context.lost = True
        if not context.lost:
            self._post(connection, context, requests.beat(context.jid))
        return not context.lost

    async def _tell(self, connection: AsyncConnection, context: AsyncJobContext, request: Request[None]) -> None:
        """Send a request about a job without waiting for its answer; not if the job is lost."""
        if self._connection is not connection or connection.ended.is_set():
            context.lost = True
        if not context.lost:
            self._post(connection, context, request)
            with contextlib.suppress(ClientError):  # `_serve` logs it
                await connection.send()

    def _post(self, connection: AsyncConnection, context: AsyncJobContext, request: Request[None]) -> None:
        reply = connection.post(request)
        reply.wake = functools.partial(_answered, context, reply)


class Worker:
    """Does the jobs of queues with handlers in threads, until it is told to stop. One that has run is used up."""

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[str, Handler] | None = None,
        *,
        queue: str | None = None,
        handler: Handler | None = None,
        concurrency: int = 1,
        heartbeat: float | None = None,
        grace: float = 30.0,
        timeout: float = 30.0,
        reconnect: Reconnect = True,
        on_event: OnEvent | None = None,
        max_envelope: int = MAX_ENVELOPE,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Nothing happens yet: `run`.

        `handlers` has a handler for each queue; or give one `queue` and its `handler`. `concurrency`: jobs of each
        queue at once. `heartbeat`: seconds between two BEATs while a job runs; None for a third of the time to its
        deadline. `grace`: seconds that running jobs have after `stop`. `timeout`: seconds to connect, and of
        silence while an answer is due. The others are as for `wire.overhop.client.Client`; `on_event` is called in
        the thread that runs the worker. Raises ValueError.
        """
        given = _handlers(handlers, queue, handler)
        self._worker = AsyncWorker(
            host, port, {name: self._in_thread(each) for name, each in given.items()},
            concurrency=concurrency, heartbeat=heartbeat, grace=grace,
            timeout=timeout, reconnect=reconnect, on_event=on_event,
            max_envelope=max_envelope, tls=tls, server_hostname=server_hostname,
        )  # fmt: skip
        self._timeout = timeout
        self._threads = Threads(concurrency * len(given))

    def run(self) -> None:
        """Do jobs until `stop` is called from another thread, a handler or a signal handler.

        Connects again whenever the connection is lost; raises as `AsyncWorker.run` does. Handlers that are still
        running after their grace are left behind in daemon threads. Ctrl-C ends it at once, with KeyboardInterrupt.
        """
        try:
            asyncio.run(self._worker.run())
        finally:
            self._threads.close()

    def stop(self) -> None:
        """Take no more jobs, give those that run their time, hand the rest back; `run` returns then.

        May be called from any thread, and from a signal handler.
        """
        self._worker.stop()

    def _in_thread(self, handler: Handler) -> AsyncHandler:
        async def handle(inner: AsyncJobContext) -> Any:
            context = JobContext(inner, asyncio.get_running_loop(), self._timeout)
            return await self._threads.call(handler, context)

        return handle


def _handlers(handlers: Mapping[str, H] | None, queue: str | None, handler: H | None) -> dict[str, H]:
    if handlers and queue is None and handler is None:
        return dict(handlers)
    if handlers is None and queue is not None and handler is not None:
        return {queue: handler}
    raise ValueError("give handlers by queue, or one queue and its handler")


def _time_between_beats(deadline: datetime | None, now: datetime) -> float | None:
    """Return seconds: two heartbeats may be lost before the deadline. None if there is none."""
    if deadline is None:
        return None
    return max((deadline - now).total_seconds() / 3, SHORTEST_HEARTBEAT)


def _answered(context: AsyncJobContext, reply: Reply[None]) -> None:
    """Look at the answer to something about a job."""
    kind = reply.request.t
    if isinstance(reply.error, OverhopError):
        logger.warning("job %s: %s refused: %s", context.jid, kind.name, reply.error)
        context.lost = context.lost or reply.error.code == Code.JOB_NOT_FOUND
    elif reply.error is not None and kind in (Type.DONE, Type.FAIL):
        logger.warning("job %s: %s was not confirmed: %s", context.jid, kind.name, reply.error)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has gone."""
    task.cancel()
    await asyncio.wait((task,))
