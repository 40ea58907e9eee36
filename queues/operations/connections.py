"""Connections of clients to all nodes: list them, and end them.

Nodes write those of their own clients to a table (`queues.engine.clients`). An application whose connections are
elsewhere adds a `Source` to `sources` when it is loaded.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Count, DurationField, ExpressionWrapper, Min, Sum
from django.db.models.functions import Now

from queues.engine.api import Disconnected, Watched
from queues.errors import OperationError
from queues.formats.connection_ids import NUMBER_BITS, connection_id, parts_of_id
from queues.models import Connection, ConnectionTotal, Node
from queues.operations.audit_log import record, record_id
from queues.store.queries import notify, tell

#: Limit of listed connections from other sources.
MAX_OTHERS = 200
#: Seconds between requests to nodes, which forget a request a few seconds later; seconds after which a node's answer is
#: late.
AGAIN, LATE = 5.0, 5.0
#: Seconds to wait for current figures, and seconds between checks for them.
TIMEOUT, PAUSE = 3.0, 0.02
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
    #: Seconds since the last of its nodes told of them.
    age: float


class Watch:
    """Tells nodes often enough that an operator looks at the connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told_at = -math.inf

    def renew(self, using: str = DEFAULT_DB_ALIAS) -> None:
        """Have nodes write figures of connections every two seconds, for some seconds."""
        with self._lock:
            if time.monotonic() - self._told_at < AGAIN:
                return
            self._told_at = time.monotonic()
        tell(using, Watched())

    def wait(self, using: str = DEFAULT_DB_ALIAS) -> None:
        """Have every node write figures of connections once, and wait a few seconds for all."""
        asked = time.monotonic()
        tell(using, Watched())
        while time.monotonic() - asked < TIMEOUT:
            ages = [one.age for one in totals(using)]
            if all(age <= time.monotonic() - asked for age in ages):
                return
            time.sleep(PAUSE)


watch = Watch()


def totals(using: str = DEFAULT_DB_ALIAS) -> list[ProtocolTotal]:
    """The connections of all nodes, by protocol."""
    rows = ConnectionTotal.objects.using(using).values("protocol").order_by("protocol").annotate(
        open=Sum("connections"), incoming=Sum("in_rate"), outgoing=Sum("out_rate"),
        age=ExpressionWrapper(Now() - Min("at"), DurationField()),
    )  # fmt: skip
    listed = dict(Connection.objects.using(using).order_by().values_list("protocol").annotate(Count("pk")))
    return [
        ProtocolTotal(
            protocol=row["protocol"], connections=row["open"], listed=listed.get(row["protocol"], 0),
            in_rate=row["incoming"], out_rate=row["outgoing"], age=row["age"].total_seconds(),
        )
        for row in rows if row["open"]
    ]  # fmt: skip


def others() -> list[OtherConnection]:
    """The connections of other sources."""
    return [one for source in sources for one in source.connections(MAX_OTHERS)]


def disconnect(connection: Connection, using: str = DEFAULT_DB_ALIAS) -> None:
    """End a connection. What its client has not settled is delivered again, and it may come back at once. Its node
    obeys within a second of the commit. Raises ConnectionGone when that has ended."""
    node, number = parts_of_id(connection.pk)
    if not Node.objects.using(using).filter(pk=node).exists():
        raise ConnectionGone(f"The node of the connection {connection} has ended.")
    notify(using, Disconnected(node, (number,)))


def described(connection: Connection) -> str:
    """A connection as the audit chain names it."""
    key = "" if connection.key_id is None else f" key {connection.key_id}"
    return f"{connection.protocol} {connection.address}{key} {connection.name}".strip()


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
    with transaction.atomic(using=using):
        record(by, "disconnect", record_id(found), described(found), using)
        disconnect(found, using)


def _is_number(text: str, bits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << bits
