"""Threads that run blocking calls for an event loop, and can be left behind.

The executors of `concurrent.futures` are joined when the interpreter exits, so a handler that never returns keeps
its process from ending, long after its job was given back. These threads are daemons.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `limit` threads, started as they are needed. All methods are for the event loop's thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._started = 0
        self._waiting = 0
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread, in the context of the caller, and return or raise what it does.

        A BaseException that is none of this thread's own, such as SystemExit, is raised as RuntimeError. A cancelled
        caller leaves the function running if it has begun.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()

        def run() -> None:
            result, error = None, None
            try:
                if not outcome.cancelled():
                    result = context.run(function, *args)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: the result is not needed any more
                loop.call_soon_threadsafe(self._settle, outcome, (result, error))

        self._waiting += 1
        if self._waiting > self._started and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._work, name=f"overhop-worker-{self._started}", daemon=True).start()
        self._calls.put(run)
        value, error = await outcome
        if error is None:
            return value  # type: ignore[return-value]
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"{type(error).__name__} in a thread: {error}") from error

    def close(self) -> None:
        """Let the threads end, each when its call has returned."""
        for _ in range(self._started):
            self._calls.put(None)

    def _settle(self, outcome: asyncio.Future[Any], value: tuple[Any, BaseException | None]) -> None:
        self._waiting -= 1
        if not outcome.done():
            outcome.set_result(value)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
