"""Letters between named peers: each has a mailbox, a queue that at most one connection has at a time, over all nodes.

Letters that peers send, receive and acknowledge become one transaction after the other, in the order of arrival; all
that is pending when one ends makes the next (group commit), with its audit rows in the same transaction. A letter for a
peer that is connected here, and has everything that came before, is stored already leased and delivered after the
commit; others wait in the store, where their recipient's node fetches them.

A connection that takes a mailbox takes it over from the connection that has it. That waits for the transaction that the
old connection has under way, and nothing that it has sent or acknowledged is committed afterwards
(`queues_holds_mailbox`): so the order of each sender holds over its connections, on any nodes, and no letter is
delivered to two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Final

from psycopg.errors import UniqueViolation

from queues.database.sql_files import array
from queues.engine import audit
from queues.engine.clock import now
from queues.engine.confirmed import Confirmations
from queues.engine.consume.low_watermark import FIRST
from queues.engine.database import Connection
from queues.engine.errors import EngineError, Later, MailboxClaimed, StoreUnavailable, TooManyNames
from queues.engine.faults import told
from queues.engine.health import Health, Trouble
from queues.engine.isolation import StoreBackoff, carry_out, halves
from queues.engine.mailbox.handover import MAX_MOVES, Leave, Move, Take, first_moves, is_again, leave, take
from queues.engine.mailbox.items import Acks, Ask, Forward, Letters, Sent
from queues.engine.mailbox.mailbox import Mailbox, MailboxHolder
from queues.engine.mailbox.transaction import (
    CHAIN,
    DROPPED,
    MAX_CLAIMS,
    MAX_LOCALS,
    Claim,
    Item,
    MailboxTransaction,
    only,
)
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions
from queues.engine.policies import Policies
from queues.engine.rate_limit import RateLimiter
from queues.engine.rowwise import set_oldest_aside
from queues.engine.settle.writer import GROWTH, SettlementWriter
from queues.formats.texts import shown
from queues.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

#: Seconds between lines about the letters of a peer that are dropped, and the recipients that one names.
TELL_AGAIN = 60.0
MAX_NAMED = 5
#: One transaction's items and bytes, and the connections whose letters it stores: locks are not without end.
MAX_ITEMS = 4000
MAX_BYTES = 8 << 20
MAX_SENDERS = 256
#: Seconds between looks for mailboxes that are due for a look at the store.
WATCH = 0.25
#: Acknowledgements of unknown letters that are recorded for an API key: at once, and then each second.
STRAY_ACKS = 100
STRAY_ACKS_A_SECOND = 1.0
#: Items and bytes of one connection that wait to be written, at most, before it is not read from.
MAX_PENDING = 4000
MAX_PENDING_BYTES = 4 << 20
#: The trouble of /readyz while the mailbox service cannot write.
SERVING = Trouble("Peers are not served", "peers")
#: The unit that failed, by the item.
UNITS: dict[type, str] = {
    Letters: "letter", Forward: "letter", Acks: "acknowledgement of a letter", Ask: "question of a peer",
    Take: "mailbox that is taken or left", Leave: "mailbox that is taken or left",
}  # fmt: skip
#: Errors of connections that may not have a mailbox, by the store's word for it.
REFUSALS: dict[str, type[EngineError]] = {"claimed": MailboxClaimed, "beyond": TooManyNames}


MOVES: Final = (Take, Leave)
#: Moves, or the items of one transaction.
Part = Sequence[Item | Move]


@dataclass(eq=False, repr=False)
class MailboxService:
    """The mailboxes that are connected to this node. Sessions use the methods of the first section only."""

    duty = SERVING

    options: EngineOptions
    node: LocalNode
    policies: Policies
    counts: Counts
    health: Health
    announce: Callable[[int, int], None]
    settlements: SettlementWriter
    on_commit: Callable[[], None]
    waiting_bytes: int = 0
    #: Waiting items, in the order of arrival.
    _items: deque[Sent | Move] = field(default_factory=deque)
    #: Items being written, as they were taken, and in parts, each of moves or of items: one, unless some cannot be
    #: written, or the database was lost: then mailboxes are taken again first.
    _taken: list[Sent] = field(default_factory=list)
    _parts: deque[Part] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _growing: asyncio.TimerHandle | None = None
    _by_name: dict[str, Mailbox] = field(default_factory=dict)
    _by_queue: dict[int, Mailbox] = field(default_factory=dict)
    #: Mailboxes with letters in the store that they have room for.
    _hungry: dict[Mailbox, None] = field(default_factory=dict)
    #: Bytes that wait, by API key, and the mailboxes that are not read from.
    _key_bytes: Counter[int] = field(default_factory=Counter)
    _crowded: dict[Mailbox, None] = field(default_factory=dict)
    #: Mailboxes whose letters could not be fetched, and why.
    _blamed: dict[Mailbox, Exception] = field(default_factory=dict)
    _strays: RateLimiter = field(default_factory=lambda: RateLimiter(STRAY_ACKS, STRAY_ACKS_A_SECOND))
    _backoff: StoreBackoff = field(default_factory=StoreBackoff)
    #: Letters that were not stored, by reason.
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(DROPPED, 0)))
    _throttle: LogThrottle = field(default_factory=lambda: LogThrottle(TELL_AGAIN))
    #: Since when (monotonic) something waits for the database.
    waiting_since: float | None = None
    #: What was confirmed last.
    confirmed: Confirmations = field(default_factory=Confirmations)

    # Used by sessions.

    def take(self, name: str, key: int, holder: MailboxHolder) -> Mailbox:
        """Take the mailbox of this name for a connection with this API key; `holder` is told the outcome."""
        mailbox = Mailbox(name, key, holder, self.options.mailbox_window)
        self._put(Take(mailbox))
        return mailbox

    def leave(self, mailbox: Mailbox) -> None:
        """The connection has ended, whether it had the mailbox or not."""
        mailbox.end()
        self._put(Leave(mailbox))

    def take_in(self, item: Sent) -> None:
        """Queue something that a connection has sent. One that sends faster than it is written slows itself."""
        mailbox, size = item.mailbox, item.size
        self.waiting_bytes += size
        self._key_bytes[mailbox.key] += size
        mailbox.add_pending(len(item.keys), size)
        if mailbox not in self._crowded and self._is_over(mailbox, 1.0):
            self._crowded[mailbox] = None
            mailbox.holder.crowd(True)
        self._put(item)

    def drained(self, mailbox: Mailbox) -> None:
        """The holder has room again."""
        self._want(mailbox)

    # Used by the engine.

    @property
    def idle(self) -> bool:
        return not (self._items or self._parts)

    def more_in_store(self, queue: int, first_id: int) -> None:
        """Messages of a queue became ready in the store."""
        if (mailbox := self._by_queue.get(queue)) is not None:
            mailbox.more_in_store(first_id)
            self._want(mailbox)

    def lose(self, queue: int, connection: int, evicted: bool) -> None:
        """A mailbox was given to this connection, of another node; or an operator ended this one."""
        mailbox = self._by_queue.get(queue)
        if mailbox is not None and (mailbox.connection == connection if evicted else mailbox.connection < connection):
            self._displace(mailbox, evicted)

    def change_policy(self, queue: int) -> None:
        """An operator changed a mailbox's queue, or removed it."""
        if (mailbox := self._by_queue.get(queue)) is None:
            return
        mailbox.change_policy(self.policies.by_id.get(queue))
        if mailbox.policy is None:
            self._displace(mailbox, evicted=True)
        else:
            mailbox.more_in_store(FIRST)
            self._want(mailbox)

    def lose_connections(self) -> None:
        """The database was lost: mailboxes are taken again first, unless another connection has them by then, and
        nothing is fetched for them before."""
        again = [Take(mailbox, mailbox.connection) for mailbox in self._by_name.values()]
        for mailbox in self._by_name.values():
            mailbox.change_policy(None)
        self._hungry.clear()
        parts: list[Part] = [again[n : n + MAX_MOVES] for n in range(0, len(again), MAX_MOVES)]
        parts += [[item for item in part if not (isinstance(item, Claim) or is_again(item))] for part in self._parts]
        self._parts = deque(part for part in parts if part)

    def forget_history(self) -> None:
        """The store has another past: letters are found by their keys alone."""
        for mailbox in self._by_name.values():
            mailbox.forget_deliveries()
        for acks in only(Acks, chain.from_iterable(self._parts)):
            acks.forget_ids()

    def fail(self, error: EngineError) -> None:
        """The database is away for too long: give up the items that wait, and refuse every connection."""
        mailboxes = {*self._by_name.values(), *(item.mailbox for item in self._items)}
        given_up = [*self._taken, *self._items]
        lost = sum(len(item.keys) for item in given_up if isinstance(item, Letters | Forward))
        self.counts.dropped += lost
        self.dropped["failed"] += lost
        self._taken = []
        self._items.clear()
        self._parts.clear()
        self.waiting_bytes = 0
        self._key_bytes.clear()
        self._crowded.clear()
        for mailbox in mailboxes:
            mailbox.end()
            self._tell(mailbox, mailbox.holder.refused, error)
        self._by_name.clear()
        self._by_queue.clear()

    async def run(self, connection: Connection) -> None:
        """Work for ever; ends by an exception when the connection is lost, and may be run again with another."""
        self.waiting_since = None
        while True:
            if not self._parts:
                await self._wake.wait()
                self._take()
            if self._parts:
                if not isinstance(self._parts[0][0], Claim):
                    self.waiting_since = self.waiting_since or now()
                await self._write(connection)

    async def watch(self, connection: Connection) -> None:
        """Look from time to time for letters that no notification told of."""
        while True:
            await asyncio.sleep(WATCH)
            time = now()
            due = [mailbox.queue for mailbox in self._by_name.values() if mailbox.is_due(time)]
            for start in range(0, len(due), 1000):
                for (queue,) in await connection.rows("unseen", {"queues": array(due[start : start + 1000])}):
                    self.more_in_store(queue, FIRST)

    # What connections send.

    def _put(self, item: Sent | Move) -> None:
        """Queue something. Acknowledgements alone are written after a while, with what comes until then, unless they
        make room for letters that wait in the store."""
        self._items.append(item)
        if not isinstance(item, Acks) or item.mailbox.backlog.unclaimed or item.mailbox in self._crowded:
            self._wake.set()
        elif self._growing is None:
            self._growing = asyncio.get_running_loop().call_later(GROWTH, self._grown)

    def _grown(self) -> None:
        self._growing = None
        self._wake.set()

    def _is_over(self, mailbox: Mailbox, share: float) -> bool:
        return (
            mailbox.pending > share * MAX_PENDING
            or mailbox.pending_bytes > share * MAX_PENDING_BYTES
            or self._key_bytes[mailbox.key] > share * self.options.key_pending_bytes
        )

    def _take(self) -> None:
        """Take moves that wait; or items, up to the next move, and fetch letters, as one transaction's work. Everything
        before is durable and delivered: letters that were acknowledged are out no more."""
        if moves := first_moves(self._items):
            for _ in moves:
                self._items.popleft()
            self._parts.append(moves)
        else:
            self._take_items()
        if not (self._items or self._hungry):
            self._wake.clear()

    def _take_items(self) -> None:
        taken, count, size, senders = list[Sent](), 0, 0, set[Mailbox]()
        for item in self._items:
            if isinstance(item, MOVES) or count >= MAX_ITEMS or size >= MAX_BYTES or len(senders) >= MAX_SENDERS:
                break
            count += len(item.keys)
            size += item.size
            if isinstance(item, Acks):
                if item.begin():
                    self._want(item.mailbox)  # there was no room, perhaps
            elif not isinstance(item, Ask):
                senders.add(item.mailbox)
            taken.append(item)
        for _ in taken:
            self._items.popleft()
        claims: list[Claim] = []
        while self._hungry and len(claims) < MAX_CLAIMS:
            mailbox = next(iter(self._hungry))
            del self._hungry[mailbox]
            if mailbox.backlog.unclaimed and mailbox.open:
                claims.append(Claim(mailbox))
        if taken or claims:
            self._taken += taken
            self._parts.append([*taken, *claims])

    def _unload(self) -> None:
        """All that was taken is done: who has sent it may send more."""
        done, self._taken = self._taken, []
        for item in done:
            self.waiting_bytes -= item.size
            self._key_bytes[item.mailbox.key] -= item.size
            item.mailbox.add_pending(-len(item.keys), -item.size)
        for mailbox in tuple(self._crowded):
            if mailbox.gone or not self._is_over(mailbox, 0.5):
                del self._crowded[mailbox]
                if not mailbox.gone:
                    self._tell(mailbox, mailbox.holder.crowd, False)

    def _want(self, mailbox: Mailbox) -> None:
        """Fetch from the store for a mailbox, if there is something and it has room."""
        if mailbox.backlog.unclaimed and mailbox.open:
            self._hungry[mailbox] = None
            self._wake.set()

    async def _write(self, connection: Connection) -> None:
        write = partial(self._write_part, connection)
        refused = await carry_out(self._parts, write, halve, self._refuse, connection)
        if not self._parts:
            self._unload()
        while self._blamed:
            await self._narrow(connection, *self._blamed.popitem())
        self.on_commit()
        await self._go_on(refused)

    async def _go_on(self, refused: Exception | None) -> None:
        """After a try: at once, or later when the server refuses for now, or the chain is broken."""
        if isinstance(refused, Later):
            self.health.begin(audit.trouble(CHAIN), refused.detail)
            await self._backoff.wait()
            return
        if refused is None:
            self.waiting_since = None
            self.health.end(audit.trouble(CHAIN))
        await self._backoff.after(refused, self.health, SERVING)

    async def _write_part(self, connection: Connection, part: Part) -> None:
        if isinstance(part[0], MOVES):
            await self._move(connection, part)
            return
        transaction = await self._run_transaction(connection, part)
        if self._parts and self._parts[0] is part:  # else its connections were told that the fate is unknown
            try:
                self._deliver(transaction)
            except Exception as error:  # it is durable, and must not be done again
                self.health.isolate("delivery of letters", error)
            for mailbox in transaction.asking:
                if not mailbox.gone:
                    self._tell(mailbox, mailbox.holder.answer, transaction.names)
        for queue in transaction.overfull:
            await self.settlements.max_length.keep(connection, queue)

    async def _run_transaction(self, connection: Connection, part: Part, careful: bool = False) -> MailboxTransaction:
        """Write items; again, with care, if a message has the key of a letter already: that is rare."""
        mailboxes, may_record = self._locals(part), self._strays.take
        transaction = MailboxTransaction(part, mailboxes, self.node.id, self.options, may_record, careful)
        try:
            await transaction.run(connection)
        except UniqueViolation:
            if careful:
                raise
            return await self._run_transaction(connection, part, careful=True)
        return transaction

    def _refuse(self, part: Part, error: Exception) -> None:
        """One item cannot be written: its connection ends."""
        [item] = part
        mailbox = item.mailbox
        if isinstance(item, Claim):
            self._blamed[mailbox] = error
            return
        if isinstance(item, Letters | Forward):
            self.counts.dropped += 1
            self.dropped["failed"] += 1
        self._broken(mailbox, UNITS[type(item)], error, None if isinstance(item, MOVES) else item.keys[0] or None)
        if isinstance(item, MOVES):
            self._forget(mailbox)
            mailbox.end()

    async def _narrow(self, connection: Connection, mailbox: Mailbox, error: Exception) -> None:
        """Letters of a mailbox cannot be fetched: fewer are, until the one to blame is found, which becomes a dead
        letter; or is passed over, if that does not work either."""
        alone = mailbox.claim_fewer()
        self._want(mailbox)
        if not alone:
            return
        watermark = mailbox.backlog.watermark
        id = await set_oldest_aside(connection, mailbox.queue, watermark.value, watermark.pass_over, error)
        if id is None:
            self._broken(mailbox, "delivery of letters", error, None)
        else:
            self.health.isolate("delivery of letters", error, peer=mailbox.name, message=id)

    def _broken(self, mailbox: Mailbox, unit: str, error: Exception, key: str | None) -> None:
        self.health.isolate(unit, error, peer=mailbox.name, key=key)
        if not mailbox.gone:
            self._tell(mailbox, mailbox.holder.refused, StoreUnavailable(told(error)))

    def _tell(self, mailbox: Mailbox, tell: Callable[..., None], *arguments: object) -> None:
        """Call a holder, which alone is to suffer if that raises."""
        self.health.guard("session", mailbox.holder, tell, *arguments)

    def _locals(self, items: Part) -> list[Mailbox]:
        """The mailboxes of this node that may be given these letters as they are stored."""
        recipients = {name for letters in only(Letters, items) for name in letters.recipients}
        everyone: Iterable[Mailbox] = self._by_name.values() if None in recipients else ()
        named = (self._by_name[name] for name in recipients if name in self._by_name)
        wanting = dict.fromkeys(mailbox for mailbox in chain(named, everyone) if mailbox.wants)
        return list(islice(wanting, MAX_LOCALS))

    def _count_dropped(self, transaction: MailboxTransaction) -> None:
        """Count letters that were not stored, and say in the log whose they are: a single letter has no answer.

        Once in a while for each sender and reason, however many letters and recipients it makes up.
        """
        for (sender, reason), recipients in transaction.dropped.items():
            self.counts.dropped += len(recipients)
            self.dropped[reason] += len(recipients)
            why = DROPPED[reason]
            if why and (count := self._throttle.admit(f"{reason} {sender}", now(), len(recipients))):
                named = [*dict.fromkeys(recipients)]
                more = ", …" if count > len(recipients) or len(named) > MAX_NAMED else ""
                to = ", ".join(map(shown, named[:MAX_NAMED])) + more
                logger.warning(
                    "%d letter(s) of the peer %s to %s dropped: %s", count, shown(sender), to, why,
                    extra={"peer": sender},
                )  # fmt: skip

    def _deliver(self, transaction: MailboxTransaction) -> None:
        """After the commit."""
        self.counts.published += transaction.stored
        if transaction.last is not None:
            self.confirmed.note(*transaction.last, self.waiting_since)
        if transaction.dropped:
            self._count_dropped(transaction)
        self.counts.acknowledged += transaction.settled
        self.counts.stray_acks += transaction.stray
        for mailbox, news, claim in transaction.claims:
            self.counts.claimed += claim.taken
            mailbox.claimed(claim, news)
        time = now()
        for mailbox, letters in transaction.deliveries.items():
            self._tell(mailbox, mailbox.deliver, letters, time)
        for queue, (id, node) in transaction.left.items():
            if node == self.node.id:
                self.more_in_store(queue, id)
            else:
                self.announce(queue, id)
        for queue, id in transaction.ready.items():
            self.announce(queue, id)
        for mailbox, failure, unforeseen in transaction.undeliverable:
            if unforeseen is not None:
                self.health.isolate("letter", unforeseen, peer=mailbox.name, message=failure.id)
            if mailbox.policy is not None:
                self.settlements.bury(mailbox.policy, failure)
        for mailbox, *_ in transaction.claims:
            self._want(mailbox)

    # Moves.

    async def _move(self, connection: Connection, moves: Part) -> None:
        """Leave and take some mailboxes, each name once."""
        leaving = [move.mailbox for move in only(Leave, moves) if move.mailbox.connection]
        taking = [move for move in only(Take, moves) if not move.mailbox.gone]
        if leaving:
            await leave(connection, leaving, self.node.id)
        if taking:
            options = self.options
            given, names = await take(
                connection, taking, self.node.id, options.most_names, not options.relaxed_mailboxes
            )
            await self.policies.load(connection, [queue for queue, *_ in given if queue is not None])
        for mailbox in leaving:
            self._forget(mailbox)
        for move, (queue, taken, refused) in zip(taking, given if taking else (), strict=True):
            self._begin(move, queue, taken, refused, names)

    def _begin(self, move: Take, queue: int | None, connection: int, refused: str | None, names: list[str]) -> None:
        """The store has given a mailbox to its connection, or not."""
        mailbox = move.mailbox
        policy = None if queue is None else self.policies.by_id.get(queue)
        if refused == "displaced":
            self._displace(mailbox)
        elif refused is not None:
            self._forget(mailbox)
            self._tell(mailbox, mailbox.holder.refused, REFUSALS[refused](mailbox.name))
        elif queue is None or policy is None:
            self._displace(mailbox, evicted=True)
        else:
            former = self._by_name.get(mailbox.name)
            if former is not None and former is not mailbox:
                self._displace(former)
            self._by_name[mailbox.name] = self._by_queue[queue] = mailbox
            mailbox.begin(queue, connection, policy, now())
            if move.former is None and not mailbox.gone:
                self._tell(mailbox, mailbox.holder.taken, names)
            self._want(mailbox)

    def _displace(self, mailbox: Mailbox, evicted: bool = False) -> None:
        self._forget(mailbox)
        if not mailbox.gone:
            mailbox.end()
            self._tell(mailbox, mailbox.holder.evicted if evicted else mailbox.holder.displaced)

    def _forget(self, mailbox: Mailbox) -> None:
        if self._by_name.get(mailbox.name) is mailbox:
            del self._by_name[mailbox.name]
        if self._by_queue.get(mailbox.queue) is mailbox:
            del self._by_queue[mailbox.queue]
        self._hungry.pop(mailbox, None)


def halve(part: Part, _: Exception) -> Sequence[Part]:
    """A part in two, or the run that it is; nothing of one letter, acknowledgement, question, fetch or move."""
    if len(part) == 1 and isinstance(part[0], Letters | Acks):
        return [[item] for item in part[0].parts]
    return halves(part)
