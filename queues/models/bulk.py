"""Bulk operations: what an operator does to all messages that a search finds, in steps."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.models.moment import MomentField


class BulkAction(models.TextChoices):
    """The change of each message. The words are those of the audit chains."""

    COPY = "copy", "copy to another queue"
    MOVE = "move", "move to another queue"
    PUT_BACK = "put-back", "put dead letters back where they came from"
    DELAY = "delay", "delay"
    DELIVER_NOW = "deliver-now", "deliver delayed ones now"
    DELETE = "remove", "delete"


class BulkState(models.TextChoices):
    """The state of a bulk operation."""

    RUNNING = "running", "running"
    DONE = "done", "done"
    CANCELLED = "cancelled", "cancelled"
    FAILED = "failed", "failed"


class BulkOperation(models.Model):
    """One bulk operation. A step changes some messages, and this row's cursor and counts, in one transaction: so each
    message is done once, whichever process does the next step after whatever has happened to the one before."""

    id = models.BigAutoField(primary_key=True)
    action = models.CharField(max_length=16, choices=BulkAction)
    criteria = models.JSONField(help_text="What is looked for, as queues.operations.search has it.")
    target = models.CharField(max_length=255, blank=True, help_text="The queue to which they are moved or copied.")
    delay = models.FloatField(null=True, help_text="Seconds.")
    by = models.TextField(help_text="The operator.")
    state = models.CharField(max_length=16, choices=BulkState, default=BulkState.RUNNING)
    cursor = models.TextField(blank=True, help_text="Where the search goes on.")
    high = models.BigIntegerField(help_text="Messages with a greater id arrived later, and are left alone.")
    expected = models.BigIntegerField(null=True, help_text="How many the preview found; empty: it did not see all.")
    looked = models.BigIntegerField(default=0)
    done = models.BigIntegerField(default=0)
    skipped = models.BigIntegerField(default=0, help_text="Found, and left alone.")
    error = models.TextField(blank=True)
    created_at = MomentField(db_default=Now())
    ended_at = MomentField(null=True)

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(condition=Q(action__in=BulkAction.values), name="bulk_action_known"),
            models.CheckConstraint(
                condition=Q(state=BulkState.RUNNING, ended_at__isnull=True)
                | (Q(state__in=BulkState.values, ended_at__isnull=False) & ~Q(state=BulkState.RUNNING)),
                name="bulk_state_known",
            ),
        )
        indexes = (models.Index(fields=("id",), condition=Q(state=BulkState.RUNNING), name="bulk_running"),)

    def __str__(self) -> str:
        return f"{self.action} {self.id}"
