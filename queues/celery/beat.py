"""The beat schedule of the app's upkeep, for any Celery application::

    app.conf.beat_schedule = beat.schedule()

Any number of beats may run: rows in the database decide what each task does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queues.config import extras
from queues.config.settings import settings

Schedule = dict[str, dict[str, Any]]


def schedule() -> Schedule:
    """The entries of `queues.tasks`; those of the ETL where its extra is installed. Needs Django's settings."""
    tasks = {
        "queues.keep_archive": 3600.0,
        "queues.keep_audit": settings.BROKER_AUDIT_ANCHOR_INTERVAL,
        "queues.return_leases": 60.0,
        "queues.run_periodic": 10.0,
        "queues.forget_old": 3600.0,
    }
    if extras.installed("etl"):
        tasks |= {"queues.etl.run_due": 5.0, "queues.etl.recover": 60.0}
    return entries(tasks)


def entries(tasks: Mapping[str, float]) -> Schedule:
    """Entries for tasks by name, each with its seconds between two runs; a run that is late by as much expires."""
    return {
        task: {"task": task, "schedule": seconds, "options": {"expires": seconds}} for task, seconds in tasks.items()
    }
