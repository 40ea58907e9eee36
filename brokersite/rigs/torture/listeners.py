"""Listener processes: `manage.py runwire` as our children."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brokersite.rigs.process import HOST, ProcessFailed, RigProcess, free_ports
from brokersite.rigs.torture.database import TortureDatabase
from queues.processes import childprocess

#: The module that runs management commands.
BROKER = "brokersite"
STOP_TIMEOUT = 15.0
#: Settings of a run: the number in flight is known, slow machines cause no redelivery, and tables take turns often.
PREFETCH = 500
SETTINGS = {
    "BROKER_PREFETCH": str(PREFETCH),
    "BROKER_BLIPMQ_RETRY_BACKOFF": "30",
    "BROKER_ROTATION_SECONDS": "1",
    "PYTHONFAULTHANDLER": "1",
}


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
        self._process: RigProcess | None = None

    @property
    def log(self) -> Path:
        """The output of its processes."""
        return self._database.data_dir / f"listener-{self.number}.log"

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        command = childprocess.command(*self._program, *self._options)
        environment = self._database.environment(**SETTINGS)
        self._process = RigProcess(f"listener {self.number}", command, self.log, environment)

    @property
    def process(self) -> RigProcess:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    def wait_until_ready(self) -> None:
        """Return when it accepts. Raises ProcessFailed."""
        self.process.wait_for("^ready$")

    def stop(self) -> None:
        """SIGTERM, and wait for its end. Raises ProcessFailed when that takes too long or is no good end."""
        if (status := self.process.stop(STOP_TIMEOUT)) != 0:
            raise ProcessFailed(f"listener {self.number} stopped with status {status}, or not in {STOP_TIMEOUT:.0f} s")

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
