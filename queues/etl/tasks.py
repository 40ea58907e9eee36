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

#: Seconds beyond a run's own time limit until Celery's soft and hard limits end its task.
TIMEOUT, FORCE = 60, 120


@shared_task(  # type: ignore[untyped-decorator]
    name="queues.etl.run",
    soft_time_limit=int(settings.BROKER_ETL_TIMEOUT) + TIMEOUT,
    time_limit=int(settings.BROKER_ETL_TIMEOUT) + FORCE,
)
def run_etl(run: int) -> None:
    """Run a queued run to its end. A run that another worker has started is left alone."""
    runner.supervise(run)


@task_revoked.connect(sender=run_etl)  # type: ignore[untyped-decorator]
def cancel_revoked(request: Any, **signal: Any) -> None:
    """Cancel the run of a task that was revoked, before it has begun or with `terminate`."""
    pk = request.args[0]
    # If its supervising process is gone already, this gives the reason, and the run is not repeated.
    EtlRun.objects.filter(pk=pk, state__in=UNFINISHED).update(cancelling=True)
    with suppress(NoSuchRun, NotRunning):
        runs.cancel(pk)
