"""Several listener processes that share their ports: started, watched and stopped by one parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from queues.backoff import Backoff, even
from queues.processes import childprocess
from wire.net.process_group import Place

#: Waits before a child that keeps dying is started again.
RESTART = Backoff(0.5, 30.0, even)
#: A child that has lived this long starts again without a pause.
LIVED = 10.0
#: Seconds between two looks at the children.
LOOK = 0.2
#: Seconds that the children have beyond their drain timeout.
GRACE = 2.0


class StartFailed(Exception):
    """A process could not start at all, and said why itself; starting it again would not help."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a process ended with status {status} before it was ready")
        self.status = status


class Child:
    """One process: this same command line with --processes 1."""

    def __init__(self, place: Place, say: Callable[[str], None], ready: Callable[[int], None]) -> None:
        self.number = place.number
        self.delays = RESTART.delays()
        self.start_at = 0.0
        self.started = 0.0
        self.process: subprocess.Popen[str] | None = None
        self.was_ready = False
        #: Whether the process that runs now is ready.
        self.is_ready = False
        self._place = place
        self._say = say
        self._ready = ready

    def start(self) -> None:
        command = childprocess.command(childprocess.own_program(), *child_arguments(sys.argv[1:], self._place))
        self.started, self.is_ready = time.monotonic(), False
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._relay, args=(self.process,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.rstrip("\n")
                if text == "ready":
                    self.was_ready = self.is_ready = True
                    self._ready(self.number)
                else:
                    self._say(f"[{self.number}] {text}")

    def pass_on(self, number: int) -> None:
        """Give it a signal that this process got, once it can take it; until then it reads all files anyway."""
        if self.process is not None and self.is_ready:
            self.process.send_signal(number)

    def watch(self) -> None:
        """Start again when it has died, after a pause that grows while it keeps dying. Raises StartFailed."""
        now = time.monotonic()
        if self.process is not None and (status := self.process.poll()) is not None:
            if status > 0 and not self.was_ready:
                raise StartFailed(status)
            self._say(f"process {self.number} ended with status {self.process.returncode}; starting it again")
            self.process = None
            if now - self.started > LIVED:
                self.delays = RESTART.delays()
            else:
                self.start_at = now + next(self.delays)
        if self.process is None and now >= self.start_at:
            self.start()


def run_processes(count: int, drain_timeout: float, say: Callable[[str], None]) -> int:
    """Run until SIGTERM or SIGINT, then stop them all; returns the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    waiting = set(range(count))
    lock = threading.Lock()  # each child's lines are read by a thread

    def say_one(line: str) -> None:
        with lock:
            say(line)

    def ready(number: int) -> None:
        with lock:
            if number in waiting:
                waiting.discard(number)
                if not waiting:
                    say("ready")

    exit_status = 0
    with tempfile.TemporaryDirectory(prefix="fivewire-", ignore_cleanup_errors=True) as directory:
        children = [Child(Place(Path(directory), number, count), say_one, ready) for number in range(count)]

        def renew(number: int, frame: FrameType | None) -> None:
            for child in children:
                child.pass_on(number)

        signal.signal(signal.SIGHUP, renew)
        try:
            while not stop.is_set():
                for child in children:
                    child.watch()
                stop.wait(LOOK)
        except StartFailed as error:
            exit_status = error.status
        _stop([child.process for child in children if child.process is not None], drain_timeout + GRACE)
    return exit_status


def _stop(processes: list[subprocess.Popen[str]], timeout: float) -> None:
    """Ask them all to end, and after `timeout` seconds end those that have not."""
    for process in processes:
        process.send_signal(signal.SIGTERM)  # does nothing to one that has ended
    deadline = time.monotonic() + timeout
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def child_arguments(arguments: list[str], place: Place) -> list[str]:
    """The command line of a child, from its parent's: one process that shares its ports with others.

    Of an option given twice the last one counts, also where the first was abbreviated.
    """
    return [*arguments, "--processes", "1", "--share-ports", str(place.directory), str(place.number), str(place.count)]
