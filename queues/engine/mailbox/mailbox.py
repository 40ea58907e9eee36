"""A mailbox as this node serves it: the letters of one named recipient, whose one connection is here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, Protocol

from queues.database.sql_files import array
from queues.engine.consume.backlog import Backlog, ClaimResult
from queues.engine.errors import EngineError
from queues.engine.policies import QueuePolicy

#: Seconds after which a newly taken mailbox is looked at, for letters that no notification told of; then every LOOK.
FIRST_LOOKS = (0.25, 1.0)
LOOK = 5.0
#: Letters for one mailbox in one transaction.
MAX_CLAIMED = 4000


#: A letter that is out: its id and the time of its delivery (monotonic), if that is known.
Out = tuple[int, float | None]


class PeerMessage(NamedTuple):
    """A message on its way to a peer. It is acknowledged by its `key`; `published` is a Unix time.

    `content` is a `Content`, or None for bytes, of a message that came over a route.
    """

    key: str
    payload: bytes
    content: int | None
    sender: str
    published: float


class Deliveries:
    """Letters on their way to one mailbox, as columns in their order."""

    __slots__ = ("ids", "keys", "payloads")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.keys: list[str] = []
        self.payloads: list[bytes] = []

    def add(self, ids: Sequence[int], keys: Sequence[str], payloads: Sequence[bytes]) -> None:
        """Add letters behind the others."""
        self.ids += ids
        self.keys += keys
        self.payloads += payloads


class MailboxHolder(Protocol):
    """The connection that has a mailbox. All but `wrap` is called after the commit."""

    @property
    def room_bytes(self) -> int:
        """Bytes of letters that it may be given now."""

    def taken(self, names: list[str]) -> None:
        """The mailbox is its own; `names` are all that are connected. Letters follow."""

    def refused(self, error: EngineError) -> None:
        """The mailbox was refused: MailboxClaimed or StoreUnavailable."""

    def displaced(self) -> None:
        """Another connection has the mailbox now."""

    def evicted(self) -> None:
        """An operator has ended the connection, or removed the mailbox."""

    def deliver(self, keys: list[str], payloads: list[bytes]) -> None:
        """Send letters with these keys and payloads, in order."""

    def crowd(self, crowded: bool) -> None:
        """Too much that it, or its API key, has sent waits for the database: do not read from it; or read again."""

    def wrap(self, letter: PeerMessage) -> bytes:
        """A message that came over a route, as a letter's payload. Raises Undeliverable."""

    def answer(self, names: list[str]) -> None:
        """Of `MailboxService.ask`: these are connected, and everything that was posted before is durable."""


@dataclass(slots=True, eq=False, repr=False)
class Mailbox:
    """A connection's mailbox. At most `window` letters are out without an acknowledgement."""

    name: str
    key: int
    holder: MailboxHolder
    window: int
    queue: int = 0
    connection: int = 0
    policy: QueuePolicy | None = None
    #: The id and the time (monotonic) of each delivered letter, by its key.
    unacked: dict[str, Out] = field(default_factory=dict)
    #: Nothing is delivered to it any more.
    gone: bool = False
    #: Items and bytes that it has sent and that are not written yet.
    pending: int = 0
    pending_bytes: int = 0
    backlog: Backlog = field(default_factory=Backlog)
    #: Letters that are fetched at once: fewer after a failure, until the one to blame is found.
    most: int = MAX_CLAIMED
    looks: int = 0
    next_look: float = 0.0

    # Life.

    def begin(self, queue: int, connection: int, policy: QueuePolicy, now: float) -> None:
        """The store has given it to its connection, which starts from the oldest letter."""
        self.queue, self.connection, self.policy = queue, connection, policy
        self.backlog.restart()
        self.looks, self.next_look = 0, now + FIRST_LOOKS[0]

    def change_policy(self, policy: QueuePolicy | None) -> None:
        """The queue's policy has changed; None: the queue was removed, or the database is lost."""
        self.policy = policy

    def end(self) -> None:
        """Deliver nothing to it any more."""
        self.gone = True

    # Sending.

    def add_pending(self, items: int, size: int) -> None:
        """Its connection has sent so many more items of `size` bytes; negative: so many are written."""
        self.pending += items
        self.pending_bytes += size

    # Letters.

    @property
    def room(self) -> int:
        """The number of letters that may still be sent out."""
        return self.window - len(self.unacked)

    @property
    def open(self) -> bool:
        """Whether letters may be delivered now."""
        if self.gone or self.policy is None or self.policy.paused:
            return False
        return self.room > 0 and self.holder.room_bytes > 0

    @property
    def wants(self) -> bool:
        """Whether new letters should be leased to it as they are stored: it has everything that came before."""
        return not self.backlog.unclaimed and self.open

    def more_in_store(self, first_id: int) -> None:
        """Letters from `first_id` on became ready in the store."""
        self.backlog.arrived(first_id)

    def deliver(self, letters: Deliveries, now: float) -> None:
        """Give the holder letters that are leased to it. Those that were out when the database was lost are out still,
        since the connection is the same."""
        unacked, keys, payloads = self.unacked, letters.keys, letters.payloads
        if not unacked.keys().isdisjoint(keys):
            fresh = [n for n, key in enumerate(keys) if key not in unacked]
            keys, payloads = [keys[n] for n in fresh], [payloads[n] for n in fresh]
        unacked.update(zip(letters.keys, zip(letters.ids, repeat(now)), strict=True))
        if keys and not self.gone:
            self.holder.deliver(keys, payloads)

    def release(self, keys: Iterable[str]) -> list[Out | None]:
        """Letters are out no more: the id of each and the time of its delivery (monotonic); None if it was not out."""
        take = self.unacked.pop
        return [take(key, None) for key in keys]

    def forget_deliveries(self) -> None:
        """The store has another past: ids of letters mean nothing any more."""
        self.unacked.clear()

    def claimed(self, claim: ClaimResult, news: int) -> None:
        """Letters were fetched, by a transaction that may have been done more than once; `news` is the backlog's from
        before."""
        self.most = min(2 * self.most, MAX_CLAIMED)
        quiet = self.backlog.news == news
        self.backlog.begin_claim()
        if not quiet:
            self.backlog.returned()
        self.backlog.end_claim(claim)

    def claim_fewer(self) -> bool:
        """A fetch has failed: fetch fewer letters next time. Returns whether it was a single letter's."""
        alone = self.most == 1
        self.most = max(1, min(self.most, self.room) // 2)
        return alone

    def is_due(self, now: float) -> bool:
        """Whether it is time to look for letters that no notification told of."""
        if self.gone or self.backlog.unclaimed or now < self.next_look:
            return False
        self.looks += 1
        self.next_look = now + (FIRST_LOOKS[self.looks] if self.looks < len(FIRST_LOOKS) else LOOK)
        return True


def columns(mailboxes: Collection[Mailbox]) -> dict[str, str]:
    """Mailboxes and their connections as statements take them."""
    return {
        "mailboxes": array(mailbox.queue for mailbox in mailboxes),
        "connections": array(mailbox.connection for mailbox in mailboxes),
    }
