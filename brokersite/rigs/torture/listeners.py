"""Listener processes: `manage.py runwire` as our children."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from brokersite.rigs.torture.database import TortureDatabase
from queues import childprocess

HOST = "127.0.0.1"
#: The module that runs management commands.
BROKER = "brokersite"
#: Below what the system hands out to clients, so that no connection of a client connects to itself.
PORTS = range(30_000, 32_000)
START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0
#: Settings of a run: the number in flight is known, and slow machines cause no redelivery.
PREFETCH = 500
SETTINGS = {
    "BROKER_PREFETCH": str(PREFETCH),
    "BROKER_BLIPMQ_RETRY_BACKOFF": "30",
    "PYTHONFAULTHANDLER": "1",
}


class ListenerFailed(Exception):
    """A listener process ended by itself, or did not start or stop in time."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nothing listens."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ListenerFailed(f"no {count} ports from {PORTS.start} to {PORTS.stop - 1} are free")


class ListenerProcess:
    """One listener on ports of its own, started again and again. `program` is another build of the broker."""

    def __init__(self, number: int, database: TortureDatabase, queue: str, program: Sequence[str] = ()) -> None:
        self.number = number
        self.blipmq, self.sspq = free_ports(2)
        self._database = database
        self._program = list(program) or [BROKER]
        self._options = [
            "runwire",
            "--overhop", "off", "--blipmq", f"{HOST}:{self.blipmq}",
            "--sspq", f"{HOST}:{self.sspq}", "--sspq-queue", queue,
        ]  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()

    @property
    def log(self) -> Path:
        """The output of its processes."""
        return self._database.data_dir / f"listener-{self.number}.log"

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        self._ready = threading.Event()
        # Tied to us: when we are killed it stops by itself.
        command = childprocess.command(*self._program, *self._options)
        with open(self.log, "a") as log:
            process = self._process = subprocess.Popen(
                command, env=self._database.environment(**SETTINGS),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        threading.Thread(target=_watch, args=(process, self._ready), daemon=True).start()

    def wait_until_ready(self) -> None:
        """Return when it accepts. Raises ListenerFailed."""
        if not self._ready.wait(START_TIMEOUT):
            raise ListenerFailed(f"listener {self.number} is not ready after {START_TIMEOUT:.0f} s")
        self.check()

    def check(self) -> None:
        """Raise ListenerFailed if it has ended without being asked to."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ListenerFailed(f"listener {self.number} ended by itself with status {code}")

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for its end. Raises ListenerFailed when that takes too long or is no good end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ListenerFailed(f"listener {self.number} did not stop in {STOP_TIMEOUT:.0f} s") from None
        if code != 0:
            raise ListenerFailed(f"listener {self.number} stopped with status {code}")

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _watch(process: subprocess.Popen[str], ready: threading.Event) -> None:
    """Note the line "ready"; the end of the output wakes who waits, too."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line == "ready\n":
                ready.set()
    process.wait()
    ready.set()
