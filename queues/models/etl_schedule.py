"""Scheduled runs of the ETL job."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.config.settings import settings
from queues.models.cron_schedule import CronSchedule
from queues.models.etl import EtlRun
from queues.models.moment import MomentField


class EtlBodies(models.TextChoices):
    """The form of exported payloads."""

    NONE = "none", "nothing"
    RAW = "raw", "bytes"
    JSON = "json", "JSON, as text or as columns"


def default_bodies() -> str:
    return str(settings.BROKER_ETL_BODIES)


def default_body_schema() -> str:
    return str(settings.BROKER_ETL_BODY_SCHEMA)


def default_verify() -> bool:
    return bool(settings.BROKER_ETL_VERIFY == "all")


class EtlSchedule(CronSchedule):
    """Runs of the ETL job. `queues.etl.schedules` does what it says."""

    bodies = models.CharField(
        max_length=4,
        choices=EtlBodies,
        default=default_bodies,
        help_text="The form of exported payloads; the archive has those of queues with full retention.",
    )
    body_schema = models.TextField(
        "columns",
        default=default_body_schema,
        blank=True,
        help_text="Of JSON bodies, as Spark's DDL: order_id BIGINT, total DOUBLE. Empty: one column of text.",
    )
    verify = models.BooleanField(
        "verify the audit chains", default=default_verify, help_text="Each run verifies every chain whole."
    )
    last_run = models.ForeignKey(EtlRun, null=True, editable=False, on_delete=models.SET_NULL, related_name="+")
    last_error = models.TextField(
        default="", db_default="", editable=False, help_text="The reason why the last due run did not begin."
    )
    created_at = MomentField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        verbose_name = "ETL schedule"
        constraints = (
            models.CheckConstraint(condition=~Q(name=""), name="etlschedule_name_not_empty"),
            models.CheckConstraint(condition=Q(bodies__in=EtlBodies.values), name="etlschedule_bodies_known"),
            models.CheckConstraint(
                condition=Q(bodies=EtlBodies.JSON) | Q(body_schema=""),
                name="etlschedule_columns_of_json",
                violation_error_message="Columns are made of JSON bodies only.",
            ),
        )

    def __str__(self) -> str:
        return self.name
