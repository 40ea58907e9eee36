"""The child processes of rigs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TextIO, TypeVar

T = TypeVar("T")

HOST: Final = "127.0.0.1"
#: Above the ports of embedded servers. Below what the system hands out to clients, so that no connection takes one.
PORTS: Final = range(30_000, 32_768)
#: Seconds that a process has to start, and to end when asked to.
START: Final = 120.0
STOP: Final = 60.0
#: Seconds between two looks at a process that starts.
LOOK: Final = 0.02
#: Characters of the output that an error repeats.
TAIL: Final = 800


class ProcessFailed(Exception):
    """A process did not start, or ended by itself; the message says which one, and the end of its output."""


class RigProcess:
    """A program in a session of its own; `log` is what it prints. As a context it ends with the context.

    A Python program also ends when this process is killed, if its command is of
    :func:`queues.processes.childprocess.command`.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._begin = log.stat().st_size if log.exists() else 0
        self._ended = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=cwd, env=environment, bufsize=0, start_new_session=True,
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """The text that it has printed."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")

    def check(self) -> None:
        """Raise ProcessFailed if it has ended."""
        if self.status is not None:
            raise self._failure(f"ended with status {self.status}")

    def wait_until(self, found: Callable[[], T]) -> T:
        """Wait for something that comes true when it has started. Raises ProcessFailed."""
        deadline = time.monotonic() + START
        while not (result := found()):
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(f"is not ready after {START:.0f} s")
            time.sleep(LOOK)
        return result

    def wait_for(self, pattern: str) -> str:
        """Wait until it prints a line with this pattern; the match. Raises ProcessFailed."""
        found = self.wait_until(lambda: re.search(pattern, self.output, re.MULTILINE))
        assert found is not None
        return found[0]

    def wait_listening(self, port: int) -> None:
        """Wait until it accepts connections on a port of HOST. Raises ProcessFailed."""
        self.wait_until(lambda: _accepts(port))

    def tell(self, line: str) -> None:
        """Write a line to its standard input. Raises ProcessFailed if it has ended."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end; its exit status. Raises ProcessFailed when it does not end in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(f"has not ended after {seconds} s") from None

    def stop(self, seconds: float = STOP) -> int:
        """Send SIGTERM and wait for its end; its exit status. By force after so many seconds."""
        self._process.terminate()
        with contextlib.suppress(ProcessFailed):
            self.wait(seconds)
        return self.kill()

    def kill(self) -> int:
        """kill -9 it and all of its group that is left; its exit status."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._process.wait()

    def _failure(self, what: str) -> ProcessFailed:
        return ProcessFailed(f"{self.name} {what}; its log ends with: {self.output[-TAIL:].strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Ports of HOST on which nothing listens.

    All processes of a user take turns through PORTS: a port is given again only after all others.
    """
    with _turn() as turn:
        first, found = int(turn.read() or 0), []
        for n in range(first, first + len(PORTS)):
            port = PORTS[n % len(PORTS)]
            with contextlib.suppress(OSError), socket.create_server((HOST, port)):
                found.append(port)
            if len(found) == count:
                turn.seek(0)
                turn.truncate()
                turn.write(f"{(n + 1) % len(PORTS)}\n")
                return found
    raise OSError(f"no {count} ports from {PORTS.start} to {PORTS.stop - 1} are free")


@contextlib.contextmanager
def _turn() -> Iterator[TextIO]:
    """The file that says whose turn it is, locked."""
    path = Path(tempfile.gettempdir(), f"fivewire-ports-{os.getuid()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield turn


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
