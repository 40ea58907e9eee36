"""One transaction of a mailbox service: letters posted, delivered and acknowledged, and their audit rows.

One round trip carries everything but the record: each letter's place in its recipient's mailbox is known only when it
is stored. A second one writes the record and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from queues.audit.events import Event, parts
from queues.canonical import json_string
from queues.engine import audit
from queues.engine.clock import wall_offset
from queues.engine.consume.backlog import ClaimResult
from queues.engine.database import Connection
from queues.engine.errors import Later, Undeliverable
from queues.engine.faults import told
from queues.engine.isolation import halves
from queues.engine.mailbox.mailbox import Mailbox, PeerMessage
from queues.engine.message import Content, Failure
from queues.engine.publish.destination import Destination
from queues.engine.settle.batches import KEPT, Kind, Settlements, settle_parameters
from queues.engine.statements import array, statement
from queues.engine.uuids import message_uuid

#: The audit chain of letters between peers.
CHAIN = "peerbus"
#: The sender of messages that came over a route.
GATEWAY = "fivewire"
#: Mailboxes of this node that a broadcast is leased to as it is stored; others fetch it from the store.
MOST_LOCALS = 128
#: Mailboxes that are filled from the store in one transaction.
MOST_CLAIMS = 16

STORED_ROW = tuple[int, int, int, bool, str | None, int | None]


class Posting(NamedTuple):
    """A letter to store. No recipient: for everyone who is connected. `id` is unique over all senders."""

    sender: Mailbox
    id: str
    recipient: str | None
    body: bytes


class Forward(NamedTuple):
    """A letter to a queue or topic."""

    sender: Mailbox
    id: str
    destination: Destination
    body: bytes


class Acked(NamedTuple):
    """A letter was acknowledged by its key. `out`: its id and when it was delivered (monotonic), if it was out."""

    mailbox: Mailbox
    key: str
    out: tuple[int, float] | None


@dataclass(slots=True)
class Round:
    """The input of one transaction for peers. It is done again, whole, when the connection is lost in the middle."""

    postings: list[Posting] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    acks: list[Acked] = field(default_factory=list)
    asking: list[Mailbox] = field(default_factory=list)
    claims: list[Mailbox] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.postings or self.forwards or self.acks or self.asking or self.claims)

    @property
    def settled(self) -> dict[int, tuple[float | None, Mailbox]]:
        """Acknowledged letters that were out: by id, when each was delivered (monotonic), and its mailbox."""
        return {one.out[0]: (one.out[1], one.mailbox) for one in self.acks if one.out is not None}

    def post(self, posting: Posting) -> None:
        self.postings.append(posting)

    def forward(self, forward: Forward) -> None:
        self.forwards.append(forward)

    def acknowledge(self, mailbox: Mailbox, key: str, out: tuple[int, float] | None) -> None:
        self.acks.append(Acked(mailbox, key, out))

    def ask(self, mailbox: Mailbox) -> None:
        self.asking.append(mailbox)

    def claim(self, mailbox: Mailbox) -> None:
        self.claims.append(mailbox)

    def forget_claims(self) -> None:
        """The connections are lost: mailboxes are taken again before anything is fetched for them."""
        self.claims.clear()

    def forget_ids(self) -> None:
        """The store has another past: acknowledged letters are found by their keys alone."""
        self.acks = [one._replace(out=None) for one in self.acks]

    def apart(self) -> list[Round]:
        """The same work in two rounds, in the order in which one does it; nothing of a single item."""
        items: list[tuple[str, Any]] = []
        for kind in ("forwards", "acks", "postings", "claims", "asking"):
            items += [(kind, one) for one in getattr(self, kind)]
        rounds = [Round() for _ in halves(items)]
        for round, some in zip(rounds, halves(items), strict=True):
            for kind, one in some:
                getattr(round, kind).append(one)
        return rounds


class Exchange:
    """One transaction's work and result; the attributes from `deliveries` on are valid after `run`."""

    def __init__(
        self, round: Round, locals: Sequence[Mailbox], node: int, relaxed: bool, audited: bool,
        may_record: Callable[[int], bool],
    ) -> None:  # fmt: skip
        """`may_record`: whether an acknowledgement that settles nothing, by an API key, is recorded."""
        self.round = round
        self.locals = locals
        self.node = node
        self.relaxed = relaxed
        self.audited = audited
        self.may_record = may_record
        #: Letters to deliver, with their ids, by mailbox.
        self.deliveries: dict[Mailbox, list[tuple[int, PeerMessage]]] = {}
        #: Mailbox, the backlog's news from before, and the claim.
        self.claims: list[tuple[Mailbox, int, ClaimResult]] = []
        #: Left in the store: queue, id, the node that serves it.
        self.left: list[tuple[int, int, int | None]] = []
        self.names: list[str] = []
        self.undeliverable: list[tuple[Mailbox, Failure]] = []
        #: Key, mailbox and error of letters that raised an unforeseen error.
        self.unforeseen: list[tuple[str, str, Exception]] = []
        self.stored = 0
        self.dropped = 0
        self.settled = 0
        #: Acknowledgements of letters that do not exist, which have no row in the audit chain.
        self.stray = 0
        self.events: list[Event] = []
        #: Queues that may hold more than they should now.
        self.overfull: set[int] = set()

    async def run(self, connection: Connection) -> None:
        """Write and commit. Raises psycopg's errors; then nothing was done."""
        round = self.round
        async with connection.pipeline(), connection.transaction():
            await self._hold(connection)
            if round.forwards:
                await self._forward(connection)
            settled = round.settled
            if round.acks:
                settled = await self._acknowledge(connection) | settled
            storing = naming = head = None
            if settled:
                parameters = settle_parameters(_settlements(settled), wall_offset())
                await connection.execute(statement("settle"), parameters)
                self.settled = len(settled)
            if round.postings:
                storing = await self._store(connection)
            claiming = [
                (mailbox, mailbox.backlog.news, await self._claim(connection, mailbox)) for mailbox in round.claims
            ]
            if round.asking:
                naming = await connection.execute(statement("connected_names"))
            if self.audited and (self.events or storing is not None or claiming):
                head = await connection.execute(statement("audit_head"), {"chain": CHAIN})
            if storing is not None:
                self._stored(await storing.fetchall())
            for mailbox, news, cursor in claiming:
                self._claimed(mailbox, news, await cursor.fetchall())
            if naming is not None and (row := await naming.fetchone()) is not None:
                self.names = sorted(row[0])
            if head is not None:
                at = await head.fetchone()
                await self._record(connection, at)

    async def _record(self, connection: Connection, head: Any) -> None:
        """Append the events to the audit chain, whose head is locked."""
        for n, part in enumerate(parts(self.events)):
            try:
                if n:
                    await audit.append(connection, CHAIN, part)
                else:
                    await audit.append_at(connection, CHAIN, head, part)
            except audit.ChainBroken as error:
                raise Later(error.why) from error

    async def _hold(self, connection: Connection) -> None:
        """Senders and recipients keep their mailboxes until the commit."""
        round = self.round
        held = {posting.sender for posting in round.postings} | {forward.sender for forward in round.forwards}
        held.update(self.locals, round.claims)
        if held:
            parameters = {
                "mailboxes": array(mailbox.queue for mailbox in held),
                "connections": array(mailbox.connection for mailbox in held),
            }
            await connection.execute(statement("hold_mailboxes"), parameters)

    # Storing.

    async def _store(self, connection: Connection) -> Any:
        postings, locals = self.round.postings, self.locals
        senders = list({posting.sender for posting in postings})
        headers = {sender: headers_of(sender.name) for sender in senders}
        parameters = {
            "node": self.node,
            "mailboxes": array(sender.queue for sender in senders),
            "connections": array(sender.connection for sender in senders),
            "senders": array(posting.sender.queue for posting in postings),
            "ids": [posting.id.encode() for posting in postings],
            "recipients": [posting.recipient for posting in postings],
            "keys": [posting.id for posting in postings],
            "headers": [headers[posting.sender] for posting in postings],
            "producers": array(posting.sender.key for posting in postings),
            "bodies": [posting.body for posting in postings],
            "broadcasts": any(posting.recipient is None for posting in postings),
            "locals": array(mailbox.queue for mailbox in locals),
            "local_connections": array(mailbox.connection for mailbox in locals),
            "lows": array(mailbox.backlog.watermark.value for mailbox in locals),
            "rooms": array(mailbox.room for mailbox in locals),
            "byte_rooms": array(mailbox.holder.room_bytes for mailbox in locals),
        }
        return await connection.execute(statement("store_letters"), parameters, binary=True)

    def _stored(self, rows: Iterable[STORED_ROW]) -> None:
        postings, sent, delivered = self.round.postings, set(), []
        by_queue = {mailbox.queue: mailbox for mailbox in self.locals}
        for n, id, queue, leased, copy_of, node in rows:
            sender, key, recipient, body = postings[n - 1]
            sent.add(n)
            self.stored += 1
            if copy_of is not None:
                key, recipient = f"{key}|{copy_of}", copy_of
            self.events.append(Event("send", key, sender.name, recipient or ""))
            if leased:
                delivered.append((by_queue[queue], id, PeerMessage(key, body, Content.LETTER, sender.name, 0.0)))
            else:
                self.left.append((queue, id, node))
        for mailbox, id, letter in delivered:
            self._deliver(mailbox, id, letter)
        self.dropped += len(postings) - len(sent)

    # Delivering.

    async def _claim(self, connection: Connection, mailbox: Mailbox) -> Any:
        parameters = {
            "queue": mailbox.queue, "connection": mailbox.connection, "node": self.node,
            "low": mailbox.backlog.watermark.value,
            "limit": min(mailbox.most, mailbox.room), "room_bytes": mailbox.holder.room_bytes,
        }  # fmt: skip
        return await connection.execute(statement("claim_letters"), parameters, binary=True)

    def _claimed(self, mailbox: Mailbox, news: int, rows: Sequence[tuple[Any, ...]]) -> None:
        (_, _, snapshot, _, more, *_), *letters = rows
        last_id = letters[-1][0] if letters else None
        self.claims.append((mailbox, news, ClaimResult(snapshot, bool(more), last_id, len(letters))))
        for id, payload, key, attempts, content, first_id, sender, published in letters:
            if content == Content.LETTER and key is not None:
                letter = PeerMessage(key, payload, content, sender or "", published)
            else:
                assert mailbox.policy is not None
                raw = PeerMessage(
                    str(message_uuid(UUID(mailbox.policy.uuid), first_id)), payload, content, GATEWAY, published
                )
                try:
                    letter = raw._replace(payload=mailbox.holder.wrap(raw), content=Content.LETTER)
                except Undeliverable as error:
                    self.undeliverable.append((mailbox, Failure(id, attempts + 1, error=str(error))))
                    continue
                except Exception as error:
                    self.undeliverable.append((mailbox, Failure(id, attempts + 1, error=told(error))))
                    self.unforeseen.append((raw.key, mailbox.name, error))
                    continue
                if not attempts:
                    self.events.append(Event("send", letter.key, GATEWAY, mailbox.name))
            self._deliver(mailbox, id, letter)

    def _deliver(self, mailbox: Mailbox, id: int, message: PeerMessage) -> None:
        """Note a letter for a mailbox, and the record of it, unless it is out since before the database was lost."""
        self.deliveries.setdefault(mailbox, []).append((id, message))
        if message.key not in mailbox.unacked:
            self.events.append(Event("deliver", message.key, message.sender, mailbox.name))

    # Acknowledging.

    async def _acknowledge(self, connection: Connection) -> dict[int, tuple[float | None, Mailbox]]:
        """Note the events of acknowledgements; returns those of letters that are in the store, but not out."""
        found = await self._find(connection)
        here = {(mailbox, key) for mailbox, key in found.values()}
        for mailbox, key, out in self.round.acks:
            if out is not None or (mailbox, key) in here or self.may_record(mailbox.key):
                self.events.append(Event("ack", key, mailbox.name, ""))
                if out is None:
                    here.discard((mailbox, key))
            else:
                self.stray += 1
        return {id: (None, mailbox) for id, (mailbox, _) in found.items()}

    async def _find(self, connection: Connection) -> dict[int, tuple[Mailbox, str]]:
        """Letters that were acknowledged and are not out on this connection, but are in the store."""
        found: dict[int, tuple[Mailbox, str]] = {}
        keys: dict[Mailbox, dict[str, None]] = {}
        for mailbox, key, out in self.round.acks:
            if out is None:
                keys.setdefault(mailbox, {})[key] = None
        for mailbox, some in keys.items():
            parameters = {"queue": None if self.relaxed else mailbox.queue, "keys": list(some)}
            cursor = await connection.execute(statement("find_letters"), parameters)
            found |= {id: (mailbox, key) for id, key in await cursor.fetchall()}
        return found

    # To queues and topics.

    async def _forward(self, connection: Connection) -> None:
        """Publish letters to queues and topics, each group of one destination in order."""
        forwards = self.round.forwards
        parameters = {
            "ids": [forward.id.encode() for forward in forwards],
            "senders": array(forward.sender.queue for forward in forwards),
            "connections": array(forward.sender.connection for forward in forwards),
        }
        cursor = await connection.execute(statement("see_letters"), parameters)
        fresh = {bytes(id).decode() for (id,) in await cursor.fetchall()}
        groups: dict[Destination, list[Forward]] = {}
        for forward in forwards:
            if forward.id in fresh:
                fresh.discard(forward.id)
                groups.setdefault(forward.destination, []).append(forward)
            else:
                self.dropped += 1
        for destination, some in groups.items():
            await self._publish(connection, destination, some)

    async def _publish(self, connection: Connection, destination: Destination, some: list[Forward]) -> None:
        # Still letters: with the content type or headers of another protocol they could pass for its own messages.
        count, nothing = len(some), [None] * len(some)
        parameters = {
            "kind": destination.kind, "name": destination.name.decode(), "exact": True,
            "bodies": [forward.body for forward in some], "keys": nothing,
            "headers": [headers_of(forward.sender.name) for forward in some],
            "delays": array([0] * count), "ttls": nothing, "attempts": nothing, "priorities": array([0] * count),
            "contents": array([int(Content.LETTER)] * count),
        }  # fmt: skip
        cursor = await connection.execute(statement("publish_routed"), parameters)
        row = await cursor.fetchone()
        assert row is not None
        exists, reached, full, dropping, *_ = row
        if not exists or full:
            ids = [forward.id.encode() for forward in some]
            await connection.execute(statement("unsee_letters"), {"ids": ids})
        if not exists or full or not reached:
            self.dropped += count
            return
        self.overfull.update(dropping or ())
        self.stored += count
        self.events += [
            Event("send", forward.id, forward.sender.name, str(forward.destination)) for forward in some
        ]


def headers_of(sender: str) -> str:
    """The headers of a stored letter: the name of its sender's connection."""
    return '{"from":' + json_string(sender) + "}"


def _settlements(settled: dict[int, tuple[float | None, Mailbox]]) -> list[Settlements]:
    """Acknowledged letters, by their mailboxes."""
    found: dict[Mailbox, Settlements] = {}
    for id, (delivered, mailbox) in settled.items():
        if mailbox not in found:
            keep = KEPT[mailbox.policy.retention if mailbox.policy else "metadata"]
            found[mailbox] = Settlements(Kind.ACKNOWLEDGE, consumer=mailbox.key, keep=keep)
        found[mailbox].add_many([id], [delivered])
    return list(found.values())
