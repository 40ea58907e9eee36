"""Runs a program of `manage.py bench clients`: ``python -m brokersite.rigs.clients.program PRODUCT ROLE JSON``.

It prints `ready` when it is set up, and in the end what it measured, as JSON in a line.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import psutil

from brokersite.rigs.bench.columns import WIDTH, numbers, positions

#: Messages, one in flight, that are not counted.
_WARM_ALONE: Final = 20
#: Seconds that idle consumers are watched.
_WATCHED: Final = 3.0


@dataclass
class Work:
    """What a program has to do: `count` messages of `size` bytes, confirmed in windows of `window`, or by `tasks` at
    once. `at` is where its queue is. The numbers of what it consumes are left in the file `column`."""

    at: dict[str, Any]
    run: int
    count: int
    size: int
    window: int
    tasks: int
    prefetch: int
    consumers: int
    column: str
    began: float = 0.0
    cpu: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Say that all is set up: the measurement begins."""
        print("ready", flush=True)
        self.cpu, self.began = time.process_time(), time.monotonic()

    def windows(self) -> Iterator[list[bytes]]:
        """The bodies of the messages, by windows."""
        padding = b"x" * (self.size - WIDTH)
        for first in range(0, self.count, self.window):
            column = numbers(self.run, 0, first, min(self.window, self.count - first))
            yield [column[at : at + WIDTH] + padding for at in range(0, len(column), WIDTH)]

    def bodies(self) -> Iterator[bytes]:
        """The bodies of the messages one by one, from an iterator that tasks may share."""
        return (body for window in self.windows() for body in window)

    @property
    def end(self) -> int:
        """Bytes of the column of all messages, if none is repeated."""
        return WIDTH * self.count

    def is_complete(self, column: bytearray) -> bool:
        """Whether each message has come, repetitions aside; what has come is left in the file then."""
        if len(set(positions(column))) < self.count:
            return False
        Path(self.column).write_bytes(column)
        return True

    async def in_tasks(self, publish: Callable[[bytes], Awaitable[object]]) -> None:
        """Publish all messages by concurrent tasks. Each awaits the confirm of its message."""
        bodies = self.bodies()

        async def loop() -> None:
            for body in bodies:
                await publish(body)

        self.begin()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.tasks):
                group.create_task(loop())

    async def one_by_one(self, publish: Callable[[bytes], Awaitable[object]], consumer: Awaitable[object]) -> None:
        """Publish one message after the other, each when the one before has come to the consumer's handler, which
        sets `arrived`."""
        handling = asyncio.ensure_future(consumer)
        confirmed, delivered = [], []
        self.begin()
        for body in self.bodies():
            self.arrived.clear()
            sent = time.perf_counter()
            handled = asyncio.create_task(self._handled())
            await publish(body)
            confirmed.append(time.perf_counter() - sent)
            delivered.append(await handled - sent)
        handling.cancel()
        await asyncio.wait((handling,))
        self.figures["confirm_p50_us"] = 1e6 * statistics.median(confirmed[_WARM_ALONE:] or confirmed)
        self.figures["deliver_p50_us"] = 1e6 * statistics.median(delivered[_WARM_ALONE:] or delivered)

    async def _handled(self) -> float:
        await self.arrived.wait()
        return time.perf_counter()

    async def watch_idle(self) -> None:
        """Consumers wait for messages that do not come."""
        self.begin()
        await asyncio.sleep(_WATCHED)

    def result(self) -> dict[str, float]:
        """What is measured of any program."""
        ended = time.monotonic()
        cpu = time.process_time() - self.cpu
        memory = psutil.Process().memory_info().rss  # `ru_maxrss` would be that of the command, which began this
        return {"began": self.began, "ended": ended, "cpu": cpu, "memory": memory} | self.figures


def main() -> None:
    product, role, work = sys.argv[1], sys.argv[2], Work(**json.loads(sys.argv[3]))
    module = import_module(f"brokersite.rigs.clients.{product}")
    program = getattr(module, role)
    if inspect.iscoroutinefunction(program):
        asyncio.run(program(work))
    else:
        program(work)
    print(json.dumps(work.result()), flush=True)


if __name__ == "__main__":
    main()
