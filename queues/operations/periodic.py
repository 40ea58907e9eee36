"""Operators' actions on periodic jobs, in the admin and in the shell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import QuerySet

from queues.errors import InvalidFields, OperationError
from queues.formats.texts import is_storable
from queues.models import PeriodicJob
from queues.operations.messages import get_queue
from queues.schedules.periodic import publish_job
from queues.schedules.planning import locked, save_planned

#: The fields that may be changed.
FIELDS = ("name", "queue", "payload", "cron", "timezone", "enabled", "priority", "max_attempts", "unique")


class PeriodicJobNotFound(OperationError):
    """There is no periodic job of this name."""


class PeriodicJobExists(OperationError):
    """There is a periodic job of this name."""


class InvalidPeriodicJob(InvalidFields):
    """A periodic job cannot be like this."""


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
    if not is_storable(name):
        raise InvalidPeriodicJob({"name": ["It has a NUL character or is no Unicode text."]})
    job = PeriodicJob(name=name, cron=cron, queue=get_queue(queue, using), **fields)
    exists = PeriodicJobExists(f"There is a periodic job {name!r} already.")
    if PeriodicJob.objects.using(using).filter(name=name).exists():
        raise exists
    try:
        job.full_clean()
    except ValidationError as error:
        raise InvalidPeriodicJob({field: list(texts) for field, texts in error.message_dict.items()}) from error
    except ValueError as error:  # a number of more digits than Python writes
        raise InvalidPeriodicJob({"payload": [f"It cannot be written as JSON: {error}."]}) from error
    try:
        save_planned(job, using=using)
    except IntegrityError as error:
        raise exists from error
    return job


def remove_periodic(name: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """Forget a periodic job; what it has published stays. Raises PeriodicJobNotFound."""
    get_periodic(name, using).delete()


def run_now(job: PeriodicJob, using: str = DEFAULT_DB_ALIAS) -> int | None:
    """Publish the job once more, whatever its schedule, which stays as it is; returns the message's id.

    Raises PlannedNotFound, QueueGone, JobUnfinished, or what `queues.api.publish` does.
    """
    with transaction.atomic(using=using):
        row = locked(list_periodic(using), job)
        row.last_message_id, row.last_run_at = publish_job(row, using), datetime.now(UTC)
        row.save(using=using, update_fields=("last_run_at", "last_message_id"))
    return row.last_message_id
