"""`manage.py` as a process of its own, without a database."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from brokersite.environment import CHECKOUT
from tests.process import Process

if TYPE_CHECKING:
    from mcp import Client

#: These commands need no database.
ENVIRONMENT = {**os.environ, "DATABASE_URL": "postgresql://localhost/none", "PYTHONWARNINGS": "ignore"}


def command(*arguments: str) -> list[str]:
    """The command line of `manage.py` with these arguments."""
    return [sys.executable, str(CHECKOUT / "manage.py"), *arguments]


def manage(*arguments: str) -> Process:
    """Start a command, without warnings."""
    environment = {"DATABASE_URL": ENVIRONMENT["DATABASE_URL"]}
    return Process(sys.executable, "-W", "ignore", "manage.py", *arguments, environment=environment)


def model_host(url: str, *, token: str, name: str, secret: str) -> Client:
    """The client's side of a `peermcp` that it starts."""
    from mcp import Client, StdioServerParameters, stdio_client  # half a second, which few processes of pytest need

    program, *rest = command("peermcp", "--url", url, "--token", token, "--name", name, "--secret", secret)
    return Client(stdio_client(StdioServerParameters(command=program, args=rest, env=ENVIRONMENT)))
