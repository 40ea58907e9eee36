"""`manage.py` as a process of its own, with pipes to talk through."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

from brokersite.environment import CHECKOUT

#: These commands need no database.
ENVIRONMENT = {**os.environ, "DATABASE_URL": "postgresql://localhost/none", "PYTHONWARNINGS": "ignore"}


def command(*arguments: str) -> list[str]:
    """The command line of `manage.py` with these arguments."""
    return [sys.executable, str(CHECKOUT / "manage.py"), *arguments]


class Manage:
    """A command at work."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=ENVIRONMENT | environment, cwd=CHECKOUT,
        )  # fmt: skip

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def line(self) -> bytes:
        """The next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def finish(self) -> tuple[int, bytes, str]:
        """Close its input: the exit status, the rest of the output, what it has said on standard error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err.decode()
