"""The history of queues: what went through them and what they held, by the minute and later by the hour."""

from __future__ import annotations

from django.db import models

from queues.models.moment import MomentField


class QueueSample(models.Model):
    """A queue's minute or hour that ended at `at`. A queue in which nothing has changed has no row.

    Queue 0 is all queues together; it has a row for each minute in which an engine ran, so that a minute without one
    is told from a quiet one. Ids have no constraint: a sample is written by the minute, whatever else is locked.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.IntegerField(help_text="The queue's id; 0: all queues.")
    at = MomentField(help_text="The end of the period, to the minute.")
    hourly = models.BooleanField(db_default=False)
    seconds = models.FloatField(help_text="The time that the differences cover; after a gap more than a minute.")
    ready = models.BigIntegerField(help_text="Held at the end of the period, as leased, delayed and dead.")
    leased = models.BigIntegerField()
    delayed = models.BigIntegerField()
    dead = models.BigIntegerField()
    peak = models.BigIntegerField(help_text="The most messages that any of its minutes ended with, dead letters aside.")
    published = models.BigIntegerField(help_text="Messages stored in the period.")
    settled = models.BigIntegerField(help_text="Messages that left for good in the period.")
    completed = models.BigIntegerField(db_default=0, help_text="Of those, messages that consumers acknowledged.")
    died = models.BigIntegerField(help_text="Messages that became dead letters and were still there.")
    database_bytes = models.BigIntegerField(null=True, help_text="The size of the database; only for all queues.")

    class Meta:
        verbose_name = "history"
        verbose_name_plural = "history"
        constraints = (models.UniqueConstraint(fields=("queue", "at", "hourly"), name="queuesample_once"),)
        indexes = (models.Index(fields=("at",), name="queuesample_at"),)

    def __str__(self) -> str:
        return f"queue {self.queue} until {self.at:%Y-%m-%d %H:%M}"


class SampleMark(models.Model):
    """The last sample's totals of a queue; the next one is the difference. Queue 0 has the time of the last sample."""

    queue = models.IntegerField(primary_key=True)
    at = MomentField()
    ready = models.BigIntegerField()
    leased = models.BigIntegerField()
    delayed = models.BigIntegerField()
    dead = models.BigIntegerField()
    published = models.BigIntegerField()
    settled = models.BigIntegerField()
    completed = models.BigIntegerField(null=True, help_text="Null until the first sample that knows it.")

    def __str__(self) -> str:
        return f"queue {self.queue} at {self.at:%Y-%m-%d %H:%M:%S}"
