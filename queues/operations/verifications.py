"""Verifications started by the site. Each has its own process, so that neither a request nor a peer waits for it.

Such a process holds a lock in the database and says there how far it has come, in the name of its session: so every
process of the site sees it, and when it dies nothing of it is left.
``python -m queues.operations.verifications CHAIN`` is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import django
import psycopg
from django.db import DEFAULT_DB_ALIAS

from queues.config.settings import child_environment
from queues.database.parameters import primary_parameters
from queues.processes import childprocess
from queues.store.queries import query

if TYPE_CHECKING:
    from queues.audit.verify import VerificationProgress

#: The first key of the lock; the second is the chain's id.
LOCK = 74661
SESSION = "fivewire verify"
#: Seconds between two reports of progress.
SAY_EVERY = 0.25
#: Niceness: a verification gets the processor time that the broker leaves.
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Running:
    """The progress of a verification: rows found right, and rows in all. Both 0: it has just begun."""

    done: int = 0
    total: int = 0

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0


class Verifier:
    """Starts verifications and lists the running ones: its own at once, others' when they have begun."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._started: dict[int, subprocess.Popen[str]] = {}
        self._failures: dict[int, str] = {}

    def start(self, chain: int, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Begin to verify the chain with this id; False when that is under way. Raises OSError."""
        with self._guard:
            if chain in self.running(using):
                return False
            self._failures.pop(chain, None)
            process = self._started[chain] = _launch(chain, using)
        name = f"verify chain {chain}"
        threading.Thread(target=self._await_end, args=(chain, process), name=name, daemon=True).start()
        return True

    def running(self, using: str = DEFAULT_DB_ALIAS) -> dict[int, Running]:
        """The verifications that run, by chain."""
        return dict.fromkeys(tuple(self._started), Running()) | said(using)

    def failure(self, chain: int) -> str:
        """The error of this process's last verification; empty after a success."""
        return self._failures.get(chain, "")

    def _await_end(self, chain: int, process: subprocess.Popen[str]) -> None:
        """Wait for the end."""
        _, errors = process.communicate()
        if process.returncode:
            lines = errors.strip().splitlines()
            self._failures[chain] = lines[-1] if lines else f"It ended with status {process.returncode}."
        del self._started[chain]


#: The site's one.
verifier = Verifier()


def said(using: str = DEFAULT_DB_ALIAS) -> dict[int, Running]:
    """The progress of all running verifications, by chain."""
    found = {}
    for (name,) in query("audit_verifying", using):
        chain, done, total = (int(word) for word in name.removeprefix(SESSION).split())
        found[chain] = Running(done, total)
    return found


def _launch(chain: int, using: str) -> subprocess.Popen[str]:
    """Start a process that ends with this one, with the same modules and settings, on the same database."""
    return subprocess.Popen(
        childprocess.command("queues.operations.verifications", str(chain)),
        env=child_environment(using), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


# The process that verifies.


def run(chain: int) -> None:
    """Verify the chain with this id, unless that is under way. Raises what `queues.audit.verify.verify` does."""
    from queues.audit.verify import VerificationProgress, verify
    from queues.models import AuditChain

    name = AuditChain.objects.values_list("name", flat=True).get(pk=chain)
    with psycopg.connect(**primary_parameters(), autocommit=True) as connection:
        row = connection.execute("select pg_try_advisory_lock(%s, %s)", (LOCK, chain)).fetchone()
        if row is not None and row[0]:
            report = reporter(connection, chain)
            report(VerificationProgress(0, 0))
            verify(name, progress=report)


def reporter(connection: psycopg.Connection[tuple[object, ...]], chain: int) -> Callable[[VerificationProgress], None]:
    """A function that writes the progress into the session's name, at most every `SAY_EVERY` seconds."""
    last = 0.0

    def report(progress: VerificationProgress) -> None:
        nonlocal last
        if monotonic() - last >= SAY_EVERY:
            name = f"{SESSION} {chain} {progress.done} {progress.total}"
            connection.execute("select set_config('application_name', %s, false)", (name,))
            last = monotonic()

    return report


def main() -> None:
    """Verify the chain that the arguments name by its id. Exit status 1, with the reason: it could not be done."""
    os.nice(NICENESS)
    django.setup()
    try:
        run(int(sys.argv[1]))
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
