"""Celery on Fivewire's store and on RabbitMQ, side by side: what `manage.py bench celery` measures.

In each round a worker with default settings (prefork) is started, and producers call ``delay()`` as fast as they can.
Three rates are measured: calls, tasks done from the first call to the last task, and tasks done from a backlog. Brokers
are measured with the transport option ``confirm_publish`` off, when ``delay()`` does not wait for the disk (RabbitMQ's
default), and on, when a task is on disk as soon as ``delay()`` returns (Fivewire's default). Every task is counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from celery import Celery
from django.db import connection

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import Figures
from brokersite.rigs.bench.servers import private_rabbitmq
from brokersite.rigs.bench.stream import Login
from brokersite.rigs.bench.systems import named_apart
from brokersite.rigs.process import RigProcess
from queues.database.parameters import engine_parameters
from queues.engine.api import QueueNotFound
from queues.operations.queues import delete_queue
from queues.processes import childprocess

APP = "brokersite.rigs.celery.bench_app"
#: Bytes that a task leaves in the file.
BYTES = 9
TIMEOUT = 180.0
#: Tasks that show that a worker works, before a measurement.
WARM_UP = 100


class CelerySystem:
    """A broker with one promise; `against` is the name of Fivewire with the same."""

    def __init__(self, name: str, broker: str, confirm: bool, queue: str, scratch: Path) -> None:
        promise = "confirms" if confirm else "no confirms"
        self.name = f"{name}, {promise}"
        self.against = f"Fivewire, {promise}"
        self.confirm = confirm
        self._broker = broker
        self._queue = queue
        self._scratch = scratch
        self._runs = 0

    def measure(
        self, count: int, producers: int, options: Sequence[str], halves: Sequence[bool] = (False, True)
    ) -> Figures:
        """One round: a half without a backlog and a half with one. Raises BenchError."""
        figures: Figures = {"messages": len(halves) * count, "lost": 0, "duplicates": 0}
        for backlog in halves:
            self._runs += 1
            ran = self._scratch / "-".join([*re.findall(r"\w+", self.name), str(self._runs)])
            ran.touch()
            environment = os.environ | {
                "BENCH_BROKER": self._broker, "BENCH_CONFIRM": "on" if self.confirm else "off", "BENCH_RAN": str(ran),
                "BENCH_QUEUE": self._queue,
            }  # fmt: skip
            if backlog:
                _publish(count, producers, environment)
                with _worker(options, environment):
                    figures["backlog_per_s"] = pace(ran, count)
                    _wait_idle(self._broker)
            else:
                with _worker(options, environment):
                    _publish(WARM_UP, 1, environment)
                    _wait(ran, WARM_UP)
                    began, ended = _publish(count, producers, environment)
                    figures["calls_per_s"] = count / (ended - began)
                    _wait(ran, count + WARM_UP)
                    figures["through_per_s"] = count / (time.monotonic() - began)
                    _wait_idle(self._broker)
            lost, duplicates = faults(ran, count)
            figures["lost"] += lost
            figures["duplicates"] += max(0, duplicates - (0 if backlog else WARM_UP))
        return figures


def open_systems(stack: contextlib.ExitStack, compare: Sequence[str], scratch: Path) -> list[CelerySystem]:
    """Fivewire's store, and what it is compared with: `rabbitmq`, one of the benchmark's own, or `rabbitmq=amqp://…`.

    Its queue has a name of its own, and is removed when the stack ends. Raises BenchError.
    """
    queue = f"bench-{secrets.token_hex(5)}"
    parameters = urlencode(engine_parameters(), quote_via=quote)
    brokers = [("Fivewire", f"fivewire:///?{parameters}")]
    stack.callback(_remove, queue)
    for words in compare:
        kind, _, url = words.partition("=")
        if kind != "rabbitmq":
            raise BenchError(f"Celery can be compared with rabbitmq, not with {kind!r}.")
        if not url:
            server = stack.enter_context(private_rabbitmq(scratch))
            brokers.append(("RabbitMQ", f"amqp://guest:guest@127.0.0.1:{server.port}//"))
        else:
            stack.callback(_remove_elsewhere, url, queue)
            brokers.append((f"RabbitMQ at {Login.from_url(url, 5672)}", url))
    names = named_apart(name for name, _ in brokers)
    return [
        CelerySystem(name, url, confirm, queue, scratch)
        for confirm in (True, False) for name, (_, url) in zip(names, brokers, strict=True)
    ]  # fmt: skip


def _remove(queue: str) -> None:
    """Remove the queue with its tasks, and what Celery has bound to it."""
    with contextlib.suppress(QueueNotFound):
        delete_queue(queue, force=True)
    with connection.cursor() as cursor:
        cursor.execute("delete from queues_kombubinding where exchange = %s", [queue])


def _remove_elsewhere(url: str, queue: str) -> None:
    from kombu.connection import Connection

    with Connection(url) as broker:
        channel = broker.channel()
        channel.queue_delete(queue)
        channel.exchange_delete(queue)


@contextlib.contextmanager
def _worker(options: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    command = childprocess.command("celery", "-A", APP, "worker", "-l", "warning", "-Q", environment["BENCH_QUEUE"])
    log = Path(environment["BENCH_RAN"] + ".log")
    with RigProcess("the worker", [*command, *options], log, environment) as worker:
        yield
        worker.check()


def _publish(count: int, producers: int, environment: dict[str, str]) -> tuple[float, float]:
    """Call `delay` so often, by several processes; returns when the first call began and the last one ended, in seconds
    of the monotonic clock."""
    share = count // producers
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(producers):
            first, last = number * share, count if number == producers - 1 else (number + 1) * share
            command = childprocess.command(APP, str(first), str(last))
            log = Path(f"{environment['BENCH_RAN']}-producer-{number}.log")
            running.append(stack.enter_context(RigProcess("a producer", command, log, environment)))
        if any([process.wait() for process in running]):
            raise BenchError("publishing failed:\n" + "".join(process.output for process in running))
        began, ended = zip(*(map(float, process.output.split()[-2:]) for process in running), strict=True)
        return min(began), max(ended)


def _wait(ran: Path, count: int) -> tuple[float, int]:
    """Wait until so many tasks have run; returns the time of the last look at which they had not, and how many had."""
    looked, before = time.monotonic(), 0
    deadline = looked + TIMEOUT
    while (done := ran.stat().st_size // BYTES) < count:
        looked, before = time.monotonic(), done
        if looked > deadline:
            raise BenchError(f"after {TIMEOUT:g} s {done} of {count} tasks have run")
        time.sleep(0.002)
    return looked, before


def _wait_idle(broker: str) -> None:
    """Wait until the worker knows that its tasks are done. One that is told to stop forgets those whose acceptance it
    has not read yet (`AsynPool.flush`), though they run: over any broker they would be delivered again."""
    with Celery("bench", broker=broker) as app:
        inspect = app.control.inspect(limit=1, timeout=TIMEOUT)
        while any(any((ask() or {}).values()) for ask in (inspect.reserved, inspect.active)):
            time.sleep(0.02)


def faults(ran: Path, count: int) -> tuple[int, int]:
    """How many of the tasks from 0 to `count` have not run, and how many ran more than once or are others."""
    lines = [int(line) for line in ran.read_bytes().split()]
    lost = count - len({number for number in lines if number < count})
    return lost, len(lines) - count + lost


def pace(ran: Path, count: int) -> float:
    """Tasks a second, from just before a tenth is done: until then the worker starts."""
    began, done = _wait(ran, count // 10)
    _wait(ran, count)
    return (count - done) / (time.monotonic() - began)
