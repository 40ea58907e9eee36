"""The schedule of periodic jobs and ETL runs: cron expression and time zone."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from queues.formats.cron import cron_problem, timezone_problem
from queues.models.moment import MomentField


def default_timezone() -> str:
    return str(settings.TIME_ZONE)


def validate_cron(value: str) -> None:
    if problem := cron_problem(value):
        raise ValidationError(problem)


def validate_timezone(value: str) -> None:
    if problem := timezone_problem(value):
        raise ValidationError(problem)


class CronSchedule(models.Model):
    """The times of a cron expression. An enabled row without `next_run_at` is planned by the next that looks."""

    name = models.CharField(max_length=100, unique=True)
    cron = models.CharField(
        "schedule",
        max_length=200,
        validators=(validate_cron,),
        help_text="Minute, hour, day of month, month, day of week; for example 0 3 * * MON-FRI.",
    )
    timezone = models.CharField(
        "time zone",
        max_length=64,
        default=default_timezone,
        validators=(validate_timezone,),
        help_text="Time zone of the schedule, for example Europe/Berlin.",
    )
    enabled = models.BooleanField(default=True, db_default=True, help_text="Whether it runs on schedule.")
    next_run_at = MomentField(null=True, editable=False)
    last_run_at = MomentField(null=True, editable=False)

    class Meta:
        abstract = True
