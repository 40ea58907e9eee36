"""The hot tables: every message that is not finished."""

from __future__ import annotations

from django.db import models
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from queues.models.message_id import LEAST_ID, MessageId
from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey


class State(models.IntegerChoices):
    """A message is in exactly one state; it leaves the table when it is finished."""

    READY = 0, "ready"
    LEASED = 1, "leased"
    DELAYED = 2, "delayed"
    DEAD = 3, "dead"
    DEAD_LEASED = 4, "dead, being read"


class Content(models.IntegerChoices):
    """The content type of a payload. A message without it is plain bytes."""

    MSGPACK = 1, "application/msgpack"
    JSON = 2, "application/json"
    LETTER = 3, "application/vnd.peerbus.v1+json"
    CELERY = 4, "application/vnd.fivewire.celery"


class Messages(models.QuerySet["Message"]):
    """Conditions on `id` and `queue` reach segments by an index; an order alone does not: see `within_reach`."""

    def within_reach(
        self, most: int, *, queue: int | None = None, state: int | None = None, after: int = LEAST_ID
    ) -> QuerySet[Message]:
        """Those beyond an id, of a queue (None: of all) in one state (None: in any), among which the first `most` are:
        no segment is read beyond these."""
        last = RawSQL(
            "segment <= (select queues_last_segment(%s, %s::smallint, %s, %s))", [queue, state, after, most],
            output_field=BooleanField(),
        )  # fmt: skip
        rows = self.filter(last, pk__gt=after)
        if queue is not None:
            rows = rows.filter(queue_id=queue)
        if state is not None:
            rows = rows.filter(state=state)
        return rows


class Message(models.Model):
    """One message in one queue. Written by the engine's SQL only; narrow on purpose.

    The model is a view of two tables: `queues_message`, a row a message, has the constraints and indexes below;
    `queues_segment` has one row for plain messages that were published together. `segment`, a column of the view and
    no field, is the first id of a message's segment.

    `id` is the position in the queue: a message that returns to the tail gets a new one and keeps its first in
    `origin_id`. Its highest byte is the priority, negated (`id >> 56` is -priority), so that higher ones come first.
    Columns that are empty for a plain message cost nothing.
    """

    id = MessageId(primary_key=True)
    queue = UncheckedForeignKey("queues.Queue", related_name="messages")
    state = models.SmallIntegerField(choices=State)
    attempts = models.SmallIntegerField(db_default=0, help_text="Deliveries that ended without success.")
    max_attempts = models.SmallIntegerField(null=True, help_text="Overrides the queue's; 0: without limit.")
    node = UncheckedForeignKey("queues.Node", null=True)
    producer = UncheckedForeignKey("queues.ApiKey", null=True)
    published_at = MomentField(db_default=Now())
    due_at = MomentField(null=True, help_text="When a delayed message becomes ready.")
    expires_at = MomentField(null=True)
    dead_at = MomentField(null=True)
    origin_id = models.BigIntegerField(null=True)
    tag = models.BigIntegerField(null=True, help_text="The delivery tag it keeps while it waits to go out again.")
    content = models.SmallIntegerField(null=True, choices=Content, help_text="Type of the payload; empty: bytes.")
    retry_interval = models.IntegerField(null=True, help_text="Milliseconds; overrides the queue's retry backoff.")
    key = models.TextField(null=True, help_text="Public key; unique in the queue while the message lives.")  # noqa: DJ001
    headers = models.JSONField(null=True)
    error = models.TextField(null=True, help_text="The error of the last failed delivery.")  # noqa: DJ001
    payload = models.BinaryField()

    objects = Messages.as_manager()

    class Meta:
        db_table = "queues_openmessage"
        ordering = ("id",)
        constraints = (
            models.CheckConstraint(condition=Q(state__in=State.values), name="message_state_known"),
            models.CheckConstraint(
                condition=Q(state=State.DELAYED, due_at__isnull=False) | ~Q(state=State.DELAYED),
                name="message_delayed_has_due_time",
            ),
            models.CheckConstraint(
                condition=Q(state__in=(State.LEASED, State.DEAD_LEASED), node__isnull=False)
                | (~Q(state__in=(State.LEASED, State.DEAD_LEASED)) & Q(node__isnull=True)),
                name="message_leased_has_node",
            ),
            models.UniqueConstraint(fields=("queue", "key"), condition=Q(key__isnull=False), name="message_key"),
        )
        indexes = (
            models.Index(fields=("queue", "id"), condition=Q(state=State.READY), name="message_ready"),
            models.Index(fields=("queue", "id"), condition=Q(state=State.DEAD), name="message_dead"),
            models.Index(fields=("queue", "id"), condition=Q(state=State.DELAYED), name="message_delayed"),
            models.Index(fields=("due_at",), condition=Q(state=State.DELAYED), name="message_due"),
            models.Index(fields=("expires_at",), condition=Q(expires_at__isnull=False), name="message_expiry"),
            models.Index(fields=("origin_id",), condition=Q(origin_id__isnull=False), name="message_origin"),
            models.Index(fields=("queue", "tag"), condition=Q(tag__isnull=False), name="message_tag"),
        )

    def __str__(self) -> str:
        return f"message {self.origin_id or self.id}"
