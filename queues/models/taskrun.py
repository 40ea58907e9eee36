"""Tasks of Django's tasks framework: what was asked for, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class TaskStatus(models.TextChoices):
    """The states of a task, with the framework's names."""

    READY = "READY", "ready"
    RUNNING = "RUNNING", "running"
    FAILED = "FAILED", "failed"
    SUCCESSFUL = "SUCCESSFUL", "successful"


class TaskRun(models.Model):
    """One call of a task. Its message, whose key is the id, is in the queue until it has ended."""

    id = models.CharField(max_length=64, primary_key=True)
    backend = models.CharField(max_length=100, help_text="The alias in TASKS.")
    queue = models.CharField(max_length=255, help_text="The queue's name.")
    task = models.TextField(help_text="The function.")
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    priority = models.SmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True)
    status = models.CharField(max_length=16, choices=TaskStatus, default=TaskStatus.READY)
    enqueued_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, help_text="The first attempt.")
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    worker_ids = models.JSONField(default=list, help_text="The worker of each attempt.")
    errors = models.JSONField(default=list, help_text="Class and traceback of each failure.")
    return_value = models.JSONField(null=True)

    class Meta:
        ordering = ("-enqueued_at",)
        constraints = (models.CheckConstraint(condition=Q(status__in=TaskStatus.values), name="taskrun_status_known"),)
        indexes = (
            models.Index(fields=("finished_at",), condition=Q(finished_at__isnull=False), name="taskrun_finished"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
