"""Connections of clients to all nodes: list them, and end them.

Nodes write those of their own clients to a table (`queues.engine.clients`). An application whose connections are
elsewhere adds a `Source` to `sources` when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Count, Sum

from queues.engine.clients import NUMBER_BITS, connection_id, parts_of_id
from queues.engine.cluster.notifications.formats import Disconnected
from queues.models import Connection, ConnectionTotal, Node
from queues.operations.audit_log import record, record_id
from queues.operations.messages import OperationError
from queues.store import notify

#: Connections of other sources that are listed, at most.
MOST_OTHERS = 200
#: Most bits of a node's id.
NODE_BITS = 31


class ConnectionGone(OperationError):
    """The connection has ended, or there never was one with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherConnection:
    """A connection that is not in the table. `id` begins with the source's word and a colon; `page` is the address of
    the page on which it can be ended."""

    id: str
    protocol: str
    address: str
    name: str
    node: str
    connected_at: datetime
    page: str


class Source(Protocol):
    """Connections of another application."""

    #: The prefix of the ids, before the colon.
    word: str

    def connections(self, most: int) -> list[OtherConnection]:
        """The connections that are open now, the first `most`."""

    def disconnect(self, id: str, by: str) -> None:
        """End the connection with this id, recorded as done by `by`. Raises OperationError."""


sources: list[Source] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolTotal:
    """All connections over a protocol; of these `listed` have rows."""

    protocol: str
    connections: int
    listed: int
    in_rate: float
    out_rate: float


def totals(using: str = DEFAULT_DB_ALIAS) -> list[ProtocolTotal]:
    """The connections of all nodes, by protocol."""
    rows = ConnectionTotal.objects.using(using).values("protocol").order_by("protocol").annotate(
        open=Sum("connections"), incoming=Sum("in_rate"), outgoing=Sum("out_rate")
    )  # fmt: skip
    listed = dict(Connection.objects.using(using).order_by().values_list("protocol").annotate(Count("pk")))
    return [
        ProtocolTotal(
            protocol=row["protocol"], connections=row["open"], listed=listed.get(row["protocol"], 0),
            in_rate=row["incoming"], out_rate=row["outgoing"],
        )
        for row in rows if row["open"]
    ]  # fmt: skip


def others() -> list[OtherConnection]:
    """The connections of other sources."""
    return [one for source in sources for one in source.connections(MOST_OTHERS)]


def disconnect(connections: Sequence[Connection], by: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """End connections; recorded as done by `by`. What their clients have not settled is delivered again, and they may
    come back at once. Nodes obey within a second of the commit. Raises ConnectionGone when the node of one has ended:
    then nothing is done."""
    by_node: dict[int, list[int]] = {}
    for one in connections:
        by_node.setdefault(one.node_id, []).append(parts_of_id(one.pk)[1])
    with transaction.atomic(using=using):
        running = set(Node.objects.using(using).filter(pk__in=by_node).values_list("pk", flat=True))
        for one in connections:
            if one.node_id not in running:
                raise ConnectionGone(f"The node of the connection {one} has ended.")
            key = "" if one.key_id is None else f" key {one.key_id}"
            record(by, "disconnect", record_id(one), f"{one.protocol} {one.address}{key} {one.name}".strip(), using)
        for node, numbers in by_node.items():
            notify(using, Disconnected(node, tuple(numbers)))


def disconnect_id(id: str, by: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """End the connection with this id, as the list shows it. Raises ConnectionGone, or another OperationError."""
    word, colon, _ = id.partition(":")
    if colon:
        source = next((source for source in sources if source.word == word), None)
        if source is None:
            raise ConnectionGone(f"There is no connection {id}.")
        source.disconnect(id, by)
        return
    node, dash, number = id.partition("-")
    if not (dash and _is_number(node, NODE_BITS) and _is_number(number, NUMBER_BITS)):
        raise ConnectionGone(f"There is no connection {id}: an id is as the list shows it, such as 12-345.")
    found = Connection.objects.using(using).filter(pk=connection_id(int(node), int(number))).first()
    if found is None:
        raise ConnectionGone(f"There is no connection {id} any more, or it is not listed.")
    disconnect([found], by, using)


def _is_number(text: str, bits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << bits
