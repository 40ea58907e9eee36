"""Subscriptions of topics, routes, and what these and the ways of dead letters have carried."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.postgres import HashIndex
from queues.models.unchecked import UncheckedForeignKey

SOURCE = RegexValidator(r"(?s)\A(queue|topic):.+\Z", "An address is queue:NAME or topic:NAME.")
TARGET = RegexValidator(r"(?s)\A(queue|topic|peer):.+\Z", "An address is queue:NAME, topic:NAME or peer:NAME.")


class Topology(models.Model):
    """One row: a version that every change of queues, subscriptions and routes moves on.

    A publish checks it in its own transaction, so that no node routes by what another has outdated.
    """

    id = models.SmallIntegerField(primary_key=True, default=1, db_default=1)
    version = models.BigIntegerField(default=1, db_default=1)

    class Meta:
        verbose_name_plural = "topologies"
        constraints = (models.CheckConstraint(condition=Q(id=1), name="topology_one_row"),)

    def __str__(self) -> str:
        return f"version {self.version}"


class Subscription(models.Model):
    """A topic's subscriber, with a queue of its own. It outlives connections and restarts."""

    id = models.BigAutoField(primary_key=True)
    topic = models.BinaryField(help_text="The topic's exact bytes, UTF-8.")
    qos = models.SmallIntegerField()
    queue = models.OneToOneField("queues.Queue", on_delete=models.CASCADE, related_name="subscription")
    owner = models.ForeignKey("queues.ApiKey", null=True, on_delete=models.SET_NULL, related_name="+")
    next_tag = models.BigIntegerField(default=1, db_default=1, help_text="Delivery tags below this one are used.")
    created_at = MomentField(db_default=Now())
    used_at = MomentField(db_default=Now(), help_text="Last polled, to the minute.")
    ends_at = MomentField(
        "ends", null=True, editable=False, help_text="Then it ends with its messages, unless it is polled before."
    )

    class Meta:
        ordering = ("id",)
        constraints = (
            models.CheckConstraint(condition=Q(qos__in=(0, 1)), name="subscription_qos_known"),
            models.CheckConstraint(condition=~Q(topic=b""), name="subscription_topic_not_empty"),
        )
        indexes = (HashIndex(fields=("topic",), name="subscription_topic"),)

    def __str__(self) -> str:
        return f"{self.id} of {self.topic_text}"

    @property
    def topic_text(self) -> str:
        """The topic as text; bytes that are not UTF-8 are replaced."""
        return bytes(self.topic).decode("utf-8", "replace")


class Route(models.Model):
    """Messages published to `source` are copied to `target` in the same transaction."""

    source = models.CharField(max_length=262, validators=(SOURCE,), help_text="topic:NAME or queue:NAME")
    target = models.CharField(max_length=262, validators=(TARGET,), help_text="topic:NAME, queue:NAME or peer:NAME")
    created_at = MomentField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("source", "target")
        constraints = (
            models.UniqueConstraint(fields=("source", "target"), name="route_once"),
            models.CheckConstraint(condition=~Q(source=F("target")), name="route_not_to_itself"),
            models.CheckConstraint(
                condition=Q(source__regex=r"^(queue|topic):.") & Q(target__regex=r"^(queue|topic|peer):."),
                name="route_addresses",
            ),
        )

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def typed_name(self) -> str:
        """Its name as a keyboard has it, to be typed before it is deleted."""
        return f"{self.source} {self.target}"


class RouteCount(models.Model):
    """The number of messages that a route has carried: exact together with the route's `RouteTally` rows."""

    # The constraint is in the migration: Django could not let it delete by itself.
    route = models.OneToOneField(
        Route, primary_key=True, on_delete=models.DO_NOTHING, related_name="count", db_constraint=False
    )
    carried = models.BigIntegerField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.route_id}: {self.carried}"


class RouteTally(models.Model):
    """Messages that a route has carried in some seconds, or in one transaction; folded into `RouteCount` later."""

    route = UncheckedForeignKey(Route)
    carried = models.BigIntegerField()
    at = MomentField(db_default=Now())

    class Meta:
        default_permissions = ()
        verbose_name_plural = "route tallies"
        indexes = (models.Index(fields=("at",), name="routetally_at"),)

    def __str__(self) -> str:
        return f"{self.route_id}: {self.carried:+}"


class DeadLetterCount(models.Model):
    """The number of dead letters that went from a queue to another: exact together with the `DeadLetterTally` rows."""

    # The constraints are in the migration, as that of `RouteCount`.
    queue = UncheckedForeignKey("queues.Queue")
    target = models.ForeignKey("queues.Queue", on_delete=models.DO_NOTHING, related_name="+", db_constraint=False)
    carried = models.BigIntegerField()

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("queue", "target"), name="deadlettercount_once"),)

    def __str__(self) -> str:
        return f"{self.queue_id} to {self.target_id}: {self.carried}"


class DeadLetterTally(models.Model):
    """Dead letters that went from a queue to another in one transaction; folded into `DeadLetterCount` later."""

    queue = UncheckedForeignKey("queues.Queue")
    target = UncheckedForeignKey("queues.Queue")
    carried = models.BigIntegerField()
    at = MomentField(db_default=Now())

    class Meta:
        default_permissions = ()
        verbose_name_plural = "dead letter tallies"
        indexes = (models.Index(fields=("at",), name="deadlettertally_at"),)

    def __str__(self) -> str:
        return f"{self.queue_id} to {self.target_id}: {self.carried:+}"
