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
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, islice

from queues.engine import audit
from queues.engine.clock import now
from queues.engine.consume.low_watermark import FIRST
from queues.engine.database import Connection
from queues.engine.errors import EngineError, Later, MailboxClaimed, StoreUnavailable, TooManyNames
from queues.engine.faults import Fault, fault_of, told
from queues.engine.health import Trouble
from queues.engine.isolation import Patience, carry_out, halves
from queues.engine.mailbox.handover import Leave, Move, Take, first_moves, in_order, leave, take
from queues.engine.mailbox.mailbox import Mailbox, MailboxHolder
from queues.engine.mailbox.transaction import (
    CHAIN,
    MOST_CLAIMS,
    MOST_LOCALS,
    Exchange,
    Forward,
    Posting,
    Round,
)
from queues.engine.message import Counts
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions
from queues.engine.policies import Policies
from queues.engine.publish.destination import Destination
from queues.engine.rate_limit import RateLimiter
from queues.engine.rowwise import first_ready, set_aside
from queues.engine.settle.writer import SettlementWriter
from queues.engine.statements import array, statement

#: One transaction's items and bytes, and the connections it may concern: locks are not without end.
MOST_ITEMS = 4000
MOST_BYTES = 8 << 20
MOST_MAILBOXES = 256
#: Seconds between looks for mailboxes that are due for a look at the store.
WATCH = 0.25
#: Acknowledgements of unknown letters that are recorded for an API key: at once, and then each second.
STRAY_ACKS = 100
STRAY_ACKS_A_SECOND = 1.0
#: Items and bytes of one connection that wait to be written, at most, before it is not read from.
MOST_PENDING = 4000
MOST_PENDING_BYTES = 4 << 20
#: The trouble of /readyz while the mailbox service cannot write.
SERVING = Trouble("Peers are not served", "peers")


