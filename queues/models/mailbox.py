"""Mailboxes: queues of named recipients, and which message ids were seen before."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey


class Mailbox(models.Model):
    """A named recipient's queue. At most one connection has it at a time, over all nodes.

    A letter delivered and not acknowledged is leased, with the number of the connection as its tag.
    """

    queue = models.OneToOneField("queues.Queue", primary_key=True, on_delete=models.CASCADE, related_name="mailbox")
    name = models.TextField(unique=True, db_collation="C")
    owner = models.ForeignKey(
        "queues.ApiKey",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="mailboxes",
        help_text="The API key that owns the name; empty: the next one to connect.",
    )
    node = UncheckedForeignKey(
        "queues.Node",
        null=True,
        related_name="mailboxes",
        help_text="The node of its connection; empty: not connected.",
    )
    connection = models.BigIntegerField(null=True, help_text="The number of its connection.")
    created_at = MomentField(db_default=Now())
    connected_at = MomentField(null=True, help_text="The last connect.")
    left_at = MomentField(null=True, help_text="The last disconnect.")

    class Meta:
        ordering = ("name",)
        verbose_name = "peer"
        constraints = (
            models.CheckConstraint(condition=~Q(name=""), name="mailbox_name_not_empty"),
            models.CheckConstraint(
                condition=Q(node__isnull=True, connection__isnull=True)
                | Q(node__isnull=False, connection__isnull=False),
                name="mailbox_connection_has_node",
            ),
        )
        indexes = (
            models.Index(fields=("node",), condition=Q(node__isnull=False), name="mailbox_connected"),
            models.Index(fields=("owner",), condition=Q(owner__isnull=False), name="mailbox_owner"),
        )

    def __str__(self) -> str:
        return self.name


class SeenLetter(models.Model):
    """The id of a letter that was sent within the dedupe window; sending it again stores nothing."""

    id = models.BinaryField(primary_key=True, help_text="The id as UTF-8.")
    at = MomentField(db_default=Now())

    class Meta:
        db_table = "queues_letterseen"
        constraints = (models.CheckConstraint(condition=~Q(id=b""), name="letterseen_id_not_empty"),)

    def __str__(self) -> str:
        return bytes(self.id).decode("utf-8", "replace")
