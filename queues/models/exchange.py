"""Declarations of Celery's clients: bindings of exchanges, and queues that live as long as they have consumers."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from queues.models.moment import MomentField


class ExchangeType(models.TextChoices):
    """The comparison of a message's routing key with those of an exchange's bindings."""

    DIRECT = "direct", "direct"
    TOPIC = "topic", "topic"
    FANOUT = "fanout", "fanout"


class KombuBinding(models.Model):
    """A queue gets messages published to an exchange with a routing key like this one.

    An exchange is nothing but its bindings. They are no `Route`s: those lead from one exact name to another, and every
    change of them is waited for by publishers; reply queues come and go with each `celery inspect`.
    """

    id = models.BigAutoField(primary_key=True)
    exchange = models.TextField()
    type = models.CharField(max_length=16, choices=ExchangeType)
    routing_key = models.TextField(blank=True)
    queue = models.ForeignKey(
        "queues.Queue", on_delete=models.CASCADE, related_name="kombu_bindings", db_constraint=False
    )

    class Meta:
        verbose_name = "Celery binding"
        ordering = ("exchange", "routing_key", "id")
        constraints = (
            models.UniqueConstraint(fields=("exchange", "routing_key", "queue"), name="kombubinding_once"),
            models.CheckConstraint(condition=Q(type__in=ExchangeType.values), name="kombubinding_type_known"),
            models.CheckConstraint(condition=~Q(exchange=""), name="kombubinding_exchange_not_empty"),
        )

    def __str__(self) -> str:
        return f"{self.exchange} [{self.routing_key}] → queue {self.queue_id}"


class TemporaryQueue(models.Model):
    """A queue that goes away with its last consumer: for replies, events and broadcasts.

    Each of its consumers holds an advisory lock in its session, so that it is missed as soon as its process ends.
    """

    queue = models.OneToOneField(
        "queues.Queue", primary_key=True, on_delete=models.CASCADE, related_name="temporary", db_constraint=False
    )
    auto_delete = models.BooleanField(help_text="Deleted when its last consumer leaves.")
    expires = models.DurationField(help_text="Lifetime without a consumer.")
    unused_since = MomentField(null=True, help_text="The start of its time without a consumer.")

    def __str__(self) -> str:
        return f"queue {self.queue_id}"
