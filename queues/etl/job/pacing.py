"""A job leaves the processors alone for a part of the time while others want most of them.

Low priority does not do it. A job that takes each moment in which the broker waits for the disk makes it wait for a
processor afterwards, and that costs a broker at full pace a sixth of what it moves.

``python -m queues.etl.job.pacing PARENT PERCENT BUSY FLOOR`` paces the processes that its parent has started, until
that ends. The parent cannot do it: killed while they are stopped, it would leave them so, with what they hold of the
database. When the parent has ended without ending it, it ends all that the parent has left of its session.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import psutil

from queues.etl.job.family import descendants, kill
from queues.processes.processors import BUSY, usage

#: Seconds of a turn, in part of which a paced job works; seconds between two looks at other processes' use.
TURN = 0.1
LOOK = 1.0
#: Share of the machine's processor time that a job always gets, so that no load starves it.
FLOOR = 0.25


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop these processes while the context lasts."""
    with ExitStack() as stack:
        for process in processes:
            stack.callback(_go_on, process)  # before the stop: a signal may come between the two
            with suppress(psutil.Error):
                process.suspend()
        yield


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.resume()


def pace(parent: int, percent: int, busy: float, floor: float) -> None:
    """Pace a process's descendants to `percent` of the time while others use the share `busy` and they have used the
    share `floor`. Returns when the process and the standard input have ended."""
    begun, pauses, family, session = False, False, descendants(parent), os.getsid(0)
    before, turns = usage(family), 0
    while os.getppid() == parent:
        if not pauses:
            time.sleep(TURN)
        else:
            time.sleep(TURN * percent / 100)
            with stopped(family):
                time.sleep(TURN * (100 - percent) / 100)
        turns += 1
        if turns * TURN >= LOOK:
            now = usage(family)
            begun = begun or bool(select.select([sys.stdin], [], [], 0)[0])
            wanted = now.share_of_others(before) >= busy and now.own_share(before) >= floor
            pauses = begun and percent < 100 and wanted
            family = descendants(parent)
            before, turns = usage(family), 0
    if session == parent:  # a session that the job does not lead is not the job's own
        kill(session, family)


def others_are_busy(busy: float = BUSY, seconds: float = 0.5) -> bool:
    """Measure for a moment whether processes outside this family use most of the machine."""
    family = [psutil.Process(), *descendants(os.getpid())]
    before = usage(family)
    time.sleep(seconds)
    return usage(family).share_of_others(before) >= busy


@contextmanager
def paced(percent: int, busy: float = BUSY, floor: float = FLOOR) -> Iterator[Callable[[], None]]:
    """End child processes with this process, however it ends. The given function starts pacing them until the context
    ends."""
    words = [str(os.getpid()), str(percent), str(busy), str(floor)]
    pacer = subprocess.Popen([sys.executable, "-m", __spec__.name, *words], stdin=subprocess.PIPE)
    threading.Thread(target=_outlive, args=(pacer,), name="outlive-pacer", daemon=True).start()
    assert pacer.stdin is not None
    try:
        yield pacer.stdin.close
    finally:
        pacer.terminate()
        pacer.wait()
        pacer.stdin.close()


def _outlive(pacer: subprocess.Popen[bytes]) -> None:
    """Continue processes that a killed pacer has stopped."""
    pacer.wait()
    for process in descendants(os.getpid()):
        _go_on(process)


def main() -> None:
    parent, percent, busy, floor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    pace(parent, percent, busy, floor)


if __name__ == "__main__":
    main()
