"""One transaction of a mailbox service: letters posted, delivered and acknowledged, and their audit rows.

One round trip carries everything but the record (`audit.transaction`): each letter's place in its recipient's mailbox
is known only when it is stored. A second one writes the record and commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from queues.database.sql_files import array, text_array
from queues.engine import audit
from queues.engine.audit import AuditRecord
from queues.engine.clock import wall_offset
from queues.engine.consume.backlog import ClaimResult
from queues.engine.database import Connection
from queues.engine.errors import Later, Undeliverable
from queues.engine.faults import told
from queues.engine.mailbox.items import Acks, Ask, Forward, Letters, Sent
from queues.engine.mailbox.mailbox import MAX_CLAIMED, Deliveries, Mailbox, Out, PeerMessage, columns
from queues.engine.message import Content, Failure
from queues.engine.options import EngineOptions
from queues.engine.publish.destination import Destination
from queues.engine.settle.batches import KEPT, SettlementKind, Settlements, each_once, settle_parameters
from queues.engine.uuids import message_uuid
from queues.formats.canonical import json_string

#: The audit chain of letters between peers.
CHAIN = "peerbus"
LETTER = int(Content.LETTER)
#: The sender of messages that came over a route.
GATEWAY = "fivewire"
#: Mailboxes of this node that a broadcast is leased to as it is stored; others fetch it from the store.
MAX_LOCALS = 256
#: Mailboxes that are filled from the store in one transaction, and how much they are given together.
MAX_CLAIMS = 128
MAX_CLAIMED_BYTES = 32 << 20

#: The columns of store_letters.sql: a letter's position, id, queue, 1 if it is leased, its recipient's node; of
#: broadcasts the recipient. Then the places of unknown recipients, and of broadcasts the positions of new ones.
STORED = tuple[
    list[int] | None, list[int], list[int], list[int], list[int | None], list[str | None] | None, list[int],
    list[int] | None,
]
#: Why a letter is not stored, by the label of its counter; those with a text are told in the log.
DROPPED = {
    "unknown": "no peer has this name",
    "no_queue": "there is no such queue",
    "full": "the queue is full",
    #: A topic without a subscription, or nobody is connected to hear a broadcast.
    "unheard": "",
    #: Its id was sent before, or its sender's name has another connection by now.
    "repeated": "",
    #: It cannot be stored: its connection ends, and the log has it as an isolated failure.
    "failed": "",
}
T = TypeVar("T")


class Claim(NamedTuple):
    """A mailbox is to be filled from the store."""

    mailbox: Mailbox


#: What a transaction is made of. It is done again, whole, when the connection to the database is lost in the middle.
Item = Sent | Claim


def only(kind: type[T], items: Iterable[object]) -> list[T]:
    """The items of one kind."""
    return [item for item in items if isinstance(item, kind)]


def joined(columns: Iterable[Iterable[T]]) -> list[T]:
    """The columns of runs as one."""
    return [*chain.from_iterable(columns)]


class MailboxTransaction:
    """One transaction's work and result; the attributes from `deliveries` on are valid after `run`."""

    def __init__(
        self, items: Sequence[object], locals: Sequence[Mailbox], node: int, options: EngineOptions,
        may_record: Callable[[int], bool], careful: bool = False,
    ) -> None:  # fmt: skip
        """`may_record`: whether an acknowledgement that settles nothing, by an API key, is recorded. `careful`: without
        it a unique violation has ended the transaction."""
        kinds = defaultdict[type, list[Any]](list)
        for item in items:
            kinds[type(item)].append(item)
        self.letters: list[Letters] = kinds[Letters]
        self.forwards: list[Forward] = kinds[Forward]
        self.acks: list[Acks] = kinds[Acks]
        self.asking: list[Mailbox] = [ask.mailbox for ask in kinds[Ask]]
        self.claiming: list[Mailbox] = [claim.mailbox for claim in kinds[Claim]]
        self.locals = locals
        self.node = node
        self.options = options
        self.may_record = may_record
        self.careful = careful
        #: The id of the last letter that was stored, and its queue.
        self.last: tuple[int, int] | None = None
        #: Letters to deliver.
        self.deliveries = defaultdict[Mailbox, Deliveries](Deliveries)
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
        #: The letters as columns, `senders` as places in `known`.
        self.known: list[Mailbox] = []
        self.senders: list[int] = []
        self.keys: list[str] = []
        self.recipients: list[str | None] = []
        self.bodies: list[bytes] = []
        #: Each recipient once.
        self._names: list[str | None] = []
        self.stored = 0
        #: Letters that are not stored, by sender and reason: the recipient of each.
        self.dropped = defaultdict[tuple[str, str], list[str]](list)
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
            await connection.run("settle", settle_parameters(settled, wall_offset()))
            self.settled = sum(len(one.ids) for one in settled)
        storing = await self._store(connection) if self.letters else None
        claiming = await self._claim(connection) if self.claiming else None
        naming = await connection.run("connected_names") if self.asking else None
        recording = self.options.audit_letters and (self.record or storing is not None or claiming is not None)
        if recording:
            await transaction.lock(CHAIN)
        if storing is not None:
            self._stored(await storing.fetchone())
        if claiming is not None:
            self._claimed(await claiming.fetchall())
        if naming is not None:
            [(names,)] = await naming.fetchall()
            self.names = sorted(names)
        if recording:
            await transaction.append(CHAIN, self.record)

    async def _hold(self, connection: Connection) -> None:
        """Senders and recipients keep their mailboxes until the commit."""
        senders = {run.mailbox for run in self.letters} | {forward.mailbox for forward in self.forwards}
        if held := {*senders, *self.locals, *self.claiming}:
            await connection.run("hold_mailboxes", columns(held))

    # Storing.

    async def _store(self, connection: Connection) -> Any:
        locals, letters = self.locals, self.letters
        places: dict[Mailbox, int] = {}
        for run in letters:
            self.senders += [places.setdefault(run.mailbox, len(places))] * len(run.keys)
        self.known = [*places]
        self.keys = joined(run.keys for run in letters)
        self.recipients = joined(run.recipients for run in letters)
        self.bodies = joined(run.bodies for run in letters)
        names = self._names = [*dict.fromkeys(self.recipients)]
        sizes = [*map(len, self.bodies)]
        parameters = {
            "node": self.node,
            **columns(self.known),
            "producers": array(sender.key for sender in self.known),
            "headers": text_array(headers_of(sender.name) for sender in self.known),
            "peers": text_array(name or "" for name in names),
            "senders": array(self.senders),
            "recipients": array([*map({name: n for n, name in enumerate(names)}.__getitem__, self.recipients)]),
            "keys": text_array(self.keys),
            "payloads": b"".join(self.bodies),
            "sizes": array(sizes),
            "starts": array(accumulate(sizes[:-1], initial=1)),
            "broadcasts": None in names,
            "careful": self.careful,
            "locals": array(mailbox.queue for mailbox in locals),
            "local_connections": array(mailbox.connection for mailbox in locals),
            "lows": array(mailbox.backlog.watermark.value for mailbox in locals),
            "lasts": array(self._lasts(sizes)),
        }
        return await connection.run("store_letters", parameters, binary=True)

    def _lasts(self, sizes: Sequence[int]) -> list[int]:
        """For each local mailbox the position, from 1, of the last letter up to which it has room for its own."""
        count, size = len(sizes), sum(sizes)
        if all(mailbox.room >= count and mailbox.holder.room_bytes >= size for mailbox in self.locals):
            return [count] * len(self.locals)
        places = defaultdict[str | None, list[int]](list)
        for n, name in enumerate(self.recipients):
            places[name].append(n)
        lasts = []
        for mailbox in self.locals:
            own = sorted(places[mailbox.name] + places[None])
            before = [*accumulate((sizes[n] for n in own), initial=0)]
            fitting = min(mailbox.room, bisect_left(before, mailbox.holder.room_bytes))
            lasts.append(own[fitting] if fitting < len(own) else count)
        return lasts

    def _stored(self, columns: STORED) -> None:
        """Letters are stored, in their order; those that are alike and follow each other are done at once."""
        ns, ids, queues, leases, nodes, copies, unknown, new = columns
        if unknown or len(set(ns or ())) < len(self.keys):
            self._note_dropped({*(ns or ())}, {self._names[place] for place in unknown}, {*(new or ())})
        if ns is None:
            return
        if ids:
            self.last = ids[-1], queues[-1]
        record, delivered = self.record, AuditRecord()
        by_queue = {mailbox.queue: mailbox for mailbox in self.locals}
        claimed = {mailbox.queue for mailbox in self.claiming}
        senders = [self.senders[n - 1] for n in ns]
        start = 0
        for (queue, leased, node, copy_of, sender), alike in groupby(
            zip(queues, leases, nodes, copies or repeat(None), senders, strict=False)
        ):
            some = slice(start, start := start + len([*alike]))
            places = [n - 1 for n in ns[some]]
            keys = [self.keys[n] for n in places]
            recipient = copy_of or self.recipients[places[0]] or ""
            if copy_of is not None:
                keys = [f"{key}|{copy_of}" for key in keys]
            name = self.known[sender].name
            record.add("send", keys, name, recipient)
            if leased:
                self.deliveries[by_queue[queue]].add(ids[some], keys, [self.bodies[n] for n in places])
                delivered.add("deliver", keys, name, recipient)
            elif node is not None and queue not in claimed:
                self.left.setdefault(queue, (ids[some][0], node))
        record.extend(delivered)
        self.stored += len(ns)

    def _note_dropped(self, stored: set[int], unknown: set[str | None], new: set[int]) -> None:
        """Note why letters are not stored; `stored` and `new` are positions, from 1."""
        for n, (sender, recipient) in enumerate(zip(self.senders, self.recipients, strict=True), 1):
            if n in stored:
                continue
            reason = "unknown" if recipient in unknown else "unheard" if n in new else "repeated"
            self.dropped[self.known[sender].name, reason].append("*" if recipient is None else recipient)

    # Delivering.

    async def _claim(self, connection: Connection) -> Any:
        claims = self.claiming
        self._news = [mailbox.backlog.news for mailbox in claims]
        most, room = max(1, MAX_CLAIMED // len(claims)), MAX_CLAIMED_BYTES // len(claims)
        parameters = {
            "node": self.node,
            "queues": array(mailbox.queue for mailbox in claims),
            "connections": array(mailbox.connection for mailbox in claims),
            "lows": array(mailbox.backlog.watermark.value for mailbox in claims),
            "most": array(min(mailbox.most, mailbox.room, most) for mailbox in claims),
            "byte_rooms": array(min(mailbox.holder.room_bytes, room) for mailbox in claims),
        }
        return await connection.run("claim_letters", parameters, binary=True)

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
                    self.record.add("send", [letter.key], GATEWAY, mailbox.name)
            self.deliveries[mailbox].add([id], [letter.key], [letter.payload])
            if letter.key not in mailbox.unacked:  # it may be out since before the database was lost
                self.record.add("deliver", [letter.key], letter.sender, mailbox.name)

    # Acknowledging.

    async def _acknowledge(self, connection: Connection) -> list[Settlements]:
        """Note the events of acknowledgements; returns the settlements of letters that are out, or in the store."""
        by_mailbox = defaultdict[Mailbox, list[Acks]](list)
        for run in self.acks:
            by_mailbox[run.mailbox].append(run)
        settled: list[Settlements] = []
        for mailbox, runs in by_mailbox.items():
            keys, out = joined(run.keys for run in runs), joined(run.out for run in runs)
            if None in out:
                keys, out = await self._look_up(connection, mailbox, keys, out)
            self.record.add("ack", keys, mailbox.name, "")
            keep = KEPT[mailbox.policy.retention if mailbox.policy else "metadata"]
            settlements = Settlements(SettlementKind.ACKNOWLEDGE, consumer=mailbox.key, keep=keep)
            gone = [*filter(None, out)]
            settlements.add_many([id for id, _ in gone], [delivered for _, delivered in gone])
            settled.append(settlements)
        return each_once([one for one in settled if one.ids])

    async def _look_up(
        self, connection: Connection, mailbox: Mailbox, keys: list[str], out: list[Out | None]
    ) -> tuple[list[str], list[Out | None]]:
        """Look in the store for letters that are not out on this connection. Of those that are not there no more are
        kept than are recorded for the API key."""
        missing = [key for key, one in zip(keys, out, strict=True) if one is None]
        parameters = {"queue": None if self.options.relaxed_mailboxes else mailbox.queue, "keys": missing}
        found = {key: id for id, key in await connection.rows("find_letters", parameters)}
        known: list[str] = []
        gone: list[Out | None] = []
        for key, one in zip(keys, out, strict=True):
            if one is None and key in found:
                one = found[key], None
            if one is None and not self.may_record(mailbox.key):
                self.stray += 1
                continue
            known.append(key)
            gone.append(one)
        return known, gone

    # To queues and topics.

    async def _forward(self, connection: Connection) -> None:
        """Publish letters to queues and topics, those of one destination in their order."""
        parameters = {
            "ids": [forward.key.encode() for forward in self.forwards],
            "senders": array(forward.mailbox.queue for forward in self.forwards),
            "connections": array(forward.mailbox.connection for forward in self.forwards),
        }
        fresh = {bytes(id).decode() for (id,) in await connection.rows("see_letters", parameters)}
        groups: dict[Destination, list[Forward]] = {}
        for forward in self.forwards:
            if forward.key in fresh:
                fresh.discard(forward.key)
                groups.setdefault(forward.destination, []).append(forward)
            else:
                self._drop([forward], "repeated")
        for destination, some in groups.items():
            await self._publish(connection, destination, some)

    def _drop(self, some: Iterable[Forward], reason: str) -> None:
        for forward in some:
            self.dropped[forward.mailbox.name, reason].append(str(forward.destination))

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
        [(exists, reached, full, dropping, _, ready, _)] = await connection.rows("publish_routed", parameters)
        if not exists or full:
            ids = [forward.key.encode() for forward in some]
            await connection.run("unsee_letters", {"ids": ids})
        if not exists or full or not reached:
            self._drop(some, "full" if full else "unheard" if exists else "no_queue")
            return
        self.overfull.update(dropping or ())
        self.stored += count
        self.ready.update({int(queue): first for queue, first in (ready or {}).items()})
        for forward in some:
            self.record.add("send", [forward.key], forward.mailbox.name, str(forward.destination))


def headers_of(sender: str) -> str:
    """The headers of a stored letter: the name of its sender's connection."""
    return '{"from":' + json_string(sender) + "}"
