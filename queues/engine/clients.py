"""The client connections of this process, for operators: each session counts its messages in a
`ClientConnection`, and the job of `Clients` writes a table of them.

A session adds up whole runs of messages, so a message costs nothing here. Every `LOOK` seconds the job goes over all
clients, in slices between which others have their turn, and computes rates. One statement then tells the store which
connections came, went or showed who they are. What the others do is told as often while an operator looks at them
(`watch`, by a notification that has to be repeated), and else once in `QUIET` seconds: each row that is written leaves
a dead one, which stays for as long as something holds back vacuum.

At most `MAX_LISTED` connections of a node have rows: the busiest when figures were told, and the latest; the totals by
protocol are of all. A connection that ends before it is looked at is never written. The table is unlogged, so clients
that come and go cost no write-ahead log, and its rows go with the node's.

An operator's disconnect comes as an instruction with the connection's number.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from time import time
from typing import Any, Protocol

from queues.database.sql_files import array
from queues.engine.clock import now, wait_for
from queues.engine.database import Connection
from queues.engine.health import Health
from queues.engine.node import LocalNode
from queues.formats.connection_ids import NUMBER_BITS, connection_id

#: Connections of a node that have rows, at most, and how many of these are the latest, whatever they do.
MAX_LISTED = 500
LATEST = 100
#: Seconds between two looks at the connections; with very many, a look takes a twentieth of the time at most.
LOOK = 2.0
SHARE = 20
#: Seconds between two times that figures are told without a look, and for which one notification of a look counts.
QUIET, WATCHED = 60.0, 15.0
#: Clients that are looked at before others have a turn.
SLICE = 500
#: Bytes of an address and of a name that are kept.
MAX_TEXT = 255


class ClientSession(Protocol):
    """The session of a client's connection."""

    def holds(self) -> tuple[int, int]:
        """Messages that were delivered to it and are not settled, and bytes that it keeps in memory."""

    def consumes(self) -> dict[int, int]:
        """Queues that it takes messages from, if it is not listed as their worker or peer, and how many of each were
        delivered to it and are not settled."""

    def disconnect(self) -> None:
        """An operator ends the connection."""


#: A client's API key and name, and the queues that it consumes from.
Identity = tuple[int | None, str, tuple[int, ...]]


@dataclass(slots=True, eq=False, repr=False)
class ClientConnection:
    """One connection, as its session tells of it."""

    number: int
    protocol: str
    address: str
    session: ClientSession
    since: float = field(default_factory=time)
    #: The id of its API key, and the name by which the protocol knows it.
    key: int | None = None
    name: str = ""
    #: Messages that it has published, and that were delivered to it.
    messages_in: int = 0
    messages_out: int = 0
    #: The same a second, since the look before.
    in_rate: float = 0.0
    out_rate: float = 0.0
    _counted: tuple[int, int] = (0, 0)
    _looked: float = field(default_factory=lambda: now())

    def identify(self, key: int | None, name: str = "") -> None:
        """The client has shown an API key, or has a name."""
        self.key, self.name = key, _bounded(name)

    def continue_since(self, since: float) -> None:
        """Another process has handed the connection over, which came then (Unix time)."""
        self.since = since

    def published(self, count: int) -> None:
        """Count messages that it has published."""
        self.messages_in += count

    def delivered(self, count: int) -> None:
        """Count messages that were delivered to it."""
        self.messages_out += count

    def end(self) -> None:
        """Let go of the session: a circle would keep all that it has read until a collection."""
        del self.session

    @property
    def identity(self) -> Identity:
        """Its API key, its name, and its sources of messages."""
        return self.key, self.name, tuple(self.session.consumes())

    @property
    def title(self) -> str:
        """Its protocol, address and name."""
        return f"{self.protocol} {self.address} {self.name}".strip()

    @property
    def rate(self) -> float:
        """Messages a second in both directions."""
        return self.in_rate + self.out_rate

    def look(self, time: float) -> None:
        """Compute the rates since the last look."""
        before, seconds = self._counted, max(time - self._looked, 0.001)
        self._counted, self._looked = (self.messages_in, self.messages_out), time
        self.in_rate = round((self.messages_in - before[0]) / seconds, 1)
        self.out_rate = round((self.messages_out - before[1]) / seconds, 1)

    def row(self, node: int) -> dict[str, Any]:
        """Its row in the table."""
        unacked, held_bytes = self.session.holds()
        consumes = self.session.consumes()
        return {
            "id": connection_id(node, self.number), "protocol": self.protocol, "address": self.address,
            "name": self.name, "key": self.key, "since": round(self.since, 3), "messages_in": self.messages_in,
            "messages_out": self.messages_out, "in_rate": self.in_rate, "out_rate": self.out_rate,
            "unacked": unacked, "held_bytes": held_bytes, "queues": list(consumes),
            "queues_unacked": list(consumes.values()),
        }  # fmt: skip


@dataclass(slots=True)
class Total:
    """The connections of a protocol together, and the messages since the process began."""

    connections: int = 0
    messages_in: int = 0
    messages_out: int = 0
    in_rate: float = 0.0
    out_rate: float = 0.0

    def add(self, client: ClientConnection) -> None:
        """Add an open connection."""
        self.connections += 1
        self.in_rate += client.in_rate
        self.out_rate += client.out_rate
        self.add_messages(client.messages_in, client.messages_out)

    def row(self, protocol: str) -> dict[str, Any]:
        """Its row in the table."""
        return {
            "protocol": protocol, "connections": self.connections, "in_rate": round(self.in_rate, 1),
            "out_rate": round(self.out_rate, 1),
        }  # fmt: skip

    def add_messages(self, messages_in: int, messages_out: int) -> None:
        """Add messages."""
        self.messages_in += messages_in
        self.messages_out += messages_out


