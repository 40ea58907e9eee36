"""Queues: their policy, and how many messages they hold."""

from __future__ import annotations

import datetime
import uuid

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from queues.config.settings import settings
from queues.models.moment import MomentField
from queues.permissions.rules import SYSTEM_PREFIX


class QueueKind(models.TextChoices):
    """The users of a queue: producers by its own name, one subscriber of a topic, or one peer."""

    QUEUE = "queue", "queue"
    SUBSCRIPTION = "subscription", "subscription"
    MAILBOX = "mailbox", "mailbox"


class Overflow(models.TextChoices):
    """The treatment of a publish to a full queue."""

    REJECT = "reject", "reject the new message"
    DROP_OLDEST = "drop-oldest", "drop the oldest message"


class Retention(models.TextChoices):
    """The part of a finished message that the archive keeps."""

    NONE = "none", "nothing"
    METADATA = "metadata", "metadata"
    FULL = "full", "metadata, headers and payload"


def default_max_attempts() -> int:
    return int(settings.BROKER_DEFAULT_MAX_ATTEMPTS)


def default_retry_backoff() -> datetime.timedelta:
    return datetime.timedelta(seconds=settings.BROKER_DEFAULT_RETRY_BACKOFF)


def default_ack_timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=settings.BROKER_DEFAULT_ACK_TIMEOUT)


class Queue(models.Model):
    """A queue and its policy. Times are durations; empty means "no limit"."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=255, unique=True, help_text="Names beginning with _ are the system's.")
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(
        max_length=16, choices=QueueKind, default=QueueKind.QUEUE, db_default=QueueKind.QUEUE, editable=False
    )
    paused = models.BooleanField(default=False, db_default=False, help_text="Nothing is delivered while paused.")
    refuse_when_paused = models.BooleanField(
        default=False, db_default=False, help_text="While paused, refuse consumers, where the protocol can."
    )
    concurrency_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum number of leased messages at a time, over all nodes."
    )
    single_active_consumer = models.BooleanField(
        default=False,
        db_default=False,
        help_text="One consumer at a time is given messages, over all nodes; the others wait for its end.",
    )
    max_attempts = models.PositiveSmallIntegerField(
        default=default_max_attempts, help_text="Deliveries before a message becomes a dead letter; 0: without limit."
    )
    retry_backoff = models.DurationField(
        default=default_retry_backoff, help_text="Wait before the second delivery; doubles with each further one."
    )
    retry_backoff_cap = models.DurationField(
        default=datetime.timedelta(hours=1),
        db_default=datetime.timedelta(hours=1),
        help_text="Longest wait between two deliveries.",
    )
    ack_timeout = models.DurationField(
        null=True,
        blank=True,
        default=default_ack_timeout,
        help_text="How long a consumer may hold a message; empty: as long as it is connected.",
    )
    message_ttl = models.DurationField(
        null=True, blank=True, help_text="How long a message may wait before it expires; empty: for ever."
    )
    max_length = models.PositiveIntegerField(
        null=True, blank=True, help_text="Most messages held, dead letters not counted; empty: without limit."
    )
    overflow = models.CharField(max_length=16, choices=Overflow, default=Overflow.REJECT, db_default=Overflow.REJECT)
    retention = models.CharField(
        max_length=16,
        choices=Retention,
        default=Retention.METADATA,
        db_default=Retention.METADATA,
        help_text="The part of a finished message that the archive keeps.",
    )
    allow_job_overrides = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Whether a job may have its own maximum of attempts and retry interval.",
    )
    audited = models.BooleanField(
        default=False, db_default=False, help_text="Record the events of each message in the queue's own audit chain."
    )
    dead_letter_queue = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Queue for dead letters; empty: they stay in this queue.",
    )
    created_at = MomentField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(condition=~Q(name=""), name="queue_name_not_empty"),
            models.CheckConstraint(condition=Q(kind__in=QueueKind.values), name="queue_kind_known"),
            models.CheckConstraint(condition=Q(overflow__in=Overflow.values), name="queue_overflow_known"),
            models.CheckConstraint(condition=Q(retention__in=Retention.values), name="queue_retention_known"),
            models.CheckConstraint(
                condition=Q(audited=False) | ~Q(kind=QueueKind.MAILBOX),
                name="queue_mailbox_not_audited",
                violation_error_message="Letters between peers are recorded in the chain peerbus.",
            ),
            models.CheckConstraint(
                condition=Q(single_active_consumer=False) | ~Q(kind=QueueKind.MAILBOX),
                name="queue_mailbox_has_one_consumer",
                violation_error_message="A peer's mailbox has one consumer anyway.",
            ),
            models.CheckConstraint(
                condition=Q(concurrency_limit=None) | Q(concurrency_limit__gte=1), name="queue_concurrency_positive"
            ),
            models.CheckConstraint(condition=Q(max_length=None) | Q(max_length__gte=1), name="queue_length_positive"),
            models.CheckConstraint(
                condition=Q(retry_backoff__gte=datetime.timedelta(0)), name="queue_backoff_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(dead_letter_queue=None) | ~Q(dead_letter_queue=F("id")),
                name="queue_not_its_own_dead_letter_queue",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_system(self) -> bool:
        """Whether the name is one of the system's own."""
        return self.name.startswith(SYSTEM_PREFIX)


class QueueCount(models.Model):
    """The number of messages in a queue, by state: exact together with the queue's `QueueTally` rows.

    Read it through `queues.store.counts`, which adds the two.
    """

    queue = models.OneToOneField(
        Queue, primary_key=True, on_delete=models.CASCADE, related_name="count", db_constraint=False
    )
    ready = models.BigIntegerField(default=0, db_default=0)
    leased = models.BigIntegerField(default=0, db_default=0)
    delayed = models.BigIntegerField(default=0, db_default=0)
    dead = models.BigIntegerField(default=0, db_default=0)
    published = models.BigIntegerField(default=0, db_default=0, help_text="Messages ever stored in this queue.")
    completed = models.BigIntegerField(default=0, db_default=0, help_text="Messages ever acknowledged.")
    settled = models.BigIntegerField(default=0, db_default=0, help_text="Messages ever settled.")

    def __str__(self) -> str:
        return f"{self.queue_id}: {self.ready} ready"


class QueueTally(models.Model):
    """The difference that one transaction made to a queue's counts; folded into `QueueCount` every second.

    Appended, never updated, so that a pinned xmin horizon makes no chains of dead row versions.
    """

    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False)
    ready = models.IntegerField(db_default=0)
    leased = models.IntegerField(db_default=0)
    delayed = models.IntegerField(db_default=0)
    dead = models.IntegerField(db_default=0)
    published = models.IntegerField(db_default=0)
    completed = models.IntegerField(db_default=0)
    settled = models.IntegerField(db_default=0)

    class Meta:
        verbose_name_plural = "queue tallies"
        indexes = (models.Index(fields=("queue", "id"), name="tally_queue"),)

    def __str__(self) -> str:
        return f"{self.queue_id}: {self.ready:+} ready"
