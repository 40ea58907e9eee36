"""The archive of finished messages: append-only, one partition a day.

It has two tables: `queues_archivedmessage`, a row a message, and `queues_archivedsegment`, a row for messages that were
published together. `queues_archive` is the view of the messages of both; what is written goes to a table.
"""

from __future__ import annotations

from django.db import models
from django.db.models import BooleanField, Func, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast

from queues.models.message import Content
from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey


class Outcome(models.IntegerChoices):
    """The way in which a message left the store."""

    ACKNOWLEDGED = 0, "acknowledged"
    EXPIRED = 1, "expired"
    PURGED = 2, "purged"
    DROPPED = 3, "dropped: the queue was full"
    REMOVED = 4, "removed by an operator"


class ArchivedMessages(models.QuerySet["ArchivedMessage"]):
    """Conditions on `queue`, `finished_at` and `xid` reach segments; one on `id` alone would look at all messages."""

    def with_id(self, id: int) -> QuerySet[ArchivedMessage]:
        """Those with this first id, most often one. Looks at the rows and segments only that may have it."""
        finished = RawSQL("finished_at = any(array(select queues_archived_at(%s)))", [id], output_field=BooleanField())
        return self.filter(finished, pk=id)


class ArchivedMessage(models.Model):
    """A finished message. Both tables are partitioned by the day of `finished_at` (UTC).

    `id` is the message's first id; there is no unique index, so that appending stays cheap.
    """

    id = models.BigIntegerField(primary_key=True)
    queue = UncheckedForeignKey("queues.Queue")
    outcome = models.SmallIntegerField(choices=Outcome)
    attempts = models.SmallIntegerField(help_text="Deliveries that ended without success.")
    producer_id = models.BigIntegerField(null=True, help_text="API key that published it.")
    consumer_id = models.BigIntegerField(null=True, help_text="API key that acknowledged it.")
    published_at = MomentField()
    delivered_at = MomentField(null=True, help_text="The last delivery.")
    finished_at = MomentField()
    size = models.IntegerField(help_text="Bytes of the payload.")
    key = models.TextField(null=True)  # noqa: DJ001
    headers = models.JSONField(null=True)
    payload = models.BinaryField(null=True)
    max_attempts = models.SmallIntegerField(null=True, help_text="Its own; empty: the queue's.")
    retry_interval = models.IntegerField(null=True, help_text="Its own, in milliseconds; empty: the queue's backoff.")
    due_at = MomentField(null=True, help_text="The scheduled time of its last attempt.")
    content = models.SmallIntegerField(null=True, choices=Content, help_text="Type of the payload; empty: bytes.")
    job = models.BooleanField(null=True, help_text="A worker did it.")
    result = models.BinaryField(null=True, help_text="The worker's result, as MessagePack.")
    xid = models.BigIntegerField(
        db_default=Cast(Cast(Func(function="pg_current_xact_id"), models.TextField()), models.BigIntegerField()),
        help_text="The transaction that wrote it; 0: before this column.",
    )

    objects = ArchivedMessages.as_manager()

    class Meta:
        db_table = "queues_archive"
        ordering = ("-finished_at",)
        indexes = (models.Index(fields=("queue", "id"), condition=Q(job=True), name="archive_job"),)

    def __str__(self) -> str:
        return f"message {self.id}, {Outcome(self.outcome).label}"
