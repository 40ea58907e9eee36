"""Celery's own features over Fivewire's store, with real workers, one of which is killed::

    python -m tests.rigs.celery_smoke --dsn postgresql://user@host/database [--tasks 10000]

The database must be Fivewire's, and one for this purpose: results and archived tasks stay in it. Two
workers (prefork, acks_late) run what one producer sends, all kinds mixed: plain calls, groups, chains, chords,
retries and tasks with a countdown or an ETA, after some that are revoked. In the middle of it one worker is killed
with kill -9, its children too, while it runs a task, and another one takes its place. Each task notes in a file what
it did. In the end every effect must be there, none of a revoked task, each chord's callback once and with the right
sum; every result must say so, and the queues must be empty. Prints a table; exits with 1 if anything is wrong.

The worker that is killed does not consume the chords' queue: a task of a header that runs twice, as any may whose
worker is killed between its end and its acknowledgement, is counted twice by the chords of django-db, on any broker.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from brokersite.rigs.process import ProcessFailed, RigProcess
from queues.processes import childprocess

if TYPE_CHECKING:
    from tests.rigs.celery_smoke.plan import Effect, SmokePlan

QUEUES = "smoke", "smoke-chords", "smoke-hold"
#: Seconds without any progress after which it is given up.
PATIENCE = 60.0
#: The part of the effects after which a worker is killed.
KILL = 0.3


class WorkerProcess(RigProcess):
    """`celery worker`, two children; it ends with this process."""

    def __init__(self, name: str, queues: tuple[str, ...]) -> None:
        command = childprocess.command(
            "celery", "-A", "tests.rigs.celery_smoke.app", "worker",
            "-l", "info", "-c", "2", "-n", f"{name}@smoke", "-Q", ",".join(queues),
        )  # fmt: skip
        log = pathlib.Path(os.environ["SMOKE_DIRECTORY"]) / f"{name}.log"
        super().__init__(f"the worker {name}", command, log, os.environ)

    def wait_ready(self) -> None:
        """Raises ProcessFailed."""
        self.wait_for(" ready\\.")


class Smoke:
    """One run on a database."""

    def __init__(self, database: psycopg.Connection[Any], plan: SmokePlan) -> None:
        self._database = database
        self._plan = plan
        self._known = self._results()
        self._workers: list[WorkerProcess] = []
        #: Failures beside effects.
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def worker(self, name: str, *queues: str) -> Iterator[WorkerProcess]:
        """A worker that is ended, in the end, and must not complain."""
        worker = WorkerProcess(name, queues)
        try:
            worker.wait_ready()
            yield worker
        except BaseException:
            worker.kill()
            raise
        if worker.stop() != 0:
            self.wrong.append(f"the worker {name} did not end in order when it was told to")

    def run(self) -> None:
        """Send everything, kill a worker, and wait for the end. Raises TimeoutError."""
        main, chords, hold = QUEUES
        victim = WorkerProcess("victim", (main, hold))
        try:
            with self.worker("steady", main, chords):
                victim.wait_ready()
                self._plan.send_revoked(2)
                self._wait(lambda: not any(self.held()))  # the successor would not know of them
                sending = self._plan.send()
                self._send_until(sending, KILL)
                self._wait(lambda: self._happened() >= KILL and ("begun", 0, "-") in _effects())
                victim.kill()
                with self.worker("successor", *QUEUES):
                    self._send_until(sending, 2.0)
                    (pathlib.Path(os.environ["SMOKE_DIRECTORY"]) / "release").touch()
                    self._wait(lambda: self._happened() >= 1 and not any(self.held()))
        finally:
            victim.kill()

    def _send_until(self, sending: Iterator[None], part: float) -> None:
        """Send until that part of the effects has happened, or all is sent."""
        for number, _ in enumerate(sending):
            if number % 50 == 0 and self._happened() >= part:
                return

    def _happened(self) -> float:
        """The part of the effects that has happened."""
        return len(self._plan.expected & _effects().keys()) / len(self._plan.expected)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait as long as there is progress."""
        before, deadline = None, 0.0
        while not condition():
            now = (_effects().total(), self._results(), self.held())
            if now != before:
                before, deadline = now, time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                missing = sorted(self._plan.expected - _effects().keys())
                raise TimeoutError(f"nothing happens any more; in the queues: {self.held()}; missing: {missing[:10]}")
            time.sleep(0.2)

    def held(self) -> tuple[int, ...]:
        """The number of messages in the queues: ready, leased, delayed, dead."""
        [row] = self._database.execute(
            "select sum(ready), sum(leased), sum(delayed), sum(dead) from queues_queue q, queues_held(q.id)"
            " where q.name = any(%s)",
            [list(QUEUES)],
        ).fetchall()
        return tuple(int(count or 0) for count in row)

    def _results(self) -> Counter[str]:
        """The number of results of each status."""
        query = "select status, count(*) from django_celery_results_taskresult group by status"
        return Counter(dict(self._database.execute(query).fetchall()))

    def verdict(self) -> bool:
        """Print what happened; whether all is right."""
        seen = _effects()
        expected = self._plan.expected
        print(f"{'kind':10}{'expected':>10}{'happened':>10}{'again':>10}{'missing':>10}{'wrong':>10}")
        for kind in sorted({kind for kind, _, _ in expected | seen.keys()} - {"begun"} | {"revoked"}):
            print(f"{kind:10}" + "".join(f"{number:10,}" for number in _row(kind, expected, seen)))
        wrong = [effect for effect in seen if effect not in expected and effect[0] != "begun"]
        twice = [effect for effect, times in seen.items() if effect[0] == "total" and times > 1]
        results = self._results() - self._known
        right = Counter(SUCCESS=self._plan.tasks, REVOKED=self._plan.revoked)
        print(f"results: {dict(results)}; in the queues: {self.held()}; the killed worker's task begun:"
              f" {seen['begun', 0, '-']} times")  # fmt: skip
        if results != right:
            self.wrong.append(f"the results should be {dict(right)}")
        if seen["begun", 0, "-"] != 2:
            self.wrong.append("the task that the killed worker ran was not begun twice")
        self.wrong += [f"effects {what}: {sorted(them)[:10]}" for what, them in (
            ("missing", expected - seen.keys()), ("that should not be", wrong), ("of chords twice", twice)
        ) if them]  # fmt: skip
        for line in self.wrong:
            print(f"WRONG: {line}")
        return not self.wrong


