"""`up` as a process, and waiting for the end of processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

Ports = dict[str, int]


class Up:
    """A running `up`, and what it has printed."""

    def __init__(
        self, command: Sequence[str], directory: Path, ports: Ports, *options: str, **environment: str
    ) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        addresses = [text for name, port in ports.items() for text in (f"--{name}", f"127.0.0.1:{port}")]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*command, "up", *addresses, *options],
            cwd=directory,
            env=environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words: str) -> str:
        """Read lines until one has ``words``; the test's own time limit bounds the wait."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if words in line:
                return self.lines[-1]
        raise AssertionError(f"{words!r} is not in what up printed:\n" + "\n".join(self.lines))

    def wait_until_ready(self) -> None:
        """Read to the line `ready`; fail with all that was printed if up ends before it."""
        while self.read_until("ready") != "ready":
            pass

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code, once it has ended."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=60)
        self.lines += rest.splitlines()
        return self.process.returncode


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not, whichever process has to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two looks
        return True
