"""Connections of clients: a snapshot that every node writes."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from queues.formats.connection_ids import parts_of_id
from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey
from queues.permissions.rules import Protocol

#: Protocols whose clients have connections of their own.
PROTOCOLS = (Protocol.OVERHOP, Protocol.BLIPMQ, Protocol.SSPQ, Protocol.PEERBUS)


class Connection(models.Model):
    """A client's connection. Its node writes the row, and the database removes it with the node's.

    Of a node with very many connections only some have rows (`queues.engine.clients`); `ConnectionTotal` is of all.
    """

    id = models.BigIntegerField(primary_key=True, help_text="The node's id, and the connection's number there.")
    # The constraint is in the migration: Django could not let it delete by itself.
    node = UncheckedForeignKey("queues.Node", related_name="connections")
    protocol = models.TextField(choices=[(one.value, one.value) for one in PROTOCOLS])
    address = models.TextField(help_text="The remote address and port.")
    name = models.TextField(blank=True, help_text="A worker's or a peer's name.")
    key = UncheckedForeignKey("queues.ApiKey", null=True, verbose_name="API key")
    connected_at = MomentField()
    messages_in = models.BigIntegerField(help_text="Messages that it has published.")
    messages_out = models.BigIntegerField(help_text="Messages that were delivered to it.")
    in_rate = models.FloatField(help_text="Messages a second.")
    out_rate = models.FloatField(help_text="Messages a second.")
    rate = models.FloatField(help_text="Messages a second in both directions.")
    unacked = models.BigIntegerField(help_text="Messages that it was given and has not settled.")
    held_bytes = models.BigIntegerField(help_text="Bytes received and not handled, and sent and not taken.")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return shown_id(self.id)


class ConnectionTotal(models.Model):
    """All connections of a node over one protocol."""

    pk = models.CompositePrimaryKey("node_id", "protocol")
    node = models.ForeignKey("queues.Node", on_delete=models.DO_NOTHING, related_name="+", db_constraint=False)
    protocol = models.TextField()
    connections = models.IntegerField()
    in_rate = models.FloatField(help_text="Messages a second.")
    out_rate = models.FloatField(help_text="Messages a second.")
    at = MomentField(db_default=Now(), help_text="When the node told of it.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.connections} over {self.protocol} at node {self.node_id}"


def shown_id(id: int) -> str:
    """A connection's id as people read it: NODE-NUMBER."""
    return "{}-{}".format(*parts_of_id(id))
