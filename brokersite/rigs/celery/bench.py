"""Celery on Fivewire's store and on RabbitMQ, side by side in one run::

    python -m brokersite.rigs.celery.bench --dsn postgresql://user@host/database --amqp amqp://guest:guest@127.0.0.1//

The database must be Fivewire's; its queue ``celery`` is used. Without ``--amqp`` a RabbitMQ of this run's own is
started on loopback if it is installed. Each round runs the systems one after the other, in turns: a worker with
default settings (prefork) is started, and producers call ``delay()`` as fast as they can. Three rates are measured:
calls, tasks done from the first call to the last task, and tasks done from a backlog. Both brokers are measured with
the transport option ``confirm_publish`` off, when ``delay()`` does not wait for the disk (RabbitMQ's default), and on,
when a task is on disk as soon as ``delay()`` returns (Fivewire's default). Every task is counted; one that is lost or
ran twice is printed and makes the exit status 1. Only ratios mean anything on a noisy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from brokersite.rigs.celery.bench_rabbitmq import private_rabbitmq

BYTES = 9  # of a task in the file
TEXT = "x" * 64
PATIENCE = 180.0
PACES = ("calls", "through", "backlog")


class System:
    """A broker, and what was measured with it."""

    def __init__(self, name: str, broker: str, confirm: bool, scratch: pathlib.Path) -> None:
        self.name = f"{name}, {'confirms' if confirm else 'no confirms'}"
        self.confirm = confirm
        self.broker = broker
        self.scratch = scratch
        self.rates: dict[str, list[float]] = {pace: [] for pace in PACES}
        self.wrong = 0
        self._runs = 0

    def measure(self, count: int, producers: int, options: list[str]) -> None:
        """One round."""
        for backlog in (False, True):
            self._runs += 1
            ran = self.scratch / f"{self.name.replace(', ', '-').replace(' ', '-')}-{self._runs}"
            ran.touch()
            environment = os.environ | {
                "BENCH_BROKER": self.broker, "BENCH_CONFIRM": "on" if self.confirm else "off", "BENCH_RAN": str(ran),
            }  # fmt: skip
            if backlog:
                _publish(count, producers, environment)
                with _worker(options, environment):
                    self.rates["backlog"].append(_pace(ran, count))
            else:
                with _worker(options, environment):
                    _publish(100, 1, environment)
                    _wait(ran, 100)
                    began = time.monotonic()
                    self.rates["calls"].append(count / _publish(count, producers, environment))
                    _wait(ran, count + 100)
                    self.rates["through"].append(count / (time.monotonic() - began))
            self.wrong += _wrong(ran, count + (0 if backlog else 100), count)


@contextlib.contextmanager
def _worker(options: list[str], environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "brokersite.rigs.celery.bench_app", "worker"]
    command += ["-l", "warning", *options]
    log = pathlib.Path(environment["BENCH_RAN"] + ".log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the worker ended:\n{log.read_text()}")
    finally:
        process.terminate()
        process.wait(30)


def _publish(count: int, producers: int, environment: dict[str, str]) -> float:
    """Call `delay` so often, by several processes; returns the seconds that the slowest took."""
    share = count // producers
    running = []
    for number in range(producers):
        first, last = number * share, count if number == producers - 1 else (number + 1) * share
        code = (
            "import time; from brokersite.rigs.celery.bench_app import ran\n"
            "ran.app.pool.acquire().release()\n"
            "begin = time.monotonic()\n"
            f"for number in range({first}, {last}): ran.delay(number, {TEXT!r})\n"
            "print(time.monotonic() - begin)"
        )
        command = [sys.executable, "-c", code]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("publishing failed")
    return max(float(text.split()[-1]) for text in said)


def _wait(ran: pathlib.Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while ran.stat().st_size < count * BYTES:
        if time.monotonic() > deadline:
            raise SystemExit(f"after {PATIENCE:g} s {ran.stat().st_size // BYTES} of {count} tasks have run")
        time.sleep(0.002)


def _pace(ran: pathlib.Path, count: int) -> float:
    """Tasks a second, from when a tenth is done: until then the worker starts."""
    _wait(ran, count // 10)
    done, began = ran.stat().st_size // BYTES, time.monotonic()
    _wait(ran, count)
    return (count - done) / (time.monotonic() - began)


def _wrong(ran: pathlib.Path, tasks: int, numbers: int) -> int:
    """The number of tasks that are missing, or there too often."""
    lines = ran.read_bytes().split()
    return abs(len(lines) - tasks) + numbers - len(set(lines))


def _report(systems: list[System]) -> None:
    print(f"{'':26}" + "".join(f"{pace + ' /s':>14}{'ratio':>8}" for pace in PACES) + f"{'wrong':>8}")
    for system in systems:
        first = next(other for other in systems if other.confirm == system.confirm)
        cells = ""
        for pace in PACES:
            ratios = [a / b for a, b in zip(first.rates[pace], system.rates[pace], strict=True)]
            cells += f"{statistics.median(system.rates[pace]):14,.0f}{statistics.median(ratios):8.2f}"
        print(f"{system.name:26}{cells}{system.wrong:8}")
    print("ratio: Fivewire with the same promise / this one, the median of the rounds'")


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m brokersite.rigs.celery.bench", description=__doc__)
    parser.add_argument("--dsn", required=True, help="the database")
    parser.add_argument("--amqp", help="a RabbitMQ to compare with")
    parser.add_argument("--count", type=int, default=10_000, help="tasks in each measurement; default 10000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--producers", type=int, default=1, help="processes that call delay(); default 1")
    parser.add_argument("--worker", default="", help="more options for `celery worker`, for example '-c 4'")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-bench-")))
        brokers = {"fivewire": "fivewire://" + arguments.dsn.partition("://")[2]}
        if (amqp := arguments.amqp or stack.enter_context(private_rabbitmq(scratch))) is not None:
            brokers["rabbitmq"] = amqp
        systems = [
            System(name, broker, confirm, scratch) for confirm in (False, True) for name, broker in brokers.items()
        ]
        for round in range(arguments.rounds):
            for system in systems if round % 2 == 0 else reversed(systems):
                system.measure(arguments.count, arguments.producers, arguments.worker.split())
                rates = {pace: int(measured[-1]) for pace, measured in system.rates.items()}
                print(round + 1, system.name, rates, flush=True)
    _report(systems)
    sys.exit(any(system.wrong for system in systems))


if __name__ == "__main__":
    main()
