"""The row of a run while the run lasts: progress, heartbeats, cancellation, the end."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import psycopg
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, OperationalError, connections
from django.db.models.functions import Now

from queues.audit.errors import AuditError
from queues.audit.verify import VerificationProgress
from queues.config.settings import settings
from queues.etl.errors import EtlError, TimedOut
from queues.etl.job.chains import ChainVerification
from queues.etl.options import RunOptions, config_for
from queues.etl.verdict import figures, sentences, verify_chains
from queues.models import EtlRun, EtlState

logger = logging.getLogger(__name__)
#: The least seconds between two heartbeats of a run.
HEARTBEAT = 1.0
#: Seconds that the end of a run waits for the database to come back.
TIMEOUT = 300.0
AWAY = (OperationalError, InterfaceError)


class Cancelled(Exception):
    """An operator has asked the run to end."""


def this_process() -> tuple[str, int]:
    """The host and the pid of this process."""
    return socket.gethostname(), os.getpid()


class RunSupervisor:
    """Writes the row of a running run. While the database is away the run goes on; its progress is written later."""

    def __init__(self, run: EtlRun, using: str = DEFAULT_DB_ALIAS) -> None:
        self.run = run
        self.using = using
        self.options = RunOptions.load(run.options)
        #: Receives the progress, too.
        self.show: Callable[[str, int, int], None] | None = None
        self._progress: tuple[str, int, int] | None = None
        self._waiting: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._written = 0.0
        self._started = monotonic()

    @classmethod
    def take(cls, run_id: int, using: str = DEFAULT_DB_ALIAS) -> Self | None:
        """Take over a queued run. None: the run is not queued."""
        host, pid = this_process()
        taken = EtlRun.objects.using(using).filter(pk=run_id, state=EtlState.QUEUED).update(
            state=EtlState.RUNNING, started_at=Now(), heartbeat_at=Now(), host=host, pid=pid
        )  # fmt: skip
        return cls(EtlRun.objects.using(using).get(pk=run_id), using) if taken else None

    def config_text(self, progress: Path) -> str:
        """The job's configuration."""
        return config_for(self.run.pk, self.run.output, self.options, progress, self.using).text()

    def take_line(self, line: dict[str, Any]) -> None:
        """A line of the job's progress."""
        if "stage" in line:
            self._note(line["stage"], line["done"], line["total"])
        if "warning" in line:
            self._warnings.append(line["warning"])
            self.set(warnings=self._warnings)

    def _note(self, stage: str, done: int, total: int) -> None:
        self.set(stage=stage, done=done, total=total)
        self._progress = (stage, done, total)
        self._show()

    def _show(self) -> None:
        if self.show is not None and self._progress is not None:
            self.show(*self._progress)

    def set(self, **fields: Any) -> None:
        """Have fields of the row written with its next heartbeat."""
        self._waiting |= fields

    def look(self) -> None:
        """Do the periodic work while the job runs. Raises TimedOut or Cancelled."""
        if monotonic() - self._started > settings.BROKER_ETL_TIMEOUT:
            raise TimedOut
        self._show()
        self.write_progress()

    def write_progress(self) -> None:
        """Write progress and heartbeat, at most every `HEARTBEAT` seconds. Raises Cancelled."""
        if monotonic() - self._written < HEARTBEAT:
            return
        self._written = monotonic()
        try:
            rows = EtlRun.objects.using(self.using).filter(pk=self.run.pk, state=EtlState.RUNNING)
            there = rows.update(**self._waiting, heartbeat_at=Now())
            self._waiting = {}
            if not there or rows.filter(cancelling=True).exists():
                raise Cancelled
        except AWAY as error:
            logger.warning("the database is away: %s", " ".join(str(error).split()))
            connections[self.using].close()

    # The end

    def conclude(self, outcome: dict[str, Any]) -> None:
        """Write the job's end. After a success, verify the audit chains first. Raises Cancelled."""
        if "error" in outcome:
            return self.end(EtlState.FAILED, error=outcome["error"])
        result = outcome["result"]
        tables = result["tables"].values()
        self.set(
            number=result["number"], window_from=result["window_from"], window_to=result["window_to"],
            late_rows=result["late_rows"], rows_in=sum(table["rows_in"] for table in tables),
            rows_out=sum(table["rows_out"] for table in tables), bytes=sum(table["bytes"] for table in tables),
        )  # fmt: skip
        proven = [ChainVerification(**one) for one in result.pop("proven")]
        started = monotonic()
        if self.options.verify == "all":
            try:
                result["audit"] = self._verify(proven)
            except (AuditError, OSError, EtlError, DatabaseError, psycopg.Error) as error:
                self._warnings.append(f"The audit chains could not be verified: {error}")
        result["seconds"]["verifying"] += round(monotonic() - started, 3)
        self.end(EtlState.SUCCEEDED, figures=result, warnings=self._warnings)
        return None

    def _verify(self, proven: list[ChainVerification]) -> dict[str, Any]:
        outcomes = verify_chains(proven, self._verified, self.using)
        self._warnings += sentences(outcomes)
        return figures(outcomes)

    def _verified(self, progress: VerificationProgress) -> None:
        self._note("verifying", progress.done, progress.total)
        self.write_progress()

    def end(self, state: EtlState, **fields: Any) -> None:
        """Write the end as soon as the database is there. Raises OperationalError when it does not come back."""
        values = {**self._waiting, **fields, "state": state, "ended_at": Now(), "heartbeat_at": Now()}
        rows = EtlRun.objects.using(self.using).filter(pk=self.run.pk, state=EtlState.RUNNING)
        deadline = monotonic() + TIMEOUT
        while True:
            try:
                rows.update(**values)
                return
            except AWAY:
                connections[self.using].close()
                if monotonic() > deadline:
                    raise
                sleep(1.0)
