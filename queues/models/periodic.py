"""Jobs that are published on a schedule."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.config.settings import settings
from queues.formats.limits import MAX_ATTEMPTS, MAX_PRIORITY, MIN_PRIORITY
from queues.formats.texts import depth, json_text
from queues.models.cron_schedule import CronSchedule
from queues.models.moment import MomentField
from queues.models.queue import QueueKind

#: Lists and objects in each other, at most: with its envelope a job must not be deeper than Overhop allows.
DEEPEST_PAYLOAD = 60


def validate_payload(value: Any) -> None:
    if depth(value) > DEEPEST_PAYLOAD:
        raise ValidationError(f"It is nested too deep; {DEEPEST_PAYLOAD} levels are allowed.")
    try:
        json_text(value)
    except (TypeError, ValueError) as error:
        raise ValidationError(f"It cannot be written as JSON: {error}.") from error
    if (size := len(encode_payload(value))) > settings.BROKER_MAX_FRAME:
        raise ValidationError(f"It has {size} bytes; BROKER_MAX_FRAME allows {settings.BROKER_MAX_FRAME}.")


def encode_payload(value: Any) -> bytes:
    """A payload as the job gets it: JSON in UTF-8, without spaces. Raises ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class PeriodicJob(CronSchedule):
    """A job that is published to a queue at the times of a cron expression. `queues.schedules.periodic` publishes it.

    The queue has no constraint, so that it can be deleted: then the id leads nowhere and every run fails.
    """

    queue = models.ForeignKey(
        "queues.Queue",
        null=True,
        on_delete=models.SET_NULL,
        related_name="periodic_jobs",
        db_constraint=False,
        limit_choices_to=Q(kind=QueueKind.QUEUE) & ~Q(name__startswith="_"),
    )
    payload = models.JSONField(
        null=True, blank=True, default=dict, validators=(validate_payload,), help_text="The payload, as JSON."
    )
    priority = models.SmallIntegerField(
        default=0,
        db_default=0,
        validators=(MinValueValidator(MIN_PRIORITY), MaxValueValidator(MAX_PRIORITY)),
        help_text="-100 to 100; higher ones are delivered first.",
    )
    max_attempts = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=(MaxValueValidator(MAX_ATTEMPTS),),
        help_text="Overrides the queue's; 0: without limit.",
    )
    unique = models.BooleanField(
        "one at a time",
        default=False,
        db_default=False,
        help_text="Skip a run while the job of the last one is unfinished.",
    )
    last_message_id = models.BigIntegerField(null=True, editable=False, help_text="The last job, by its first id.")
    last_error = models.TextField(
        default="", db_default="", editable=False, help_text="The reason why the last due run was skipped."
    )
    created_at = MomentField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(condition=~Q(name=""), name="periodic_name_not_empty"),
            models.CheckConstraint(
                condition=Q(priority__gte=MIN_PRIORITY, priority__lte=MAX_PRIORITY),
                name="periodic_priority_in_range",
            ),
        )

    def __str__(self) -> str:
        return self.name