class MailboxService:
    """The mailboxes that are connected to this node. Sessions use the methods of the first section only."""

    duty = SERVING

    def __init__(
        self, options: EngineOptions, node: LocalNode, policies: Policies, counts: Counts,
        announce: Callable[[int, int], None], settlements: SettlementWriter, on_commit: Callable[[], None],
    ) -> None:  # fmt: skip
        self.options = options
        self.policies = policies
        self.counts = counts
        self.announce = announce
        self.settlements = settlements
        self.node = node
        self.on_commit = on_commit
        self.waiting_bytes = 0
        #: The waiting work, in order: rounds, the last of which is open to new items, and moves.
        self._items: deque[Round | Move] = deque()
        #: Mailboxes to be taken again before anything else, since the database was lost.
        self._again: deque[Move] = deque()
        self._wake = asyncio.Event()
        self._by_name: dict[str, Mailbox] = {}
        self._by_queue: dict[int, Mailbox] = {}
        #: Mailboxes with letters in the store that they have room for.
        self._hungry: dict[Mailbox, None] = {}
        #: The round being written, in parts: one, unless an item cannot be written.
        self._rounds: deque[Round] = deque()
        #: The round that `_rounds` began as; bytes that wait, by API key.
        self._round = Round()
        self._key_bytes: Counter[int] = Counter()
        self._crowded: dict[Mailbox, None] = {}
        #: Mailboxes whose letters could not be fetched, and why.
        self._blamed: dict[Mailbox, Exception] = {}
        self._strays = RateLimiter(STRAY_ACKS, STRAY_ACKS_A_SECOND)
        self._patience = Patience()
        self.health = settlements.health
        #: Since when (monotonic) something waits for the database.
        self.waiting_since: float | None = None

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

    def post(self, sender: Mailbox, id: str, recipient: str | None, body: bytes) -> None:
        """Send a letter to a peer; None: to everyone else who is connected. `id` has 1 to 512 bytes and no NUL."""
        self._take_in(sender, len(body)).post(Posting(sender, id, recipient, body))

    def forward(self, sender: Mailbox, id: str, destination: Destination, body: bytes) -> None:
        """Publish a letter to a queue or topic."""
        self._take_in(sender, len(body)).forward(Forward(sender, id, destination, body))

    def acknowledge(self, mailbox: Mailbox, key: str) -> None:
        """The recipient has consumed a letter. A key that is not its own, or any more, changes nothing."""
        self._take_in(mailbox, len(key)).acknowledge(mailbox, key)

    def ask(self, mailbox: Mailbox) -> None:
        """Have `holder.answer` called with the names of all connected peers, once everything before is durable."""
        self._take_in(mailbox, 0).ask(mailbox)

    def drained(self, mailbox: Mailbox) -> None:
        """The holder has room again."""
        self._want(mailbox)

    # Used by the engine.

    @property
    def idle(self) -> bool:
        return not (self._items or self._again or self._rounds)

    def more_in_store(self, queue: int, first_id: int) -> None:
        """Messages of a queue became ready in the store."""
        if (mailbox := self._by_queue.get(queue)) is not None:
            mailbox.more_in_store(first_id)
            self._want(mailbox)

    def hear_taken(self, queue: int, connection: int) -> None:
        """A mailbox was given to this connection, of another node."""
        mailbox = self._by_queue.get(queue)
        if mailbox is not None and mailbox.connection < connection:
            self._displace(mailbox)

    def hear_evicted(self, queue: int, connection: int) -> None:
        """An operator ended this connection."""
        mailbox = self._by_queue.get(queue)
        if mailbox is not None and mailbox.connection == connection:
            self._displace(mailbox, evicted=True)

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
        """The database was lost: mailboxes are taken again first, unless another connection has them by then."""
        for mailbox in self._by_name.values():
            mailbox.change_policy(None)
        self._again = deque(Take(mailbox, mailbox.connection) for mailbox in self._by_name.values())
        self._hungry.clear()
        for round in self._rounds:
            round.forget_claims()

    def forget_history(self) -> None:
        """The store has another past: letters are found by their keys alone."""
        for mailbox in self._by_name.values():
            mailbox.forget_deliveries()
        for round in self._rounds:
            round.forget_ids()

    def fail(self, error: EngineError) -> None:
        """The database is away for too long: give up the items that wait, and refuse every connection."""
        items, self._items = self._items, deque()
        self._again = deque()
        self._rounds.clear()
        self.waiting_bytes = 0
        self._round, self._key_bytes = Round(), Counter()
        self._crowded.clear()
        mailboxes = set(self._by_name.values())
        for item in items:
            mailboxes.update(item.load if isinstance(item, Round) else (item.mailbox,))
        for mailbox in mailboxes:
            mailbox.end()
            self._tell(mailbox, mailbox.holder.refused, error)
        self._by_name.clear()
        self._by_queue.clear()

    async def run(self, connection: Connection) -> None:
        """Work for ever; ends by an exception when the connection is lost, and may be run again with another."""
        self.waiting_since = None
        while True:
            if not self.idle:
                self.waiting_since = self.waiting_since or now()
            if self._again:
                await self._move(connection, self._again)
            elif not self._rounds and self._items and not isinstance(self._items[0], Round):
                await self._move(connection, self._items)
            else:
                if not self._rounds and self._items:
                    self._next_round()
                if self._rounds or self._hungry:
                    await self._exchange(connection)
                else:
                    self._wake.clear()
                    await self._wake.wait()

    async def watch(self, connection: Connection) -> None:
        """Look from time to time for letters that no notification told of."""
        while True:
            await asyncio.sleep(WATCH)
            time = now()
            due = [mailbox.queue for mailbox in self._by_name.values() if mailbox.is_due(time)]
            for start in range(0, len(due), 1000):
                cursor = await connection.execute(statement("unseen"), {"queues": array(due[start : start + 1000])})
                for (queue,) in await cursor.fetchall():
                    self.more_in_store(queue, FIRST)

    # Rounds.

    def _take_in(self, mailbox: Mailbox, size: int) -> Round:
        """Count something that a connection has sent; returns its round. One that sends faster than it is written slows
        itself."""
        self.waiting_bytes += size
        self._key_bytes[mailbox.key] += size
        mailbox.add_pending(size)
        if not mailbox.crowded and self._is_over(mailbox, 1.0):
            self._crowded[mailbox] = None
            mailbox.crowd(True)
        last = self._items[-1] if self._items else None
        if not isinstance(last, Round) or last.full:
            last = Round()
            self._put(last)
        last.count(mailbox, size)
        return last

    def _is_over(self, mailbox: Mailbox, share: float) -> bool:
        return (
            mailbox.pending > share * MOST_PENDING
            or mailbox.pending_bytes > share * MOST_PENDING_BYTES
            or self._key_bytes[mailbox.key] > share * self.options.key_pending_bytes
        )

    def _unload(self) -> None:
        """The round is done: who has sent it may send more."""
        done, self._round = self._round, Round()
        self.waiting_bytes -= done.size
        for mailbox, (items, size) in done.load.items():
            mailbox.remove_pending(items, size)
            self._key_bytes[mailbox.key] -= size
        for mailbox in tuple(self._crowded):
            if mailbox.gone or not self._is_over(mailbox, 0.5):
                del self._crowded[mailbox]
                if not mailbox.gone:
                    self._tell(mailbox, mailbox.crowd, False)

    def _put(self, item: Round | Move) -> None:
        self._items.append(item)
        self._wake.set()

    def _want(self, mailbox: Mailbox) -> None:
        """Fetch from the store for a mailbox, if there is something and it has room."""
        if mailbox.backlog.unclaimed and mailbox.open:
            self._hungry[mailbox] = None
            self._wake.set()

    def _next_round(self) -> None:
        """Take what waits, up to the next move, as one transaction's work."""
        item = self._items.popleft()
        assert isinstance(item, Round)
        item.begin()
        self._round = item
        self._rounds.append(item)
        for mailbox, _, out in item.acks:
            if any(out):
                self._want(mailbox)  # there was no room, perhaps

    async def _exchange(self, connection: Connection) -> None:
        if not self._rounds:
            self._rounds.append(Round())
        round = self._rounds[0]
        for mailbox in list(islice(self._hungry, MOST_CLAIMS - len(round.claims))):
            del self._hungry[mailbox]
            if mailbox.backlog.unclaimed and mailbox.open and mailbox not in round.claims:
                round.claim(mailbox)
        if not round:
            self._rounds.popleft()
            return
        write = partial(self._write_round, connection)
        refused = await carry_out(self._rounds, write, lambda round, _: round.apart(), self._refuse, connection)
        if not self._rounds:
            self._unload()
        while self._blamed:
            await self._narrow(connection, *self._blamed.popitem())
        self.on_commit()
        await self._go_on(refused)

    async def _go_on(self, refused: Exception | None) -> None:
        """After a try: at once, or later when the server refuses for now."""
        if refused is None:
            self._patience.reset()
            self.waiting_since = None
            self.health.end(SERVING)
            self.health.end(audit.trouble(CHAIN))
            return
        if isinstance(refused, Later):
            self.health.begin(audit.trouble(CHAIN), refused.detail)
        else:
            self.health.begin(SERVING, told(refused))
        await self._patience.wait()

    async def _write_round(self, connection: Connection, round: Round) -> None:
        options = self.options
        exchange = Exchange(
            round, self._locals(round.postings), self.node.id, options.relaxed_mailboxes, options.audit_letters,
            self._strays.take,
        )  # fmt: skip
        await exchange.run(connection)
        if self._rounds and self._rounds[0] is round:  # else its connections were told that the fate is unknown
            try:
                self._deliver(exchange)
            except Exception as error:  # it is durable, and must not be done again
                self.health.isolate("delivery of letters", error)
            for mailbox in round.asking:
                if not mailbox.gone:
                    self._tell(mailbox, mailbox.holder.answer, exchange.names)
        for queue in exchange.overfull:
            await self.settlements.max_length.keep(connection, queue)

    def _refuse(self, round: Round, error: Exception) -> None:
        """One item cannot be written: its connection ends."""
        for sender, id, *_ in (*round.postings, *round.forwards):
            self.counts.dropped += 1
            self._broken(sender, "letter", error, id)
        for mailbox, keys, _ in round.acks:
            self._broken(mailbox, "acknowledgement of a letter", error, keys[0])
        for mailbox in round.claims:
            self._blamed[mailbox] = error
        for mailbox in round.asking:
            self._broken(mailbox, "question of a peer", error, None)

    async def _narrow(self, connection: Connection, mailbox: Mailbox, error: Exception) -> None:
        """Letters of a mailbox cannot be fetched: fewer are, until the one to blame is found, which becomes a dead
        letter; or is passed over, if that does not work either."""
        alone = mailbox.claim_fewer()
        self._want(mailbox)
        if not alone:
            return
        id = None
        try:
            id = await first_ready(connection, mailbox.queue, mailbox.backlog.watermark.value)
            if id is not None:
                await set_aside(connection, id, f"not claimed: {told(error)}")
        except Exception as failure:
            if fault_of(failure, connection) is not Fault.BAD:
                raise
            if id is not None:
                mailbox.backlog.watermark.pass_over(id)
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

    def _locals(self, postings: Iterable[Posting]) -> list[Mailbox]:
        """The mailboxes of this node that may be given these letters as they are stored."""
        recipients = {posting.recipient for posting in postings}
        everyone: Iterable[Mailbox] = self._by_name.values() if None in recipients else ()
        named = (self._by_name[name] for name in recipients if name in self._by_name)
        wanting = dict.fromkeys(mailbox for mailbox in chain(named, everyone) if mailbox.wants)
        return list(islice(wanting, MOST_LOCALS))

    def _deliver(self, exchange: Exchange) -> None:
        """After the commit."""
        self.counts.published += exchange.stored
        self.counts.dropped += exchange.dropped
        self.counts.acknowledged += exchange.settled
        self.counts.stray_acks += exchange.stray
        for key, name, error in exchange.unforeseen:
            self.health.isolate("letter", error, peer=name, key=key)
        for mailbox, news, claim in exchange.claims:
            self.counts.claimed += claim.taken
            mailbox.claimed(claim, news)
        time = now()
        for mailbox, letters in exchange.deliveries.items():
            self._tell(mailbox, mailbox.deliver, letters, time)
        for queue, (id, node) in exchange.left.items():
            if node == self.node.id:
                self.more_in_store(queue, id)
            else:
                self.announce(queue, id)
        for queue, id in exchange.ready.items():
            self.announce(queue, id)
        for mailbox, failure in exchange.undeliverable:
            if mailbox.policy is not None:
                self.settlements.bury(mailbox.policy, failure)
        for mailbox, *_ in exchange.claims:
            self._want(mailbox)

    # Moves.

    async def _move(self, connection: Connection, items: deque[Round | Move] | deque[Move]) -> None:
        """Take and leave some mailboxes; of the same name one at a time."""
        parts = deque([first_moves(items)])
        write = partial(self._move_some, connection, items)
        refuse = partial(self._refuse_move, items)
        await self._go_on(await carry_out(parts, write, lambda moves, _: halves(moves), refuse, connection))

    async def _move_some(
        self, connection: Connection, items: deque[Round | Move] | deque[Move], moves: list[Move]
    ) -> None:
        leaving = [move.mailbox for move in moves if isinstance(move, Leave) and move.mailbox.connection]
        taking = [move for move in moves if isinstance(move, Take) and not move.mailbox.gone]
        beyond: list[Take] = []
        if leaving:
            await leave(connection, leaving, self.node.id)
        if taking:
            taking, beyond = await in_order(connection, taking, self.options.most_names)
        if taking:
            given, names = await take(connection, taking, self.node.id, not self.options.relaxed_mailboxes)
            await self.policies.load(connection, [queue for queue, _, _ in given])
        for _ in moves:
            items.popleft()
        for mailbox in leaving:
            self._forget(mailbox)
        for move, (queue, taken, refused) in zip(taking, given if taking else (), strict=True):
            self._taken(move, queue, taken, refused, names)
        for move in beyond:
            self._forget(move.mailbox)
            self._tell(move.mailbox, move.mailbox.holder.refused, TooManyNames(move.mailbox.name))

    def _refuse_move(self, items: deque[Round | Move] | deque[Move], moves: list[Move], error: Exception) -> None:
        [move] = moves
        items.popleft()
        mailbox = move.mailbox
        self._forget(mailbox)
        self._broken(mailbox, "mailbox that is taken or left", error, None)
        mailbox.end()

    def _taken(self, move: Take, queue: int, connection: int, refused: str | None, names: list[str]) -> None:
        mailbox = move.mailbox
        policy = self.policies.by_id.get(queue)
        if refused == "displaced":
            self._displace(mailbox)
        elif policy is None:
            self._displace(mailbox, evicted=True)
        elif refused is not None:
            self._forget(mailbox)
            self._tell(mailbox, mailbox.holder.refused, MailboxClaimed(mailbox.name))
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
