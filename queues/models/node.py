"""Processes that run the engine, and which queues each of them serves."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Node(models.Model):
    """A process that runs the engine. It lives as long as it holds the advisory lock of its id."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=255, help_text="Program and host.")
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    started_at = models.DateTimeField(db_default=Now())
    first_message_id = models.BigIntegerField(help_text="Every message this node inserted has a greater id.")

    class Meta:
        ordering = ("id",)
        permissions = (("end_backend", "Can end a database session that holds back vacuum"),)

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid})"


class Interest(models.Model):
    """A node has consumers for a queue: others leave messages ready for it and wake it."""

    queue = models.ForeignKey("queues.Queue", on_delete=models.CASCADE, related_name="interests", db_constraint=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="interests", db_constraint=False)
    since = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("queue", "node"), name="interest_once"),)

    def __str__(self) -> str:
        return f"node {self.node_id} serves queue {self.queue_id}"
