"""One transaction of a mailbox service: letters posted, delivered and acknowledged, and their audit rows.

One round trip carries everything but the record (`audit.transaction`): each letter's place in its recipient's mailbox
is known only when it is stored. A second one writes the record and commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from queues.canonical import json_string
from queues.engine import audit
from queues.engine.audit import AuditRecord
from queues.engine.clock import wall_offset
from queues.engine.consume.backlog import ClaimResult
from queues.engine.database import Connection
from queues.engine.errors import Later, Undeliverable
from queues.engine.faults import told
from queues.engine.mailbox.mailbox import MOST_CLAIMED, Mailbox, PeerMessage
from queues.engine.message import Content, Failure
from queues.engine.publish.destination import Destination
from queues.engine.settle.batches import KEPT, SettlementKind, Settlements, each_once, settle_parameters
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

STORED_ROW = tuple[int, int, int, bool, str | None, int | None]
T = TypeVar("T")


class Posting(NamedTuple):
    """A letter to store, of `size` bytes. No recipient: for everyone who is connected. `key` is its id, unique over all
    senders."""

    mailbox: Mailbox
    size: int
    key: str
    recipient: str | None
    body: bytes


class Forward(NamedTuple):
    """A letter to a queue or topic."""

    mailbox: Mailbox
    size: int
    key: str
    destination: Destination
    body: bytes


class Ack:
    """A letter that a connection has acknowledged by its key. `out`: its id and when it was delivered (monotonic), if
    it was out when everything before was durable and delivered."""

    __slots__ = ("key", "mailbox", "out", "size")

    def __init__(self, mailbox: Mailbox, key: str) -> None:
        self.mailbox = mailbox
        self.size = len(key)
        self.key = key
        self.out: tuple[int, float] | None = None

    def begin(self) -> bool:
        """Everything before is durable and delivered: the letter is out no more. Returns whether it was."""
        self.out = self.mailbox.release(self.key)
        return self.out is not None

    def forget_id(self) -> None:
        """The store has another past: the letter is found by its key alone."""
        self.out = None


class Ask(NamedTuple):
    """A connection wants to know the names of all that are connected."""

    mailbox: Mailbox
    size: int = 0
    key: str | None = None


class Claim(NamedTuple):
    """A mailbox is to be filled from the store."""

    mailbox: Mailbox


#: Requests of connections, and the items of a transaction. A transaction is done again, whole, when the connection to
#: the database is lost in the middle.
Sent = Posting | Forward | Ack | Ask
Item = Sent | Claim


def only(kind: type[T], items: Iterable[object]) -> list[T]:
    """The items of one kind."""
    return [item for item in items if isinstance(item, kind)]


class Exchange:
    """One transaction's work and result; the attributes from `deliveries` on are valid after `run`."""

    def __init__(
        self, items: Sequence[object], locals: Sequence[Mailbox], node: int, relaxed: bool, audited: bool,
        may_record: Callable[[int], bool],
    ) -> None:  # fmt: skip
        """`may_record`: whether an acknowledgement that settles nothing, by an API key, is recorded."""
        kinds = defaultdict[type, list[Any]](list)
        for item in items:
            kinds[type(item)].append(item)
        self.postings: list[Posting] = kinds[Posting]
        self.forwards: list[Forward] = kinds[Forward]
        self.acks: list[Ack] = kinds[Ack]
        self.asking: list[Mailbox] = [ask.mailbox for ask in kinds[Ask]]
        self.claiming: list[Mailbox] = [claim.mailbox for claim in kinds[Claim]]
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
        #: Letters that become dead ones, and the error of those that raised an unforeseen one.
        self.undeliverable: list[tuple[Mailbox, Failure, Exception | None]] = []
        self.stored = 0
        self.dropped = 0
        self.settled = 0
        #: Acknowledgements of letters that do not exist, which have no row in the audit chain.
        self.stray = 0
        self.record = AuditRecord()
        #: Queues that may hold more than they should now.
        self.overfull: set[int] = set()

    async def run(self, connection: Connection) -> None:
        """Write and commit. Raises Later when the audit chain is broken, or psycopg's errors; then nothing was done."""
        try:
            async with audit.transaction(connection) as transaction:
                await self._run(connection, transaction)
        except audit.ChainBroken as error:
            raise Later(error.why) from error

    async def _run(self, connection: Connection, transaction: audit.RecordedTransaction) -> None:
        await self._hold(connection)
        if self.forwards:
            await self._forward(connection)
        if self.acks and (settled := await self._acknowledge(connection)):
            await connection.execute(statement("settle"), settle_parameters(settled, wall_offset()))
            self.settled = sum(len(one.ids) for one in settled)
        storing = await self._store(connection) if self.postings else None
        claiming = await self._claim(connection) if self.claiming else None
        naming = await connection.execute(statement("connected_names")) if self.asking else None
        recording = self.audited and (self.record or storing is not None or claiming is not None)
        if recording:
            await transaction.lock(CHAIN)
        if storing is not None:
            self._stored(await storing.fetchall())
        if claiming is not None:
            self._claimed(await claiming.fetchall())
        if naming is not None:
            [(names,)] = await naming.fetchall()
            self.names = sorted(names)
        if recording:
            await transaction.append(CHAIN, self.record)

    async def _hold(self, connection: Connection) -> None:
        """Senders and recipients keep their mailboxes until the commit."""
        senders = {posting.mailbox for posting in self.postings} | {forward.mailbox for forward in self.forwards}
        if held := {*senders, *self.locals, *self.claiming}:
            parameters = {
                "mailboxes": array(mailbox.queue for mailbox in held),
                "connections": array(mailbox.connection for mailbox in held),
            }
            await connection.execute(statement("hold_mailboxes"), parameters)

    # Storing.

    async def _store(self, connection: Connection) -> Any:
        locals = self.locals
        senders, sizes, keys, recipients, bodies = zip(*self.postings, strict=True)
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
        postings, record, delivered = self.postings, self.record, AuditRecord()
        by_queue = {mailbox.queue: mailbox for mailbox in self.locals}
        claimed = {mailbox.queue for mailbox in self.claiming}
        for n, id, queue, leased, copy_of, node in rows:
            sender, _, key, recipient, body = postings[n - 1]
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
        claims = self.claiming
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
        for mailbox, news in zip(self.claiming, self._news, strict=True):
            (_, _, _, snapshot, _, more, *_), *letters = found[mailbox.queue]
            last_id, count = letters[-1][1] if letters else None, len(letters)
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
                except Exception as error:
                    foreseen = isinstance(error, Undeliverable)
                    failure = Failure(id, attempts + 1, error=str(error) if foreseen else told(error))
                    self.undeliverable.append((mailbox, failure, None if foreseen else error))
                    continue
                if not attempts:
                    self.record.add("send", letter.key, GATEWAY, mailbox.name)
            self.deliveries.setdefault(mailbox, []).append((id, letter))
            if letter.key not in mailbox.unacked:  # it may be out since before the database was lost
                self.record.add("deliver", letter.key, letter.sender, mailbox.name)

    # Acknowledging.

    async def _acknowledge(self, connection: Connection) -> list[Settlements]:
        """Note the events of acknowledgements; returns the settlements of letters that are out, or in the store."""
        by_mailbox = defaultdict[Mailbox, list[Ack]](list)
        for ack in self.acks:
            by_mailbox[ack.mailbox].append(ack)
        settled: list[Settlements] = []
        for mailbox, acks in by_mailbox.items():
            absent = [ack.key for ack in acks if ack.out is None]
            found = await self._find(connection, mailbox, absent) if absent else {}
            keep = KEPT[mailbox.policy.retention if mailbox.policy else "metadata"]
            settlements = Settlements(SettlementKind.ACKNOWLEDGE, consumer=mailbox.key, keep=keep)
            for ack in acks:
                id, delivered = ack.out or (found.get(ack.key), None)
                if id is not None:
                    settlements.ids.append(id)
                    settlements.delivered.append(delivered)
                elif not self.may_record(mailbox.key):
                    self.stray += 1
                    continue
                self.record.add("ack", ack.key, mailbox.name, "")
            settled.append(settlements)
        return each_once([one for one in settled if one.ids])

    async def _find(self, connection: Connection, mailbox: Mailbox, keys: list[str]) -> dict[str, int]:
        """The ids of letters that are not out on this connection, but are in the store."""
        parameters = {"queue": None if self.relaxed else mailbox.queue, "keys": keys}
        cursor = await connection.execute(statement("find_letters"), parameters)
        return {key: id for id, key in await cursor.fetchall()}

    # To queues and topics.

    async def _forward(self, connection: Connection) -> None:
        """Publish letters to queues and topics, those of one destination in their order."""
        parameters = {
            "ids": [forward.key.encode() for forward in self.forwards],
            "senders": array(forward.mailbox.queue for forward in self.forwards),
            "connections": array(forward.mailbox.connection for forward in self.forwards),
        }
        cursor = await connection.execute(statement("see_letters"), parameters)
        fresh = {bytes(id).decode() for (id,) in await cursor.fetchall()}
        groups: dict[Destination, list[Forward]] = {}
        for forward in self.forwards:
            if forward.key in fresh:
                fresh.discard(forward.key)
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
            "headers": [headers_of(forward.mailbox.name) for forward in some],
            "delays": array([0] * count), "ttls": nothing, "attempts": nothing, "priorities": array([0] * count),
            "contents": array([LETTER] * count),
        }  # fmt: skip
        cursor = await connection.execute(statement("publish_routed"), parameters)
        row = await cursor.fetchone()
        assert row is not None
        exists, reached, full, dropping, _, ready, _ = row
        if not exists or full:
            ids = [forward.key.encode() for forward in some]
            await connection.execute(statement("unsee_letters"), {"ids": ids})
        if not exists or full or not reached:
            self.dropped += count
            return
        self.overfull.update(dropping or ())
        self.stored += count
        self.ready.update({int(queue): first for queue, first in (ready or {}).items()})
        for forward in some:
            self.record.add("send", forward.key, forward.mailbox.name, str(forward.destination))


def headers_of(sender: str) -> str:
    """The headers of a stored letter: the name of its sender's connection."""
    return '{"from":' + json_string(sender) + "}"
