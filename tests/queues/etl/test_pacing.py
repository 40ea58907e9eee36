"""A job's share of the processors; it never stands still for good."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from queues.etl.job.pacing import LOOK
from tests.process import Process, has_ended
from tests.waiting import wait_until

PATIENCE = 30.0

#: A job, whose work is a process that spins. It says its number, and ends when it reads a line.
JOB = """
import subprocess, sys
from queues.etl.job.pacing import paced
work = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.DEVNULL)
with paced(int(sys.argv[2]), float(sys.argv[1]), float(sys.argv[3])) as pace:
    pace()
    print(work.pid, flush=True)
    sys.stdin.readline()
print("ended", flush=True)
work.wait()
"""


@dataclass
class Paced:
    job: Process
    work: psutil.Process

    @property
    def pacer(self) -> psutil.Process:
        return next(one for one in psutil.Process(self.job.process.pid).children() if one != self.work)

    @property
    def stands_still(self) -> bool:
        return self.work.status() == psutil.STATUS_STOPPED

    def kill(self, process: psutil.Process) -> None:
        """Kill it at a moment when the work stands still."""
        while True:
            wait_until(lambda: self.stands_still)
            process.suspend()  # so that it cannot have the work go on meanwhile, if it is the pacer
            if self.stands_still:
                break
            process.resume()
        process.kill()
        process.wait()


def goes_on(work: psutil.Process) -> None:
    """It does not stand still, and is not stopped again."""
    wait_until(lambda: work.status() != psutil.STATUS_STOPPED)
    until = monotonic() + 0.5
    while monotonic() < until:
        assert work.status() != psutil.STATUS_STOPPED
        sleep(0.002)


@contextmanager
def running(busy: float, percent: int = 40, floor: float = 0.0) -> Iterator[Paced]:
    job = Process(sys.executable, "-c", JOB, str(busy), str(percent), str(floor), group=True)
    work = psutil.Process(int(job.next_line()))
    try:
        yield Paced(job, work)
    finally:
        with suppress(psutil.NoSuchProcess):
            work.kill()
        job.end()


def test_a_job_stands_still_and_goes_on_in_turns_while_others_want_the_processors() -> None:
    with running(busy=0.0) as paced:
        for _ in range(5):
            wait_until(lambda: paced.stands_still)
            wait_until(lambda: not paced.stands_still)
        paced.job.tell(b"\n")
        assert paced.job.next_line() == "ended"
        goes_on(paced.work)


@pytest.mark.parametrize("given", [{"busy": 1.1}, {"busy": 0.0, "floor": 1.1}])
def test_a_job_works_all_the_time_while_the_processors_are_free_or_it_has_less_than_its_share(given: Any) -> None:
    with running(**given) as paced:
        until = monotonic() + 2.5 * LOOK
        while monotonic() < until:
            assert not paced.stands_still
            sleep(0.002)


@pytest.mark.parametrize("percent", [40, 100])
def test_a_job_that_is_killed_takes_its_processes_along_paced_or_not(percent: int) -> None:
    with running(busy=0.0, percent=percent) as paced:
        pacer = paced.pacer
        if percent < 100:
            paced.kill(psutil.Process(paced.job.process.pid))
        else:
            psutil.Process(paced.job.process.pid).kill()
        wait_until(lambda: has_ended(pacer))
        wait_until(lambda: has_ended(paced.work))


def test_a_job_goes_on_whose_pacer_was_killed() -> None:
    with running(busy=0.0) as paced:
        paced.kill(paced.pacer)
        goes_on(paced.work)
        assert paced.job.alive


def test_a_paced_job_can_be_ended() -> None:
    with running(busy=0.0) as paced:
        pacer = paced.pacer
        wait_until(lambda: paced.stands_still)
        os.killpg(paced.job.process.pid, signal.SIGTERM)
        wait_until(lambda: has_ended(pacer))
        wait_until(lambda: has_ended(paced.work))