def _row(kind: str, expected: set[Effect], seen: Counter[Effect]) -> tuple[int, int, int, int, int]:
    own = {effect for effect in expected if effect[0] == kind}
    happened = {effect: times for effect, times in seen.items() if effect[0] == kind}
    again = sum(happened.values()) - len(happened)
    return len(own), len(happened), again, len(own - happened.keys()), len(happened.keys() - own)


def _effects() -> Counter[Effect]:
    from tests.rigs.celery_smoke.plan import effects

    return effects()


def run(dsn: str, tasks: int) -> bool:
    """Run so many tasks on a database; whether all is right."""
    import django

    django.setup()
    from tests.rigs.celery_smoke.plan import SmokePlan

    with psycopg.connect(dsn, autocommit=True) as database:
        smoke = Smoke(database, SmokePlan(tasks))
        if any(smoke.held()):
            raise SystemExit(f"the queues {', '.join(QUEUES)} are not empty: purge them in the admin")
        began = time.monotonic()
        try:
            smoke.run()
        except (TimeoutError, ProcessFailed) as error:
            smoke.wrong.append(str(error))
        print(f"{tasks:,} tasks in {time.monotonic() - began:.0f} s")
        return smoke.verdict()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.rigs.celery_smoke", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dsn", required=True, help="the database")
    parser.add_argument("--tasks", type=int, default=10_000, help="number of tasks, at least 100; default 10000")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="celery-smoke-") as scratch:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "brokersite.settings",
            "DATABASE_URL": "postgresql://" + arguments.dsn.partition("://")[2],
            "DATA_DIR": scratch,
            "SMOKE_BROKER": "fivewire://" + arguments.dsn.partition("://")[2],
            "SMOKE_DIRECTORY": scratch,
        }
        sys.exit(not run(arguments.dsn, max(100, arguments.tasks)))


if __name__ == "__main__":
    main()
