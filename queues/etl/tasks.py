"""The Celery task of an ETL run. Spark is a child process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import shared_task
from celery.signals import task_revoked

from queues.config.settings import settings
from queues.etl import runner, runs
from queues.etl.errors import NoSuchRun, NotRunning
from queues.models import EtlRun
from queues.models.etl import UNFINISHED

#: Seconds beyond a run's own time limit after which Celery ends its task, first kindly and then by force.
TIMEOUT, FORCE = 60, 120


@shared_task(  # type: ignore[untyped-decorator]
    name="queues.etl.run",
    soft_time_limit=int(settings.BROKER_ETL_TIMEOUT) + TIMEOUT,
    time_limit=int(settings.BROKER_ETL_TIMEOUT) + FORCE,
)
def run_etl(run: int) -> None:
    """Do a run that is queued, to its end. One that another worker has begun is left alone."""
    runner.supervise(run)


@task_revoked.connect(sender=run_etl)  # type: ignore[untyped-decorator]
def cancel_revoked(request: Any, **signal: Any) -> None:
    """Cancel the run of a task that was revoked, before it has begun or with `terminate`."""
    pk = request.args[0]
    # Should the process that looks after it be gone already, this says why, and it is not done again.
    EtlRun.objects.filter(pk=pk, state__in=UNFINISHED).update(cancelling=True)
    with suppress(NoSuchRun, NotRunning):
        runs.cancel(pk)