class Clients:
    """All client connections of one engine."""

    def __init__(self, node: LocalNode, health: Health) -> None:
        self._node = node
        self._health = health
        self._open: dict[int, ClientConnection] = {}
        self._last = 0
        #: Messages of connections that have ended, by protocol.
        self._ended: defaultdict[str, Total] = defaultdict(Total)
        #: The rows in the table, by the connection's number, and who these have shown to be; the connections that the
        #: totals there tell of, and all that they do; the node that they are of.
        self._written: dict[int, str] = {}
        self._identities: dict[int, Identity] = {}
        self._written_counts: dict[str, int] = {}
        self._written_totals = ""
        self._written_by = 0
        #: Until when an operator looks, and when figures are due although none does.
        self._watched_until = self._figures_due = 0.0
        self._begun_to_watch = asyncio.Event()
        #: By protocol, as of the last look.
        self.totals: dict[str, Total] = {}

    # Called by sessions.

    def add(self, protocol: str, address: str, session: ClientSession) -> ClientConnection:
        """A client has connected; `remove` is due at its end."""
        self._last = (self._last + 1) % (1 << NUMBER_BITS)
        while self._last in self._open:
            self._last = (self._last + 1) % (1 << NUMBER_BITS)
        client = self._open[self._last] = ClientConnection(self._last, protocol, _bounded(address), session)
        return client

    def remove(self, client: ClientConnection) -> None:
        """A client's connection has ended."""
        if self._open.pop(client.number, None) is not None:
            self._ended[client.protocol].add_messages(client.messages_in, client.messages_out)
            client.end()

    # Called by the handlers.

    def watch(self) -> None:
        """An operator looks at the connections for the next seconds."""
        if now() >= self._watched_until:
            self._begun_to_watch.set()
        self._watched_until = now() + WATCHED

    def disconnect(self, number: int) -> None:
        """An operator ends a connection, if it is open still."""
        client = self._open.get(number)
        if client is not None:
            self._health.guard("session", client.session, client.session.disconnect)

    # The table.

    async def run(self, connection: Connection) -> None:
        """Write the table for ever; ends by an exception when the connection is lost."""
        while True:
            self._begun_to_watch.clear()
            spent = await self.look() + await self.write(connection)
            look_at = now() + max(LOOK, SHARE * spent)
            await wait_for(self._begun_to_watch, look_at - now())
            if self._begun_to_watch.is_set():
                await self.write(connection)  # as of the last look: rates are those of a whole stretch
                await asyncio.sleep(look_at - now())

    async def write(self, connection: Connection) -> float:
        """Write what has changed since the last time, as of the last look. Returns the seconds of work here."""
        began = now()
        node, watched = self._node.id, began < self._watched_until
        if self._written_by != node:  # the rows of the node before have gone with it
            self._written_by, self._written, self._identities = node, {}, {}
            self._written_counts, self._written_totals = {}, ""
        figures = watched or began >= self._figures_due
        listed = self._listed(figures)
        told = listed if figures else [one for one in listed if self._identities.get(one.number) != one.identity]
        identities = {client.number: client.identity for client in told}
        rows = {client.number: json.dumps(client.row(node)) for client in told}
        changed = [row for number, row in rows.items() if self._written.get(number) != row]
        gone = self._written.keys() - {client.number for client in listed}
        counts = {protocol: total.connections for protocol, total in self.totals.items()}
        totals = json.dumps([total.row(protocol) for protocol, total in self.totals.items()])
        if not watched and counts == self._written_counts and not (figures and totals != self._written_totals):
            totals = ""
        spent = now() - began
        if changed or gone or totals:
            parameters = {
                "node": node, "rows": f"[{','.join(changed)}]", "totals": totals or "[]",
                "gone": array(connection_id(node, number) for number in gone),
            }  # fmt: skip
            await connection.run("write_connections", parameters)
            self._written |= rows
            self._identities |= identities
            for number in gone:
                del self._written[number], self._identities[number]
            if totals:
                self._written_counts, self._written_totals = counts, totals
        if figures:
            self._figures_due = began + QUIET
        return spent

    async def look(self) -> float:
        """Compute rates and totals; returns the seconds that it took."""
        totals = {protocol: Total(0, ended.messages_in, ended.messages_out) for protocol, ended in self._ended.items()}
        spent, clients = 0.0, list(self._open.values())
        for start in range(0, len(clients), SLICE):
            began = now()
            for client in clients[start : start + SLICE]:
                client.look(began)
                totals.setdefault(client.protocol, Total()).add(client)
            spent += now() - began
            await asyncio.sleep(0)
        self.totals = totals
        return spent

    def _listed(self, anew: bool) -> list[ClientConnection]:
        """The clients that have rows: all, or those that had one already, chosen `anew` the busiest, and the latest."""
        clients = self._open.values()
        if len(clients) <= MAX_LISTED:
            return list(clients)
        if anew:
            kept = heapq.nlargest(MAX_LISTED - LATEST, clients, key=attrgetter("rate"))
        else:
            kept = [self._open[number] for number in self._written if number in self._open]
        known = set(kept)
        others = (client for client in reversed(clients) if client not in known)
        return [*kept, *islice(others, MAX_LISTED - len(kept))]


def _bounded(text: str) -> str:
    """A text from a client as the table can hold it."""
    return text.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore").replace("\0", "\ufffd")
