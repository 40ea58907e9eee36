"""The life of runs: start, cancel, and find those lost with their supervising process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import psutil
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections, transaction
from django.db.models.functions import Now

from queues.config import extras
from queues.config.settings import child_environment
from queues.etl import runner
from queues.etl.errors import NoSpark, NoSuchRun, NotRunning, OutputBusy
from queues.etl.options import RunOptions, default_output
from queues.etl.run_supervisor import TIMEOUT, this_process
from queues.models import EtlRun, EtlState
from queues.models.etl import UNFINISHED
from queues.models.moment import aware

__all__ = ["cancel", "create", "get", "recover", "run", "start"]

#: Time without a sign of life after which a run on another host is lost, and a queued run without a worker.
SILENCE = timedelta(seconds=120)
UNTAKEN = timedelta(hours=1)
#: Seconds that the database's clock may be behind this host's.
SKEW = 60.0
#: Time after which a process of this host that goes on, but gives no sign of life, does other things: a Celery worker
#: outlives its tasks, and has waited for the database as long as the end of a run does.
GIVEN_UP = timedelta(seconds=2 * TIMEOUT + 120)


def create(
    options: RunOptions | None = None, *, trigger: str = "shell", output: str | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> EtlRun:  # fmt: skip
    """Create a queued run, which `run` or another process takes. Raises OutputBusy, InvalidOptions, NoSpark."""
    if problem := extras.problem("etl"):
        raise NoSpark(problem)
    recover(using)
    where = output or default_output()
    try:
        with transaction.atomic(using):
            return EtlRun.objects.using(using).create(
                trigger=trigger, output=where, options=(options or RunOptions()).dump()
            )
    except IntegrityError as error:
        busy = EtlRun.objects.using(using).filter(output=where, state__in=UNFINISHED).first()
        raise OutputBusy(f"run {busy.pk} into {where}" if busy else where) from error


def run(made: EtlRun, show: Callable[[str, int, int], None] | None = None) -> EtlRun:
    """Run a queued run to its end in this process; returns the ended run. `show` gets the stage, the rows done and the
    expected rows."""
    runner.supervise(made.pk, show)
    made.refresh_from_db()
    return made


def start(options: RunOptions, trigger: str = "shell", using: str = DEFAULT_DB_ALIAS) -> EtlRun:
    """Start a run that outlives this process. Raises what `create` does, and OSError."""
    made = create(options, trigger=trigger, using=using)
    queued = EtlRun.objects.using(using).filter(pk=made.pk, state=EtlState.QUEUED)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "queues.etl.runner", str(made.pk)],
            env=child_environment(using, "SPARK_MASTER", "BROKER_ETL_TIMEOUT", "BROKER_ETL_READERS"),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        queued.update(state=EtlState.FAILED, ended_at=Now(), error=f"No process could be started: {error}")
        raise
    threading.Thread(target=process.wait, name=f"ETL run {made.pk}", daemon=True).start()
    queued.update(host=this_process()[0], pid=process.pid)
    return made


def get(run_id: int, using: str = DEFAULT_DB_ALIAS) -> EtlRun:
    """A run by its number. Raises NoSuchRun."""
    found = EtlRun.objects.using(using).filter(pk=run_id).first()
    if found is None:
        raise NoSuchRun(str(run_id))
    return found


def cancel(run_id: int, using: str = DEFAULT_DB_ALIAS) -> EtlRun:
    """Ask a run to end within a second or two. A run without a supervising process ends here.

    Raises NoSuchRun, NotRunning.
    """
    recover(using)
    rows = EtlRun.objects.using(using).filter(pk=run_id)
    if rows.filter(state=EtlState.QUEUED).update(state=EtlState.CANCELLED, ended_at=Now(), cancelling=True):
        return get(run_id, using)
    if not rows.filter(state=EtlState.RUNNING).update(cancelling=True):
        raise NotRunning(f"run {run_id} has {get(run_id, using).state}")
    return get(run_id, using)


def recover(using: str = DEFAULT_DB_ALIAS) -> list[EtlRun]:
    """Mark runs without a supervising process as lost; returns them.

    A run with a cancel request becomes cancelled. The next run into the same output completes or undoes their changes.
    """
    with connections[using].cursor() as cursor:
        cursor.execute("select clock_timestamp()")
        now = aware(cursor.fetchone()[0])
    lost = []
    for one in EtlRun.objects.using(using).filter(state__in=UNFINISHED):
        reason = _lost(one, now)
        state = EtlState.CANCELLED if one.cancelling else EtlState.LOST
        rows = EtlRun.objects.using(using).filter(pk=one.pk, state=one.state, heartbeat_at=one.heartbeat_at)
        if reason and rows.update(state=state, ended_at=Now(), error=reason) and not one.cancelling:
            lost.append(get(one.pk, using))
    return lost


def _lost(one: EtlRun, now: datetime) -> str:
    """The reason why a run has no supervising process; empty if it seems to have one."""
    host, _ = this_process()
    if one.state == EtlState.QUEUED:
        if one.host == host and one.pid is not None and not psutil.pid_exists(one.pid):
            return f"The process that was to look after it ({one.pid} on {host}) is gone."
        return "No process has taken it." if now - one.queued_at > UNTAKEN else ""
    if one.host == host:
        if not _runs(one):
            return f"The process that looked after it ({one.pid} on {host}) is gone."
        silent = one.heartbeat_at is None or now - one.heartbeat_at > GIVEN_UP
        return f"The process that looked after it ({one.pid} on {host}) has given it up." if silent else ""
    if one.heartbeat_at is None or now - one.heartbeat_at > SILENCE:
        return f"The process that looked after it ({one.pid} on {one.host}) gives no sign of life."
    return ""


def _runs(one: EtlRun) -> bool:
    """Whether a run's process on this host still runs and was not replaced by another with its pid."""
    try:
        process = psutil.Process(one.pid)
        began = process.create_time()
    except psutil.NoSuchProcess:
        return False
    started = one.started_at.timestamp() if one.started_at else 0.0
    return began <= started + SKEW and process.status() != psutil.STATUS_ZOMBIE
