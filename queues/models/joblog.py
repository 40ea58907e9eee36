"""Lines that workers have written about their jobs."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.postgres import BrinIndex
from queues.models.unchecked import UncheckedForeignKey


class JobLogLine(models.Model):
    """One line of a job's log. It outlives the job's row in the store, as the archive does."""

    queue = UncheckedForeignKey("queues.Queue")
    message_id = models.BigIntegerField(help_text="The job's first id.")
    at = MomentField(db_default=Now())
    line = models.TextField()

    class Meta:
        db_table = "queues_joblog"
        ordering = ("id",)
        indexes = (
            models.Index(fields=("message_id", "id"), name="joblog_message"),
            BrinIndex(fields=("at",), name="joblog_at"),
        )

    def __str__(self) -> str:
        return self.line
