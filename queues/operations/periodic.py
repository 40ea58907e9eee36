"""Operators' actions on periodic jobs, in the admin and in the shell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from queues.cron import InvalidSchedule, next_run
from queues.models import PeriodicJob
from queues.models.cron_schedule import CronSchedule
from queues.operations.messages import OperationError, get_queue
from queues.periodic import run_locked

#: The fields that may be changed.
FIELDS = ("name", "queue", "payload", "cron", "timezone", "enabled", "priority", "max_attempts", "unique")
#: The fields after a change of which a job is planned anew.
PLANNED_BY = frozenset({"cron", "timezone", "enabled"})


class Unplannable(OperationError):
    """The schedule or time zone of a periodic job cannot be read."""


class PeriodicJobNotFound(OperationError):
    """There is no periodic job of this name."""


class PeriodicJobExists(OperationError):
    """There is a periodic job of this name."""


class InvalidPeriodicJob(OperationError):
    """A periodic job cannot be like this; `problems` has the reasons by field."""

    def __init__(self, problems: dict[str, list[str]]) -> None:
        super().__init__(" ".join(f"{field}: {' '.join(texts)}" for field, texts in problems.items()))
        self.problems = problems


def list_periodic(using: str = DEFAULT_DB_ALIAS) -> QuerySet[PeriodicJob]:
    """All periodic jobs with their queues, by name."""
    return PeriodicJob.objects.using(using).select_related("queue")


def get_periodic(name: str, using: str = DEFAULT_DB_ALIAS) -> PeriodicJob:
    """The periodic job of this name. Raises PeriodicJobNotFound."""
    job = list_periodic(using).filter(name=name).first()
    if job is None:
        raise PeriodicJobNotFound(f"There is no periodic job {name!r}.")
    return job


def add_periodic(name: str, cron: str, queue: str, using: str = DEFAULT_DB_ALIAS, **fields: Any) -> PeriodicJob:
    """Make a periodic job; `fields` has others of `PeriodicJob`.

    Raises PeriodicJobExists, InvalidPeriodicJob or QueueNotFound.
    """
    job = PeriodicJob(name=name, cron=cron, queue=get_queue(queue, using), **fields)
    exists = PeriodicJobExists(f"There is a periodic job {name!r} already.")
    if PeriodicJob.objects.using(using).filter(name=name).exists():
        raise exists
    try:
        job.full_clean()
    except ValidationError as error:
        raise InvalidPeriodicJob({field: list(texts) for field, texts in error.message_dict.items()}) from error
    try:
        save_periodic(job, using=using)
    except IntegrityError as error:
        raise exists from error
    return job


def save_periodic(job: PeriodicJob, changed: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS) -> None:
    """Save a new periodic job, or the changed fields of one that may run meanwhile; plans its next run if need be.

    A job that is not enabled has no next run. Raises Unplannable, or PeriodicJobNotFound if it was deleted.
    """
    names = {"last_error", *(changed or ())}
    with transaction.atomic(using=using):
        if changed is not None:  # a run that is under way ends before the next one is counted from now
            _lock(job, using)
        job.last_error = ""
        if changed is None or names & PLANNED_BY:
            names.add("next_run_at")
            job.cron = " ".join(job.cron.split())
            job.next_run_at = _planned(job)
        if changed is None:
            job.save(using=using, force_insert=True)
        else:
            job.save(using=using, update_fields=names)


def _planned(job: PeriodicJob) -> datetime | None:
    if not job.enabled:
        return None
    try:
        return next_run(job.cron, job.timezone, timezone.now())
    except InvalidSchedule as error:
        raise Unplannable(f"{job.name!r} cannot be planned. {error}") from error


def _lock(job: PeriodicJob, using: str) -> PeriodicJob:
    """Its row as it is now, locked until the transaction ends. Raises PeriodicJobNotFound."""
    row = list_periodic(using).select_for_update(of=("self",)).filter(pk=job.pk).first()
    if row is None:
        raise PeriodicJobNotFound(f"There is no periodic job {job.name!r}.")
    return row


def remove_periodic(name: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """Forget a periodic job; what it has published stays. Raises PeriodicJobNotFound."""
    get_periodic(name, using).delete()


def set_enabled(job: PeriodicJob, enabled: bool, using: str = DEFAULT_DB_ALIAS) -> None:
    """Enable or disable a periodic job. Raises as `save_periodic` does."""
    if job.enabled != enabled:
        job.enabled = enabled
        save_periodic(job, ("enabled",), using)


def run_now(job: PeriodicJob, using: str = DEFAULT_DB_ALIAS) -> int | None:
    """Publish the job once more, whatever its schedule, which stays as it is; returns the message's id.

    Raises PeriodicJobNotFound, QueueGone, JobUnfinished, or what `queues.api.publish` does.
    """
    with transaction.atomic(using=using):
        row = _lock(job, using)
        run_locked(row, timezone.now(), using)
        row.save(using=using, update_fields=("last_run_at", "last_message_id"))
    return row.last_message_id


def upcoming(job: CronSchedule, count: int, after: datetime) -> list[datetime]:
    """The next runs of a valid schedule, if it is enabled or were; fewer if there are no more."""
    found: list[datetime] = []
    while len(found) < count:
        try:
            after = next_run(job.cron, job.timezone, after)
        except InvalidSchedule:
            break
        found.append(after)
    return found
