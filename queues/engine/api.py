"""The interface of the broker: what sessions of every protocol, Celery's transport and the operations may use.

`Broker` is the reference: one process's part of the broker, an `Engine(options)`. Nothing outside this package imports
another module of it, which a contract in pyproject.toml holds. docs/architecture.md tells how it works.

Units: times are seconds; ids of messages are positions in their queue (63 bits, a lower one first); a *tag* is a
delivery, for the consumer that has it; a *key* is the id of an API key, None for anyone. Unless a docstring says
otherwise a method belongs to the event loop of the engine, returns at once, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from queues.engine.access import ANONYMOUS, NOTHING, Grant, key_digest
from queues.engine.backpressure import ReplyHolder
from queues.engine.clients import LATEST, MAX_LISTED, ClientConnection, Clients, ClientSession
from queues.engine.cluster.notifications.formats import FOLLOWING, Disconnected, Purge, Ready, SendableHint, Watched
from queues.engine.connections import CONNECTIONS, probe
from queues.engine.consume.consumer import PushConsumer, Waiter
from queues.engine.consume.deliveries import Deliveries
from queues.engine.consume.interest import COLD, COLD_SHARED
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.memory import weight
from queues.engine.consume.message_runs import PayloadPart, Push, PushRun
from queues.engine.consume.prefetched_queue import LocalDeadLetters, PrefetchedQueue
from queues.engine.consume.subscriptions import LocalSubscription, Subscriptions
from queues.engine.database import SHARED_SESSIONS, absence, check_sessions, lacked_right, refused_by_pooler
from queues.engine.engine import Engine, running
from queues.engine.errors import (
    EngineError,
    MailboxClaimed,
    NotMigrated,
    Pooled,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    StoreUnavailable,
    TooManyNames,
    Undeliverable,
    UnsafeServer,
    Unstorable,
    UnsupportedServer,
)
from queues.engine.faults import MAX_REPEATS, Fault, fault_of, told
from queues.engine.garbage import spare_garbage_collector
from queues.engine.health import Health
from queues.engine.mailbox.items import Acks, Ask, Forward, Letters
from queues.engine.mailbox.mailbox import Mailbox, PeerMessage
from queues.engine.mailbox.service import MailboxService
from queues.engine.message import (
    DEAD_LETTER,
    ROWS_PER_STATEMENT,
    Content,
    Counts,
    Delivery,
    Detail,
    DetailedMessage,
    statement_parts,
)
from queues.engine.options import EngineOptions, options_from_settings
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination
from queues.engine.publish.publisher import Producer, Publisher
from queues.engine.settle.batches import MAX_ERROR
from queues.engine.statements import DIRECTORY as ENGINE_DIRECTORY
from queues.engine.uuids import first_id, message_uuid


class Broker(Protocol):
    """One process's part of the broker. `Engine` is the only one that there is; tests may give another."""

    # Life.

    @property
    def options(self) -> EngineOptions:
        """The settings of this process, as they were at its start."""

    @property
    def node(self) -> int:
        """The id of this process among those that serve queues; another after each reconnect."""

    @property
    def available(self) -> bool:
        """Whether the database is there. While it is not, publishes wait and requests raise StoreUnavailable."""

    async def start(self, *, patient: bool = False) -> None:
        """Connect and begin to work. With `patient`, wait for a server that takes no connections, or no writes.

        Raises UnsafeServer, UnsupportedServer, NotMigrated or psycopg.OperationalError.
        """

    async def stop(self, timeout: float = 10.0) -> None:
        """Write what waits, return what consumers have, and leave, within `timeout` seconds."""

    def descriptors(self) -> list[int]:
        """The file descriptors of its connections, which a forked child must not use."""

    # Publishing.

    def publisher(self, destination: Destination, key: int | None = None) -> Publisher:
        """The publisher of messages to a queue or topic, for the producers with this API key.

        A `publish…` of it takes messages and the producer's own token for each, and returns the number of the batch
        that they belong to. Messages of one publisher are stored in the order of the calls. A message that cannot be
        stored is told to `Producer.publish_failed` with its token: QueueNotFound, QueueFull, Unstorable, or
        StoreUnavailable after `options.publish_timeout` seconds. No other is told: it is durable once `holds(batch)`
        is False. `check_saturation` is due after a read that has published.
        """

    @property
    def open_batch(self) -> int:
        """The number of the batch that the next publish belongs to. It grows by one with each commit."""

    def holds(self, batch: int) -> bool:
        """Whether a publish of this batch is not durable yet: no reply that follows it may leave."""

    # Consuming.

    async def queue(self, name: str) -> PrefetchedQueue:
        """The queue of this name as this process serves it: the same object for all who ask.

        A consumer polls (`deliver`, `deliver_many`), waits for one message (`wait`), or is pushed to (`dispatcher`).
        Each delivery has a tag that is settled once, in the queue's `deliveries`: `ack`, `complete` (with a result),
        `give_back` (a failed attempt), `bury` (a dead letter) or `hand_back` (not counted). One that is not settled
        within the queue's `ack_timeout` goes back as a failed attempt. A consumer enters (`enter`) before the first and
        leaves (`leave`) after the last. A queue that an operator deletes is `closed`. Raises QueueNotFound or
        StoreUnavailable.
        """

    async def dead_letters(self, name: str) -> LocalDeadLetters:
        """The dead letters of a queue, for consumers that read them one at a time. Raises as `queue`."""

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions to topics, each with a queue. `create` returns when no publish that is confirmed later, on
        any node, misses the subscription; `load` finds one by its id."""

    def with_consumers(self, name: str) -> list[int]:
        """First ids of a queue's messages that consumers of this process have."""

    def prefetched(self, name: str, most: int) -> list[int]:
        """First ids of a queue's messages that this process has in memory for its consumers: at most `most`."""

    def set_prefetch(self, messages: int) -> None:
        """Take at most so many messages into memory for each queue, from the next claim on."""

    async def refresh(self, name: str) -> None:
        """Obey a queue's policy as it is now, before its change is notified. Raises StoreUnavailable."""

    # Settling.

    @property
    def unsettled(self) -> int:
        """Settlements that are not durable yet."""

    @property
    def settling(self) -> int:
        """The number of the round in which the last settlement is written."""

    def settling_of(self, buffer: PrefetchedQueue) -> int:
        """The round in which the last settlement of this queue is written; that of an audited queue is its own."""

    def settles(self, round: int) -> bool:
        """Whether the settlements of this round are not durable yet."""

    def hurry_settling(self) -> None:
        """A reply waits for the current round: write it at once if little else is to be written."""

    # Barriers and back-pressure.

    @property
    def behind(self) -> bool:
        """Whether barriers should wait too: more settlements than `options.most_unsettled` are not written."""

    def hold(self, holder: ReplyHolder) -> None:
        """Call `holder.release()` after each commit of publishes or settlements, until `unhold`."""

    def unhold(self, holder: ReplyHolder) -> None:
        """Call it no more; nothing happens if it is not held."""

    def check_saturation(self) -> None:
        """Look whether too much waits for the database; if so `on_saturation` is called."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all publishes that are not durable yet."""

    @property
    def on_saturation(self) -> list[Callable[[bool], None]]:
        """Called with True when sockets should not be read, and with False when they may be again."""

    # Mailboxes.

    @property
    def mailboxes(self) -> MailboxService:
        """The mailboxes of named peers, in a process with `options.mailboxes`: `take` one for a connection, `take_in`
        what it sends, `leave` at its end. A mailbox has one holder over all nodes."""

    # Keys and connections.

    async def authenticate(self, key: str, protocol: str, address: str = "") -> Grant | None:
        """The grant of an API key; None if it is not good for this protocol. `address` is the client's, for the
        operators. Raises StoreUnavailable."""

    async def grant_named(self, name: str) -> Grant | None:
        """The grant of the API key of this name; None if there is none. Raises StoreUnavailable."""

    @property
    def on_key_change(self) -> list[Callable[[int], None]]:
        """Called with the id of an API key that was changed or revoked."""

    @property
    def clients(self) -> Clients:
        """The connections as operators see them: `add` one at its begin, `remove` it at its end."""

    # Requests, jobs and health.

    async def request(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named statement that writes, in a transaction of its own; returns its rows. Raises StoreUnavailable, or
        OutcomeUnknown if the connection is lost at the commit."""

    async def look_up(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named statement that only reads. It waits for no commit. Raises StoreUnavailable."""

    @property
    def on_periodic_change(self) -> list[Callable[[], None]]:
        """Called when a periodic job may be due earlier than was known, or a bulk operation has begun."""

    @property
    def counts(self) -> Counts:
        """Numbers since the start of the process, for metrics."""

    @property
    def health(self) -> Health:
        """What fails: `guard` calls what belongs to one session, and ends that session alone if it raises."""

    def troubles(self) -> Mapping[str, int]:
        """The number of present faults, by their kinds."""

    def notes(self) -> Sequence[str]:
        """Warnings for operators, a sentence each; the broker works in spite of them."""

    def unready_reasons(self) -> Sequence[str]:
        """Reasons to give this process no work now, a sentence each, without names of hosts and users."""


if TYPE_CHECKING:

    def _is_broker(engine: Engine) -> Broker:
        return engine
