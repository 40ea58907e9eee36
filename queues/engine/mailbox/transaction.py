"""One transaction of a mailbox service: letters posted, delivered and acknowledged, and their audit rows.

One round trip carries everything but the record: each letter's place in its recipient's mailbox is known only when it
is stored. A second one writes the record and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from queues.canonical import json_string
from queues.engine import audit
from queues.engine.audit import AuditRecord
from queues.engine.clock import wall_offset
from queues.engine.consume.backlog import ClaimResult
from queues.engine.database import Connection
from queues.engine.errors import Later, Undeliverable
from queues.engine.faults import told
from queues.engine.isolation import halves
from queues.engine.mailbox.mailbox import MOST_CLAIMED, Mailbox, PeerMessage
from queues.engine.message import Content, Failure
from queues.engine.publish.destination import Destination
from queues.engine.settle.batches import KEPT, SettlementKind, Settlements, settle_parameters
from queues.engine.statements import array, statement
from queues.engine.uuids import message_uuid
from queues.sqlfiles import text_array

#: The audit chain of letters between peers.
CHAIN = "peerbus"
LETTER = int(Content.LETTER)
#: The sender of messages that came over a route.
GATEWAY = "fivewire"
#: Mailboxes of this node that a broadcast is leased to as it is stored; others fetch it from the store.
MOST_LOCALS = 256
#: Mailboxes that are filled from the store in one transaction, and how much they are given together.
MOST_CLAIMS = 128
MOST_CLAIMED_BYTES = 32 << 20

#: Items and bytes of one transaction, and the connections that it may concern: locks are not without end.
MOST_ITEMS = 4000
MOST_BYTES = 8 << 20
MOST_MAILBOXES = 256

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


class Acks(NamedTuple):
    """Letters that a connection has acknowledged by their keys. `out`: of each its id and when it was delivered
    (monotonic), if it was out."""

    mailbox: Mailbox
    keys: list[str]
    out: list[tuple[int, float] | None]


@dataclass(slots=True, eq=False)
class Round:
    """The input of one transaction for peers. It is done again, whole, when the connection is lost in the middle."""

    postings: list[Posting] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    #: Keys that were acknowledged since the round was opened, by mailbox; then what `begin` made of them.
    acked: dict[Mailbox, list[str]] = field(default_factory=dict)
    acks: list[Acks] = field(default_factory=list)
    asking: list[Mailbox] = field(default_factory=list)
    claims: list[Mailbox] = field(default_factory=list)
    #: The number and the bytes of all items, and of those of each connection; connections that send letters.
    items: int = 0
    size: int = 0
    load: dict[Mailbox, list[int]] = field(default_factory=dict)
    senders: set[Mailbox] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.postings or self.forwards or self.acks or self.asking or self.claims)

    @property
    def full(self) -> bool:
        """Whether the next item has to wait for another round."""
        return self.items >= MOST_ITEMS or self.size >= MOST_BYTES or len(self.senders) >= MOST_MAILBOXES

    def count(self, mailbox: Mailbox, size: int) -> None:
        """Another item of this connection belongs to the round."""
        self.items += 1
        self.size += size
        load = self.load.get(mailbox)
        if load is None:
            load = self.load[mailbox] = [0, 0]
        load[0] += 1
        load[1] += size

    def post(self, posting: Posting) -> None:
        self.postings.append(posting)
        self.senders.add(posting.sender)

    def forward(self, forward: Forward) -> None:
        self.forwards.append(forward)
        self.senders.add(forward.sender)

    def acknowledge(self, mailbox: Mailbox, key: str) -> None:
        self.acked.setdefault(mailbox, []).append(key)

    def ask(self, mailbox: Mailbox) -> None:
        self.asking.append(mailbox)

    def begin(self) -> None:
        """Everything before is durable and delivered: see which of the letters that were acknowledged are out."""
        self.acks = [Acks(mailbox, keys, mailbox.acknowledge(keys)) for mailbox, keys in self.acked.items()]
        self.acked = {}

    def claim(self, mailbox: Mailbox) -> None:
        self.claims.append(mailbox)

    def forget_claims(self) -> None:
        """The connections are lost: mailboxes are taken again before anything is fetched for them."""
        self.claims.clear()

    def forget_ids(self) -> None:
        """The store has another past: acknowledged letters are found by their keys alone."""
        self.acks = [one._replace(out=[None] * len(one.keys)) for one in self.acks]

    def apart(self) -> list[Round]:
        """The same work in two rounds, in the order in which one does it; nothing of a single item."""
        acks = [
            Acks(mailbox, [key], [one]) for mailbox, keys, out in self.acks for key, one in zip(keys, out, strict=True)
        ]
        items: list[tuple[str, Any]] = []
        for kind, some in (
            ("forwards", self.forwards), ("acks", acks), ("postings", self.postings), ("claims", self.claims),
            ("asking", self.asking),
        ):  # fmt: skip
            items += [(kind, one) for one in some]
        rounds = [Round() for _ in halves(items)]
        for round, half in zip(rounds, halves(items), strict=True):
            for kind, one in half:
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
        self._news: list[int] = []
        #: Queues that letters were left in, and not claimed: the first id, and the node that serves the queue.
        self.left: dict[int, tuple[int, int]] = {}
        #: Other queues in which letters became ready: the first position in each.
        self.ready: dict[int, int] = {}
        self.names: list[str] = []
        self.undeliverable: list[tuple[Mailbox, Failure]] = []
        #: Key, mailbox and error of letters that raised an unforeseen error.
        self.unforeseen: list[tuple[str, str, Exception]] = []
        self.stored = 0
        self.dropped = 0
        self.settled = 0
        #: Acknowledgements of letters that do not exist, which have no row in the audit chain.
        self.stray = 0
        self.record = AuditRecord()
        #: Queues that may hold more than they should now.
        self.overfull: set[int] = set()

    async def run(self, connection: Connection) -> None:
        """Write and commit. Raises psycopg's errors; then nothing was done."""
        round = self.round
        async with connection.pipeline(), connection.transaction():
            await self._hold(connection)
            if round.forwards:
                await self._forward(connection)
            storing = claiming = naming = head = None
            if round.acks and (settled := await self._acknowledge(connection)):
                await connection.execute(statement("settle"), settle_parameters(settled, wall_offset()))
                self.settled = sum(len(one.ids) for one in settled)
            if round.postings:
                storing = await self._store(connection)
            if round.claims:
                claiming = await self._claim(connection)
            if round.asking:
                naming = await connection.execute(statement("connected_names"))
            if self.audited and (self.record or storing is not None or claiming is not None):
                head = await connection.execute(statement("audit_head"), {"chain": CHAIN})
            if storing is not None:
                self._stored(await storing.fetchall())
            if claiming is not None:
                self._claimed(await claiming.fetchall())
            if naming is not None and (row := await naming.fetchone()) is not None:
                self.names = sorted(row[0])
            if head is not None:
                try:
                    await audit.append(connection, CHAIN, self.record, await head.fetchone())
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
        senders, keys, recipients, bodies = zip(*postings, strict=True)
        sizes = list(map(len, bodies))
        known = list(dict.fromkeys(senders))
        parameters = {
            "node": self.node,
            "mailboxes": array(sender.queue for sender in known),
            "connections": array(sender.connection for sender in known),
            "producers": array(sender.key for sender in known),
            "headers": text_array(headers_of(sender.name) for sender in known),
            "senders": array(sender.queue for sender in senders),
            "keys": text_array(keys),
            "recipients": text_array(recipient or "" for recipient in recipients),
            "payloads": b"".join(bodies),
            "sizes": array(sizes),
            "starts": array(accumulate(sizes[:-1], initial=1)),
            "broadcasts": None in recipients,
            "locals": array(mailbox.queue for mailbox in locals),
            "local_connections": array(mailbox.connection for mailbox in locals),
            "lows": array(mailbox.backlog.watermark.value for mailbox in locals),
            "rooms": array(mailbox.room for mailbox in locals),
            "byte_rooms": array(mailbox.holder.room_bytes for mailbox in locals),
        }
        return await connection.execute(statement("store_letters"), parameters, binary=True)

    def _stored(self, rows: Sequence[STORED_ROW]) -> None:
        postings, record, delivered = self.round.postings, self.record, AuditRecord()
        by_queue = {mailbox.queue: mailbox for mailbox in self.locals}
        claimed = {mailbox.queue for mailbox in self.round.claims}
        for n, id, queue, leased, copy_of, node in rows:
            sender, key, recipient, body = postings[n - 1]
            if copy_of is not None:
                key, recipient = f"{key}|{copy_of}", copy_of
            record.add("send", key, sender.name, recipient or "")
            if leased:
                mailbox = by_queue[queue]
                self.deliveries.setdefault(mailbox, []).append((id, PeerMessage(key, body, LETTER, sender.name, 0.0)))
                delivered.add("deliver", key, sender.name, mailbox.name)
            elif node is not None and queue not in claimed:
                self.left.setdefault(queue, (id, node))
        record.extend(delivered)
        self.stored += len(rows)
        self.dropped += len(postings) - len({row[0] for row in rows})

    # Delivering.

    async def _claim(self, connection: Connection) -> Any:
        claims = self.round.claims
        self._news = [mailbox.backlog.news for mailbox in claims]
        most, room = max(1, MOST_CLAIMED // len(claims)), MOST_CLAIMED_BYTES // len(claims)
        parameters = {
            "node": self.node,
            "queues": array(mailbox.queue for mailbox in claims),
            "connections": array(mailbox.connection for mailbox in claims),
            "lows": array(mailbox.backlog.watermark.value for mailbox in claims),
            "most": array(min(mailbox.most, mailbox.room, most) for mailbox in claims),
            "byte_rooms": array(min(mailbox.holder.room_bytes, room) for mailbox in claims),
        }
        return await connection.execute(statement("claim_letters"), parameters, binary=True)

    def _claimed(self, rows: Iterable[tuple[Any, ...]]) -> None:
        found = {queue: list(some) for queue, some in groupby(rows, itemgetter(0))}
        for mailbox, news in zip(self.round.claims, self._news, strict=True):
            (_, _, _, snapshot, _, more, *_), *letters = found[mailbox.queue]
            last_id = letters[-1][1] if letters else None
            count = len(letters)
            self.claims.append((mailbox, news, ClaimResult(snapshot, bool(more), last_id, count, count)))
            self._take(mailbox, letters)

    def _take(self, mailbox: Mailbox, letters: Iterable[tuple[Any, ...]]) -> None:
        """Letters were fetched for a mailbox; what a route has brought becomes one."""
        for _, id, payload, key, attempts, content, first_id, sender, published in letters:
            if content == LETTER and key is not None:
                letter = PeerMessage(key, payload, content, sender or "", published)
            else:
                assert mailbox.policy is not None
                raw = PeerMessage(
                    str(message_uuid(UUID(mailbox.policy.uuid), first_id)), payload, content, GATEWAY, published
                )
                try:
                    letter = raw._replace(payload=mailbox.holder.wrap(raw), content=LETTER)
                except Undeliverable as error:
                    self.undeliverable.append((mailbox, Failure(id, attempts + 1, error=str(error))))
                    continue
                except Exception as error:
                    self.undeliverable.append((mailbox, Failure(id, attempts + 1, error=told(error))))
                    self.unforeseen.append((raw.key, mailbox.name, error))
                    continue
                if not attempts:
                    self.record.add("send", letter.key, GATEWAY, mailbox.name)
            self.deliveries.setdefault(mailbox, []).append((id, letter))
            if letter.key not in mailbox.unacked:  # it may be out since before the database was lost
                self.record.add("deliver", letter.key, letter.sender, mailbox.name)

    # Acknowledging.

    async def _acknowledge(self, connection: Connection) -> list[Settlements]:
        """Note the events of acknowledgements; returns the settlements of letters that are out, or in the store."""
        settled: list[Settlements] = []
        taken: set[int] = set()
        for mailbox, keys, out in self.round.acks:
            absent = [key for key, one in zip(keys, out, strict=True) if one is None]
            found = await self._find(connection, mailbox, absent) if absent else {}
            id: int | None
            delivered: float | None
            keep = KEPT[mailbox.policy.retention if mailbox.policy else "metadata"]
            settlements = Settlements(SettlementKind.ACKNOWLEDGE, consumer=mailbox.key, keep=keep)
            for key, one in zip(keys, out, strict=True):
                id, delivered = one if one is not None else (found.pop(key, None), None)
                if id is None and not self.may_record(mailbox.key):
                    self.stray += 1
                    continue
                self.record.add("ack", key, mailbox.name, "")
                if id is not None and id not in taken:
                    taken.add(id)
                    settlements.ids.append(id)
                    settlements.delivered.append(delivered)
            settled.append(settlements)
        return [one for one in settled if one.ids]

    async def _find(self, connection: Connection, mailbox: Mailbox, keys: list[str]) -> dict[str, int]:
        """The ids of letters that are not out on this connection, but are in the store."""
        parameters = {"queue": None if self.relaxed else mailbox.queue, "keys": keys}
        cursor = await connection.execute(statement("find_letters"), parameters)
        return {key: id for id, key in await cursor.fetchall()}

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
            "contents": array([LETTER] * count),
        }  # fmt: skip
        cursor = await connection.execute(statement("publish_routed"), parameters)
        row = await cursor.fetchone()
        assert row is not None
        exists, reached, full, dropping, _, ready, _ = row
        if not exists or full:
            ids = [forward.id.encode() for forward in some]
            await connection.execute(statement("unsee_letters"), {"ids": ids})
        if not exists or full or not reached:
            self.dropped += count
            return
        self.overfull.update(dropping or ())
        self.stored += count
        self.ready.update({int(queue): first for queue, first in (ready or {}).items()})
        for forward in some:
            self.record.add("send", forward.id, forward.sender.name, str(forward.destination))


def headers_of(sender: str) -> str:
    """The headers of a stored letter: the name of its sender's connection."""
    return '{"from":' + json_string(sender) + "}"
