"""ETL runs by schedule and by operators. Each is created with its Celery task in one transaction.

Any number of beats may publish the task that looks at schedules, and any number of workers may look at once. A due row
is locked by one of them and skipped by the others, and its next run is written in the transaction that makes the run
and publishes its task; so each run is made once. The clock is the database's.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from queues.config import extras
from queues.etl import runs
from queues.etl.errors import EtlError, NoCelery
from queues.etl.options import RunOptions
from queues.models import EtlRun, EtlSchedule, EtlState
from queues.schedules import planning

logger = logging.getLogger(__name__)

#: The age up to which a lost run is repeated.
RECENT = timedelta(days=1)


def launch(options: RunOptions, trigger: str, *, output: str | None = None, restart_of: EtlRun | None = None) -> EtlRun:
    """Make a run and publish its task, both when the transaction commits. Raises EtlError and kombu's errors."""
    with transaction.atomic():
        run = runs.create(options, trigger=trigger, output=output)
        if restart_of is not None:
            run.restart_of = restart_of
            run.save(update_fields=("restart_of",))
        publish_task(run)
    return run


def publish_task(run: EtlRun) -> None:
    """Publish the Celery task of a queued run; a second task does nothing. Raises NoCelery and kombu's errors."""
    if problem := extras.problem("celery"):
        raise NoCelery(problem)
    from queues.etl.tasks import run_etl  # a process that begins no run does not load Celery

    run_etl.apply_async((run.pk,), task_id=f"etl-run-{run.pk}")


def options_of(schedule: EtlSchedule) -> RunOptions:
    """The options of a schedule's runs. Raises InvalidOptions."""
    verify = "all" if schedule.verify else "none"
    return RunOptions(bodies=str(schedule.bodies), body_schema=schedule.body_schema, verify=verify)


# By schedule.


def run_due() -> list[EtlRun]:
    """Make a run for each schedule that is due. Raises Django's database errors: then nothing was begun."""
    with transaction.atomic():
        return planning.run_due(EtlSchedule.objects.all(), _run, "last_run", "Skipped: {}")


def _run(schedule: EtlSchedule) -> EtlRun:
    try:
        return launch(options_of(schedule), f"schedule {schedule.name}")
    except EtlError as error:
        logger.warning("the ETL schedule %s was skipped: %s", schedule.name, error)
        raise


# By an operator.


def run_now(schedule: EtlSchedule, by: str) -> EtlRun:
    """Start a run now. The schedule does not change. Raises EtlError or PlannedNotFound."""
    with transaction.atomic():
        row = planning.locked(EtlSchedule.objects.all(), schedule)
        row.last_run = launch(options_of(row), f"{by}, schedule {row.name}")
        row.last_run_at, row.last_error = datetime.now(UTC), ""
        row.save(update_fields=("last_run", "last_run_at", "last_error"))
    return row.last_run


def run_again(run: EtlRun, by: str) -> EtlRun:
    """Start a run with the options and output of an ended run. Raises EtlError."""
    return launch(RunOptions.load(run.options), f"{by}, again as run {run.pk}", output=run.output)


# Lost runs.


def restart_lost() -> list[EtlRun]:
    """Find runs whose worker is gone, and do each again, once; returns the new runs.

    A run that a later one has followed is not repeated: that one does what it has not done.
    """
    with transaction.atomic():
        runs.recover()
        recent = EtlRun.objects.filter(state=EtlState.LOST, ended_at__gt=Now() - RECENT)
        later = EtlRun.objects.filter(output=OuterRef("output"), pk__gt=OuterRef("pk"))
        repeated = EtlRun.objects.filter(restart_of=OuterRef("pk"))
        candidates = recent.filter(~Exists(later), ~Exists(repeated), restart_of=None, cancelling=False)
        found = candidates.select_for_update(skip_locked=True, of=("self",))
        return [again for lost in found if (again := _restart(lost)) is not None]


def _restart(lost: EtlRun) -> EtlRun | None:
    logger.warning("ETL run %s is lost: %s", lost.pk, lost.error)
    try:
        trigger = f"restart of run {lost.pk}"
        return launch(RunOptions.load(lost.options), trigger, output=lost.output, restart_of=lost)
    except EtlError as error:
        logger.warning("ETL run %s is not restarted: %s", lost.pk, error)
        return None
