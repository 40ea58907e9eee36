"""An engine in a thread of its own, for the consumers of a process that acknowledge.

There is one for each database, however many connections a program makes. It outlives them: when Celery reconnects, its
node, leases and connections are still there. Unused for a while it stops; so it does when the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from queues.celery.consumers.channel_consumer import ChannelConsumer, QueueConsumer, Received, Settlement, acknowledge
from queues.celery.consumers.fork_safety import watch
from queues.engine.api import FIRST, Engine, EngineError, EngineOptions, PrefetchedQueue, Push, StoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Limit of a queue's messages claimed ahead of the consumers' prefetch counts.
READ_AHEAD = 16
#: Seconds to gather acknowledgements, without and with messages ahead.
GATHER, GATHER_AHEAD = 0.001, 0.01
#: Seconds that an engine without consumers goes on.
IDLE = 10.0
#: Seconds for a stop to write pending settlements.
STOP = 5.0
#: Seconds for the loop to end after that.
LAST_WORDS = 2.0
#: Seconds between looks for queues that were deleted and made anew.
LOOK = 1.0
#: Seconds that an answer of the thread may take.
TIMEOUT = 30.0
FOR_EVER = 100 * 365 * 86_400.0
#: Seconds for an engine to reconnect before new consumers are refused.
COMING_BACK = 5.0


class WriteSignal:
    """Tells that the engine has written something."""

    def __init__(self) -> None:
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def next(self) -> None:
        """Wait until it has."""
        self._released.clear()
        await self._released.wait()


class EngineThread:
    """An engine, its loop and its thread. Methods may be called from any thread unless they say otherwise."""

    def __init__(self, conninfo: str, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        # Retention is enforced by the broker's own processes: this one drops nothing.
        options = EngineOptions(
            conninfo=conninfo, name=name, prefetch=READ_AHEAD, archive_days=0, dedupe_window=FOR_EVER
        )
        self.engine = Engine(options)
        self.ended = False
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._gathering = False
        #: Sequence of the settlement batch with the last returned message.
        self._returning = 0
        self._channels: set[ChannelConsumer] = set()
        self._idle_since = time.monotonic()
        self._background: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fivewire engine", daemon=True)

    # Life.

    def start(self) -> None:
        """Connect. Raises what `Engine.start` does."""
        watch(self)
        self._thread.start()
        try:
            self.run(self._begin())
        except BaseException:
            self._end()
            raise

    async def _begin(self) -> None:
        await self.engine.start()
        self._spawn(self._look_after())

    def stop(self) -> None:
        """Write pending settlements, hand back held messages, and end the thread."""
        if not self.ended:
            self._drain_here()
            with contextlib.suppress(TimeoutError, EngineError, OSError):
                self.run(self.engine.stop(STOP))
            self._end()

    def _end(self) -> None:
        self.ended = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except BaseException:
            logger.exception("the engine's thread ended; its consumers are notified")
        finally:
            self._leave()

    def _leave(self) -> None:
        """The loop has ended. If nothing asked for that, consumers learn of it, and the next channel starts anew."""
        lost, self.ended = not self.ended, True
        if lost:
            try:
                self.loop.run_until_complete(self.engine.stop(STOP))
            except Exception:
                logger.exception("the engine could not hand back its messages")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_WORDS))
        self.loop.close()
        for channel in tuple(self._channels) if lost else ():
            channel.lose()

    def descriptors(self) -> list[int]:
        return self.engine.descriptors()

    def disown(self) -> None:
        self.ended = True

    # Calls from other threads.

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop and wait for its result. Raises StoreUnavailable when there is none in time."""
        if self.ended:
            coroutine.close()
            raise StoreUnavailable("the engine has stopped")
        result = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return result.result(TIMEOUT)
        except CancelledError:
            raise StoreUnavailable("the engine has stopped") from None
        except TimeoutError:
            if result.done():  # it is what was run that has raised it
                raise
            result.cancel()  # without a waiter its message stays where it is
            raise StoreUnavailable(f"no answer within {TIMEOUT:g} s") from None
        except BaseException:
            result.cancel()  # without a waiter its message stays where it is
            raise

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call something in the loop, after what was given before."""
        self._calls.append((function, arguments))
        self._signal(self._drain)

    def settle(self, received: Received, how: Settlement) -> None:
        """Settle a delivery, together with others of these milliseconds."""
        if how is acknowledge:
            self._calls.append((acknowledge, (received,)))
        else:
            self._calls.append((self._settle, (received, how)))
        if not self._gathering:
            self._gathering = True
            self._signal(self._drain_soon)

    def _signal(self, function: Callable[[], Any]) -> None:
        if not self.ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the leases are others' by now
                self.loop.call_soon_threadsafe(function)

    # In the loop.

    def _drain_soon(self) -> None:
        self.loop.call_later(GATHER_AHEAD if self._is_fast else GATHER, self._drain_settled)

    def _drain_settled(self) -> None:
        """Settle the gathered deliveries. While consumers work fast this runs again by itself, because each wake-up
        costs both threads a switch of the interpreter."""
        gathered = bool(self._calls)
        self._drain()
        self._gathering = False  # cleared before reading: later items signal again
        if (gathered and self._is_fast) or self._calls:
            self._gathering = True
            self._drain_soon()

    @property
    def _is_fast(self) -> bool:
        """Whether consumers have messages ahead, so that they do not wait for what is settled."""
        return any(channel.ahead for channel in self._channels)

    def _drain(self) -> None:
        done: list[Received] = []
        while self._calls:
            function, arguments = self._calls.popleft()
            if function is acknowledge:
                done += arguments
                continue
            if done:
                self._carry_out(self._acknowledge, done)
                done = []
            self._carry_out(function, *arguments)
        if done:
            self._carry_out(self._acknowledge, done)

    def _carry_out(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception:  # a failure costs only these requests
            logger.exception("%s failed in the engine's thread", getattr(function, "__qualname__", function))

    def _drain_here(self) -> None:
        """Do everything requested so far."""

        async def drain() -> None:
            self._drain()

        with contextlib.suppress(TimeoutError):
            self.run(drain())

    def _acknowledge(self, done: list[Received]) -> None:
        """Acknowledge deliveries, those of one queue together."""
        together: dict[tuple[QueueConsumer, PrefetchedQueue], list[int]] = defaultdict(list)
        for received in done:
            together[received.consumer, received.buffer].append(received.push.tag)
        for (consumer, buffer), tags in together.items():
            try:
                buffer.deliveries.ack_many(sorted(tags))
            finally:
                consumer.settled(buffer, tags)

    def _settle(self, received: Received, how: Settlement) -> None:
        try:
            how(received.buffer.deliveries, received.push.tag)
        finally:
            self._returning = self.engine.settling
            received.consumer.settled(received.buffer, (received.push.tag,))

    # For channels.

    def channel(self, receive: Callable[[list[Received]], None], lost: Callable[[], None]) -> ChannelConsumer:
        """The source of messages for a channel's consumers; `lost` is called when there are no more."""
        channel = ChannelConsumer(self.loop, receive, self.settle, lost, self._paced)
        self._channels.add(channel)
        return channel

    def _paced(self) -> None:
        """Claim more at a time for channels that work fast."""
        self.engine.set_prefetch(READ_AHEAD + sum(channel.ahead for channel in self._channels))

    def forget(self, channel: ChannelConsumer) -> None:
        """The channel is closed."""
        self._channels.discard(channel)
        self._idle_since = time.monotonic()

    def consume(self, channel: ChannelConsumer, consumer: QueueConsumer) -> None:
        """Begin to consume. Raises QueueNotFound or StoreUnavailable."""

        async def begin() -> None:
            channel.add(consumer, await self._queue(consumer.queue))

        self.run(begin())

    def get(self, consumer: QueueConsumer) -> Received | None:
        """The next message of a queue, or None when there is none: what was stored or given back before is seen. Of a
        queue with a single active consumer nothing is got.

        Raises QueueNotFound or StoreUnavailable.
        """

        async def take() -> Received | None:
            self._drain()
            await self._returned()
            buffer = await self._queue(consumer.queue)
            buffer.dispatcher()  # what was got and is not settled takes no room in memory
            if not buffer.ready:  # what was stored a moment ago may not have been announced yet
                buffer.prefetch.more_in_store(FIRST)
            delivery = buffer.deliver(time.monotonic())
            while delivery is None and buffer.may_refill_for(None) and not buffer.closed:
                await _refill(buffer)
                delivery = buffer.deliver(time.monotonic())
            if delivery is None:
                return None
            tag, payload, attempts, detail = delivery
            return Received(consumer, buffer, Push(tag, 0, payload, attempts, detail))

        return self.run(take())

    async def _queue(self, name: str) -> PrefetchedQueue:
        """A queue's buffer. When the database was away, the engine is given a moment to find it again."""
        deadline = time.monotonic() + COMING_BACK
        while not self.engine.available and time.monotonic() < deadline:  # noqa: ASYNC110 - it has no such event
            await asyncio.sleep(0.02)
        return await self.engine.queue(name)

    async def _returned(self) -> None:
        """Wait until what was given back before is in the store."""
        progress = WriteSignal()
        self.engine.hold(progress)
        try:
            while self.engine.settles(self._returning):
                self.engine.hurry_settling()
                await progress.next()
        finally:
            self.engine.unhold(progress)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for channel in tuple(self._channels):
                for consumer in channel.closed():
                    await self._reattach(channel, consumer)
            if not self._channels and time.monotonic() - self._idle_since > IDLE:
                self._idle_since = time.monotonic()  # another channel may take it first: try again
                threading.Thread(target=stop_idle, args=(self,), name="fivewire stop", daemon=True).start()

    async def _reattach(self, channel: ChannelConsumer, consumer: QueueConsumer) -> None:
        try:
            channel.reattach(consumer, await self.engine.queue(consumer.queue))
        except EngineError:  # there is no such queue yet, or the database is away
            return
        except Exception:
            logger.exception("consumers of the queue %r do not get the messages of the new one", consumer.queue)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @property
    def idle(self) -> bool:
        return not self._channels


