"""`up` as a process."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.process import Process

Ports = dict[str, int]


class Up(Process):
    """A running `up`."""

    patience = 250.0  # it starts half a dozen programs

    def __init__(
        self, command: Sequence[str], directory: Path, ports: Ports, *options: str, **environment: str
    ) -> None:
        addresses = [text for name, port in ports.items() for text in (f"--{name}", f"127.0.0.1:{port}")]
        super().__init__(
            *command, "up", *addresses, *options,
            cwd=directory, environment={"DATABASE_URL": None, **environment}, merged=True,
        )  # fmt: skip

    def wait_ready(self) -> Self:
        """Take lines up to `ready`. Raises AssertionError when it ends before."""
        while self.read_until("ready") != "ready":
            pass
        return self

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, unless it has ended, and wait for the end; the exit status."""
        return super().stop(number)
