"""Celery tasks that keep the house in order. Each may run twice, and beside the engines that do the same."""

from __future__ import annotations

import logging

from django.core.management import call_command

from brokersite.celery import app
from hydra.storage import line_records
from queues import upkeep
from queues.audit.upkeep import look_after

logger = logging.getLogger(__name__)


@app.task(name="upkeep.keep_archive")  # type: ignore[untyped-decorator]
def keep_archive() -> None:
    """Make the archive's partitions ahead and drop what is older than the retention."""
    upkeep.keep_archive()


@app.task(name="upkeep.keep_audit")  # type: ignore[untyped-decorator]
def keep_audit() -> None:
    """Seal the audit journal, write anchors, make partitions, drop what is older than the retention."""
    look_after()


@app.task(name="upkeep.return_leases")  # type: ignore[untyped-decorator]
def return_leases() -> None:
    """Give back what dead nodes had leased."""
    if dead := upkeep.return_leases():
        logger.warning("%d dead nodes had leases, which were given back", dead)


@app.task(name="upkeep.forget_old")  # type: ignore[untyped-decorator]
def forget_old() -> None:
    """Forget what nobody asks for any more: old ETL runs and figures, lines sent to IRC, sessions of the site."""
    upkeep.forget_old()
    line_records.prune()
    call_command("clearsessions")
