"""`manage.py` as a process of its own, without a database."""

from __future__ import annotations

import os
import sys

from brokersite.environment import CHECKOUT
from tests.process import Process

#: These commands need no database.
ENVIRONMENT = {**os.environ, "DATABASE_URL": "postgresql://localhost/none", "PYTHONWARNINGS": "ignore"}


def command(*arguments: str) -> list[str]:
    """The command line of `manage.py` with these arguments."""
    return [sys.executable, str(CHECKOUT / "manage.py"), *arguments]


def manage(*arguments: str) -> Process:
    """Start a command, without warnings."""
    environment = {"DATABASE_URL": ENVIRONMENT["DATABASE_URL"]}
    return Process(sys.executable, "-W", "ignore", "manage.py", *arguments, environment=environment)
