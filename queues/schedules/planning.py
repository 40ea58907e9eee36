"""Rows with a cron expression, periodic jobs and ETL schedules: planned, saved while they may run, locked.

Any number of processes may look at once. A due row is locked by one of them and skipped by the others, and its next run
is written in the transaction that runs it, so each run is made once. The clock is the database's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from queues.errors import BrokerError, OperationError
from queues.formats.cron import InvalidSchedule, next_run
from queues.models.cron_schedule import CronSchedule
from queues.models.moment import MomentField

#: The fields after a change of which a row is planned anew.
PLANNED_BY = frozenset({"cron", "timezone", "enabled"})
#: Characters of an error that a row keeps.
MAX_ERROR = 1000
#: Rows that are run in one transaction.
BATCH = 100

Row = TypeVar("Row", bound=CronSchedule)


class Unplannable(OperationError):
    """The schedule or its time zone cannot be read."""


class PlannedNotFound(OperationError):
    """There is no such periodic job or schedule any more."""


def run_due(rows: QuerySet[Any], run: Callable[[Any], Any], last: str, refused: str = "{}") -> list[Any]:
    """Run each row that is due and that no other process has, and plan its next run after now: missed runs are not
    piled up. Returns what `run` has made, which is also written to the field `last`. For a transaction.

    What keeps one from running is written to its `last_error`, and holds up neither its schedule nor the others.
    """
    due = rows.filter(Q(next_run_at__lte=Now()) | Q(next_run_at=None), enabled=True)
    due = due.annotate(now=Now(output_field=MomentField()))
    fields, made = ("next_run_at", "last_run_at", last, "last_error"), []
    for row in due.order_by("next_run_at").select_for_update(skip_locked=True, of=("self",))[:BATCH]:
        before = [getattr(row, field) for field in fields]
        if row.next_run_at is not None:
            try:
                with transaction.atomic(using=rows.db):
                    made.append(run(row))
                setattr(row, last, made[-1])
                row.last_run_at, row.last_error = row.now, ""
            except (BrokerError, ValueError) as error:
                row.last_error = refused.format(error)[:MAX_ERROR]
        _plan_after(row, row.now)
        if before != [getattr(row, field) for field in fields]:
            row.save(using=rows.db, update_fields=fields)
    return made


def locked(rows: QuerySet[Row], planned: Row) -> Row:
    """A row as it is now, for this transaction. Raises PlannedNotFound."""
    row = rows.select_for_update(of=("self",)).filter(pk=planned.pk).first()
    if row is None:
        raise PlannedNotFound(f"There is no {planned._meta.verbose_name} {planned.name!r} any more.")
    return row


def _plan_after(planned: Any, now: datetime) -> None:
    """Plan the next run after one; what prevents that is written to `last_error`."""
    try:
        planned.next_run_at = next_run(planned.cron, planned.timezone, now)
    except InvalidSchedule as error:
        planned.next_run_at = None
        planned.last_error = f"It cannot be planned. {error}"


def save_planned(planned: Any, changed: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS) -> None:
    """Save a new row, or the changed fields of one that may run meanwhile; plans its next run if need be.

    One that is not enabled has no next run. Raises Unplannable, or PlannedNotFound if it was deleted.
    """
    names = {"last_error", *(changed or ())}
    with transaction.atomic(using=using):
        if changed is not None:  # a run that is under way ends before the next one is counted from now
            locked(type(planned)._default_manager.using(using), planned)
        planned.last_error = ""
        if changed is None or names & PLANNED_BY:
            names.add("next_run_at")
            planned.cron = " ".join(planned.cron.split())
            planned.next_run_at = _next_run(planned)
        if changed is None:
            planned.save(using=using, force_insert=True)
        else:
            planned.save(using=using, update_fields=names)


def _next_run(planned: CronSchedule) -> datetime | None:
    if not planned.enabled:
        return None
    try:
        return next_run(planned.cron, planned.timezone, datetime.now(UTC))
    except InvalidSchedule as error:
        raise Unplannable(f"{planned.name!r} cannot be planned. {error}") from error


def set_enabled(planned: CronSchedule, enabled: bool, using: str = DEFAULT_DB_ALIAS) -> None:
    """Enable or disable a row. Raises as `save_planned` does."""
    if planned.enabled != enabled:
        planned.enabled = enabled
        save_planned(planned, ("enabled",), using)


def upcoming(planned: CronSchedule, count: int, after: datetime) -> list[datetime]:
    """The next runs of a valid schedule, if it is enabled or were; fewer if there are no more."""
    found: list[datetime] = []
    while len(found) < count:
        try:
            after = next_run(planned.cron, planned.timezone, after)
        except InvalidSchedule:
            break
        found.append(after)
    return found
