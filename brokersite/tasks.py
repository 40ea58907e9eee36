"""Celery tasks of the site alone; those of the broker are in `queues/tasks.py`."""

from __future__ import annotations

from django.core.management import call_command

from brokersite.celery import app
from hydra.storage import line_records


@app.task(name="brokersite.forget_old")  # type: ignore[untyped-decorator]
def forget_old() -> None:
    """Delete expired sessions, and Hydra's records of old lines."""
    line_records.prune()
    call_command("clearsessions")
