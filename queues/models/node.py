"""Processes that run the engine, and which queues each of them serves."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey


class Node(models.Model):
    """A process that runs the engine. It lives as long as it holds the advisory lock of its id."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=255, help_text="Program and host.")
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    started_at = MomentField(db_default=Now())
    first_message_id = models.BigIntegerField(help_text="Every message this node inserted has a greater id.")
    engine = models.UUIDField(null=True, help_text="Its engine, which is another node after each reconnect.")

    class Meta:
        ordering = ("id",)
        permissions = (("end_backend", "Can end a database session that holds back vacuum"),)

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid})"


class DeadNode(models.Model):
    """A node that others had to bury: its process or connection ended without leaving. Rows are kept for a day."""

    id = models.IntegerField(primary_key=True, help_text="As the node's.")
    name = models.CharField(max_length=255)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    started_at = MomentField()
    died_at = MomentField(db_default=Now())
    engine = models.UUIDField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid}), dead since {self.died_at:%Y-%m-%d %H:%M:%S}"


class Interest(models.Model):
    """A node has consumers for a queue: others leave messages ready for it and wake it."""

    queue = models.ForeignKey("queues.Queue", on_delete=models.CASCADE, related_name="interests", db_constraint=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="interests", db_constraint=False)
    since = MomentField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("queue", "node"), name="interest_once"),)

    def __str__(self) -> str:
        return f"node {self.node_id} serves queue {self.queue_id}"


class Consumer(models.Model):
    """A consumer of a queue with a single active one, in the order in which they came. The engine's functions write
    these rows, and the database removes them with their node or queue."""

    id = models.BigAutoField(primary_key=True)
    # The constraints are in the migration: Django could not let them delete by themselves.
    queue = UncheckedForeignKey("queues.Queue", related_name="line")
    node = UncheckedForeignKey(Node)
    connection = models.BigIntegerField(null=True, help_text="The id of its client's connection.")
    name = models.TextField(help_text="The protocol, and the client's address and name.")
    active = models.BooleanField(db_default=False)
    since = MomentField(db_default=Now())
    active_since = MomentField(null=True)

    class Meta:
        default_permissions = ()
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("queue",), condition=Q(active=True), name="consumer_active_once"),
        )
        indexes = (
            models.Index(fields=("queue", "id"), name="consumer_line"),
            models.Index(fields=("node",), name="consumer_node"),
        )

    def __str__(self) -> str:
        return f"{self.name or 'a consumer'} {'is active' if self.active else 'waits'}"
