"""The cost of many queues, on a scratch database, by one engine in this process::

    python -m tests.rigs.many_queues --queues 20000

Printed are: the time to make one more queue (a subscription by the engine, a queue by an operator); the rates of a
first and of a second message to each; how fast consumers of all of them get these; the share of a processor that they
cost while nothing happens. CPU is that of this process and of the sessions of the database.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import django
import psutil
import psycopg

from queues.engine.api import (
    Delivery,
    Destination,
    Engine,
    EngineError,
    PrefetchedQueue,
    Waiter,
    options_from_settings,
    spare_garbage_collector,
)
from queues.processes.processors import seconds_of

DATABASE: Final = "fivewire_many_queues"
#: Queues that are made one after the other to see what one costs.
MADE: Final = 40
#: Publishes that are handed over before other work has a turn, as a session of one connection does.
TURN: Final = 500
MAKE: Final = """
    insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout)
    select 'many-' || n, gen_random_uuid(), 5, '1 s', '60 s' from generate_series(%s::int, %s::int) n
"""
#: What the messages have left: engines fold it into the counts, and truncate it, within three turns.
LEFT: Final = "select (select count(*) from queues_queuetally) + (select count(*) from queues_segmentsettlement)"


class Measured:
    """Seconds and seconds of CPU of a part of the run."""

    def __init__(self, database: psycopg.Connection[Any]) -> None:
        self._database = database
        self.seconds = self.here = self.server = 0.0

    @contextmanager
    def part(self) -> Iterator[None]:
        """Measure what is done inside."""
        sessions = [psutil.Process(pid) for (pid,) in self._pids()]
        began, here, server = time.monotonic(), time.process_time(), seconds_of(sessions)
        yield
        self.seconds, self.here = time.monotonic() - began, time.process_time() - here
        self.server = seconds_of(sessions) - server

    def _pids(self) -> list[tuple[int]]:
        sql = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        return self._database.execute(sql).fetchall()

    def rate(self, what: str, count: int) -> None:
        """Print how many of something a second."""
        here, server = 1e6 * self.here / count, 1e6 * self.server / count
        print(f"{what:34} {count / self.seconds:9,.0f}/s   CPU {here:6.1f} µs here, {server:6.1f} µs in the database")


class StrictProducer:
    """Publishes, and fails if anything is refused."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._committed = asyncio.Event()
        engine.hold(self)

    def publish_failed(self, token: int, error: EngineError) -> None:
        """A message was refused."""
        raise SystemExit(f"message {token} was refused: {error}")

    def release(self) -> None:
        """Something was committed."""
        self._committed.set()

    async def to_each(self, count: int) -> None:
        """A message to each queue; returns when all are committed."""
        batch = 0
        for n in range(count):
            publisher = self._engine.publisher(Destination("queue", b"many-%d" % n))
            batch = publisher.publish(b"x" * 100, self, n)
            if n % TURN == TURN - 1:
                await asyncio.sleep(0)
        while self._engine.holds(batch):
            self._committed.clear()
            await self._committed.wait()


class QueueDrain(Waiter):
    """Waits for messages of one queue and acknowledges each."""

    def __init__(self, queue: PrefetchedQueue, taken: Callable[[], None]) -> None:
        super().__init__(key=None)
        self._queue, self._taken = queue, taken
        queue.wait(self)

    def deliver(self, delivery: Delivery) -> None:
        """A message came: acknowledge it, and wait for the next."""
        self._queue.deliveries.ack(delivery[0])
        self._taken()
        self._queue.wait(self)

    def refuse(self) -> None:
        """The queue is gone."""


async def _made(name: str, make: Callable[[int], Any]) -> None:
    """Print what making one costs."""
    times = []
    for n in range(MADE):
        began = time.monotonic()
        await make(n)
        times.append(1000 * (time.monotonic() - began))
    print(f"{name:34} {statistics.median(times):9.2f} ms  ({min(times):.2f} to {max(times):.2f})")


async def measure(count: int, idle: float) -> None:
    """Measure, and print a line for each figure."""
    from queues.operations.queues import create_queue

    options = dataclasses.replace(options_from_settings("many queues"), take_sample=None)
    engine = Engine(options)
    await engine.start()
    with psycopg.connect(options.conninfo, autocommit=True) as database:
        for first in range(0, count, 1000):
            database.execute(MAKE, (first, min(first + 1000, count) - 1))
        database.execute("analyze")
        measured, producer = Measured(database), StrictProducer(engine)
        for ordinal in ("first", "second"):
            with measured.part():
                await producer.to_each(count)
            measured.rate(f"{ordinal} message to each", count)
        await _made("making one: a subscription", lambda n: engine.subscriptions.create(b"topic-%d" % n, 1, None))
        await _made("making one: by an operator", lambda n: asyncio.to_thread(create_queue, f"new-{n}"))
        left, drained = 2 * count, asyncio.Event()

        def taken() -> None:
            nonlocal left
            left -= 1
            if not left:
                drained.set()

        with measured.part():
            for n in range(count):
                QueueDrain(await engine.queue(f"many-{n}"), taken)
            await drained.wait()
        measured.rate("consumers get and settle these", 2 * count)
        left = count
        drained.clear()
        with measured.part():
            await producer.to_each(count)
            await drained.wait()
        measured.rate("third message to each, consumed", count)
        while database.execute(LEFT).fetchone() != (0,):
            await asyncio.sleep(0.5)
        with measured.part():
            await asyncio.sleep(idle)
        here, server = (100 * spent / measured.seconds for spent in (measured.here, measured.server))
        parts = f"({here:.1f} here, {server:.1f} in the database)"
        print(f"{'idle with consumers of all':34} {here + server:9.1f} %   {parts}")
    await engine.stop()


def main() -> None:
    """Measure on a scratch database."""
    parser = argparse.ArgumentParser(description="Measure what many queues cost.")
    parser.add_argument("--queues", type=int, default=20_000, help="number of queues; default: %(default)s")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of which idle CPU is taken")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from django.db import DEFAULT_DB_ALIAS, connections

    from brokersite.rigs.etl.scratch import scratch_database

    spare_garbage_collector()  # as listeners do
    with scratch_database(DATABASE) as alias:
        connections[DEFAULT_DB_ALIAS].settings_dict["NAME"] = alias  # for this process, which ends with it
        asyncio.run(measure(given.queues, given.idle))


if __name__ == "__main__":
    main()
