"""A job leaves the processors alone for a part of the time while others want most of them.

Low priority does not do it. A job that takes each moment in which the broker waits for the disk makes it wait for a
processor afterwards, and that costs a broker at full pace a sixth of what it moves.

``python -m queues.etl.job.pacing PERCENT BUSY`` paces the processes that its parent has started, until that ends. The
parent cannot do it: killed while they are stopped, it would leave them so, with what they hold of the database.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import psutil

from queues.processors import BUSY, usage

#: Seconds of a turn, of which a paced job works a part; and between two looks at what others use.
TURN = 0.1
LOOK = 1.0


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop these processes while the context lasts."""
    with ExitStack() as stack:
        for process in processes:
            stack.callback(_go_on, process)  # first: a signal may come between the two
            with suppress(psutil.Error):
                process.suspend()
        yield


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.resume()


def pace(parent: int, percent: int, busy: float) -> None:
    """Have what a process has started work so much of the time while others use this share, until it ends."""
    pauses, family = False, _family(parent)
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
            pauses = now.share_of_others(before) >= busy
            family = _family(parent)
            before, turns = usage(family), 0


def _family(parent: int) -> list[psutil.Process]:
    """All that a process has started but this one."""
    try:
        return [one for one in psutil.Process(parent).children(recursive=True) if one.pid != os.getpid()]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def paced(percent: int, busy: float = BUSY) -> Iterator[None]:
    """Child processes are paced while the context lasts."""
    if percent >= 100:
        yield
        return
    pacer = subprocess.Popen([sys.executable, "-m", __spec__.name, str(percent), str(busy)], stdin=subprocess.DEVNULL)
    threading.Thread(target=_outlive, args=(pacer,), name="outlive-pacer", daemon=True).start()
    try:
        yield
    finally:
        pacer.terminate()
        pacer.wait()


def _outlive(pacer: subprocess.Popen[bytes]) -> None:
    """Continue processes that a killed pacer has stopped."""
    pacer.wait()
    for process in _family(os.getpid()):
        _go_on(process)


def main() -> None:
    parent = os.getppid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    pace(parent, int(sys.argv[1]), float(sys.argv[2]))


if __name__ == "__main__":
    main()