async def _refill(buffer: PrefetchedQueue) -> None:
    """Wait for a claim that begins now, or is under way, to come back."""
    refilled = asyncio.Event()
    buffer.prefetch.on_refill(refilled.set)
    buffer.prefetch.want()
    await refilled.wait()


_threads: dict[str, EngineThread] = {}
_lock = threading.Lock()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent process may have held it
    _threads.clear()


os.register_at_fork(after_in_child=_in_child)


def open_channel(
    conninfo: str, receive: Callable[[list[Received]], None], lost: Callable[[], None], name: str
) -> tuple[EngineThread, ChannelConsumer]:
    """A channel of this process' engine for a database, started if need be. Raises what `Engine.start` does.

    `lost` is called, in any thread, when the engine's thread has ended unasked. `name` says in the list of nodes what
    runs the engine.
    """
    with _lock:
        thread = _threads.get(conninfo)
        if thread is None or thread.ended:
            thread = EngineThread(conninfo, name)
            thread.start()
            _threads[conninfo] = thread
        return thread, thread.channel(receive, lost)


def stop_idle(thread: EngineThread) -> None:
    """Stop an engine without users."""
    with _lock:
        if thread.idle:
            thread.stop()


@atexit.register
def stop_all() -> None:
    """Stop every engine of this process."""
    with _lock:
        while _threads:
            _threads.popitem()[1].stop()
