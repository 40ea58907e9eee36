"""The app's Celery tasks: periodic upkeep (`queues/celery/beat.py` has the schedule), and runs of the ETL.

``app.autodiscover_tasks()`` finds them where `queues` is among INSTALLED_APPS. Each may run twice, on several workers
at once and beside engines that do the same.
"""

from __future__ import annotations

import logging

from celery import shared_task

from queues import upkeep
from queues.audit.upkeep import look_after
from queues.etl import schedules
from queues.etl.tasks import cancel_revoked, run_etl
from queues.schedules import periodic

__all__ = [
    "cancel_revoked", "forget_old", "keep_archive", "keep_audit", "recover_etl", "return_leases", "run_due_etl",
    "run_etl", "run_periodic",
]  # fmt: skip

logger = logging.getLogger(__name__)


@shared_task(name="queues.keep_archive", ignore_result=True)  # type: ignore[untyped-decorator]
def keep_archive() -> None:
    """Make the archive's partitions ahead, drop those older than the retention."""
    upkeep.keep_archive()


@shared_task(name="queues.keep_audit", ignore_result=True)  # type: ignore[untyped-decorator]
def keep_audit() -> None:
    """Seal the audit journal, write anchors, make partitions, drop those older than the retention."""
    look_after()


@shared_task(name="queues.return_leases", ignore_result=True)  # type: ignore[untyped-decorator]
def return_leases() -> None:
    """Return the leases of dead nodes."""
    if dead := upkeep.return_leases():
        logger.warning("returned the leases of %d dead nodes", dead)


@shared_task(name="queues.run_periodic", ignore_result=True)  # type: ignore[untyped-decorator]
def run_periodic() -> None:
    """Publish the jobs of periodic jobs that are due."""
    periodic.run_due()


@shared_task(name="queues.forget_old", ignore_result=True)  # type: ignore[untyped-decorator]
def forget_old() -> None:
    """Delete old ETL runs with their logs, old bulk operations, and old hourly figures."""
    upkeep.forget_old()


@shared_task(name="queues.etl.run_due", ignore_result=True)  # type: ignore[untyped-decorator]
def run_due_etl() -> None:
    """Begin the ETL runs of schedules that are due."""
    for run in schedules.run_due():
        logger.info("ETL run %s was begun by %s", run.pk, run.trigger)


@shared_task(name="queues.etl.recover", ignore_result=True)  # type: ignore[untyped-decorator]
def recover_etl() -> None:
    """Find ETL runs whose worker is gone, and do them again."""
    for run in schedules.restart_lost():
        logger.info("ETL run %s is a %s", run.pk, run.trigger)
