"""Runs of the ETL job, what they have written where, and the figures they leave for charts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.models.moment import MomentField


class EtlState(models.TextChoices):
    """The state of a run."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"
    LOST = "lost", "lost"


#: States of a run that has not ended.
UNFINISHED = (EtlState.QUEUED, EtlState.RUNNING)


class EtlRun(models.Model):
    """One run of the job. What counts as exported stands in the output itself; this is what an operator sees of it."""

    id = models.BigAutoField(primary_key=True)
    state = models.CharField(max_length=9, choices=EtlState, default=EtlState.QUEUED, db_default=EtlState.QUEUED)
    trigger = models.CharField(max_length=200, help_text="The user or schedule that started it.")
    output = models.TextField(help_text="The output path.")
    options = models.JSONField(default=dict, help_text="Its options: since, bodies, body_schema, verify.")
    number = models.BigIntegerField(null=True, help_text="Its number in the output.")
    window_from = models.TextField(blank=True, help_text="The snapshot at which its window begins; empty: everything.")
    window_to = models.TextField(blank=True, help_text="The snapshot at which its window ends.")
    queued_at = MomentField(db_default=Now())
    started_at = MomentField(null=True)
    ended_at = MomentField(null=True)
    heartbeat_at = MomentField(null=True, help_text="The last heartbeat of its supervising process.")
    host = models.CharField(max_length=255, blank=True)
    pid = models.IntegerField(null=True)
    cancelling = models.BooleanField(default=False, db_default=False, help_text="A cancel was requested.")
    stage = models.CharField(max_length=40, blank=True)
    done = models.BigIntegerField(default=0, db_default=0, help_text="Finished units of the stage.")
    total = models.BigIntegerField(default=0, db_default=0, help_text="All units of the stage; 0: unknown.")
    rows_in = models.BigIntegerField(default=0, db_default=0, help_text="Rows read, over all tables.")
    rows_out = models.BigIntegerField(default=0, db_default=0, help_text="Rows written, over all tables.")
    late_rows = models.BigIntegerField(
        default=0, db_default=0, help_text="Messages of a day before the one of the previous run."
    )
    bytes = models.BigIntegerField(default=0, db_default=0, help_text="Bytes of Parquet written.")
    figures = models.JSONField(
        default=dict, help_text="Rows in and out by table, seconds by stage, the chains' verdicts, and the like."
    )
    warnings = models.JSONField(default=list, help_text="Warnings for the operator, a sentence each.")
    error = models.TextField(blank=True, help_text="The error of a failed run.")
    log = models.TextField(blank=True, help_text="The path of Spark's log, on the host.")
    restart_of = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.SET_NULL,
        related_name="restarts",
        help_text="The lost run that this repeats.",
    )

    class Meta:
        ordering = ("-id",)
        verbose_name = "ETL run"
        constraints = (
            models.CheckConstraint(condition=Q(state__in=EtlState.values), name="etlrun_state_known"),
            models.UniqueConstraint(
                fields=("output",),
                condition=Q(state__in=UNFINISHED),
                name="etlrun_one_at_a_time",
                violation_error_message="Another run writes to this output.",
            ),
            models.CheckConstraint(
                condition=Q(state__in=UNFINISHED, ended_at__isnull=True)
                | (~Q(state__in=UNFINISHED) & Q(ended_at__isnull=False)),
                name="etlrun_ended",
            ),
        )
        indexes = (models.Index(fields=("output", "-id"), name="etlrun_output"),)

    def __str__(self) -> str:
        return f"ETL run {self.pk}, {self.state}"

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, however."""
        return self.state not in UNFINISHED


class EtlWitness(models.Model):
    """The token of the last run into an output: a database without it is another than the one that was read."""

    output = models.TextField(primary_key=True)
    token = models.UUIDField()
    previous = models.UUIDField(null=True, help_text="The token before it, for a run that failed.")
    at = MomentField(db_default=Now())

    def __str__(self) -> str:
        return self.output


class Rollup(models.Model):
    """A queue's hour (UTC): messages by the hour in which they were finished, dead letters by that in which they died.

    Latencies are seconds from publish to the last delivery and to the end, of acknowledged messages; lists are of
    objects with `name` and `count`, the most first.
    """

    id = models.BigAutoField(primary_key=True)
    hour = MomentField()
    queue = models.TextField(help_text="The queue's name.")
    acknowledged = models.BigIntegerField(db_default=0)
    expired = models.BigIntegerField(db_default=0)
    purged = models.BigIntegerField(db_default=0)
    dropped = models.BigIntegerField(db_default=0)
    removed = models.BigIntegerField(db_default=0)
    dead_letters = models.BigIntegerField(db_default=0)
    attempts = models.BigIntegerField(db_default=0, help_text="Deliveries that ended without success.")
    bytes = models.BigIntegerField(db_default=0, help_text="Bytes of payloads.")
    deliver_p50 = models.FloatField(null=True)
    deliver_p95 = models.FloatField(null=True)
    deliver_p99 = models.FloatField(null=True)
    settle_p50 = models.FloatField(null=True)
    settle_p95 = models.FloatField(null=True)
    settle_p99 = models.FloatField(null=True)
    dead_reasons = models.JSONField(default=list)
    producers = models.JSONField(default=list, help_text="API keys that published most.")
    consumers = models.JSONField(default=list, help_text="API keys that acknowledged most.")
    computed_at = MomentField(db_default=Now())

    class Meta:
        ordering = ("-hour", "queue")
        constraints = (models.UniqueConstraint(fields=("hour", "queue"), name="rollup_once"),)
        indexes = (models.Index(fields=("queue", "hour"), name="rollup_queue"),)

    def __str__(self) -> str:
        return f"{self.queue}, {self.hour:%Y-%m-%d %H}:00"
