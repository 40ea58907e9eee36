"""The hot path: a durable store of messages in PostgreSQL that many connections share.

Sessions of every protocol use the names exported here only: an `Engine` for the process, a `Publisher` to
publish to, a `LocalQueue` or a `LocalSubscription` to consume from. docs/architecture.md tells how it works.
"""

from queues.engine.access import ANONYMOUS, NOTHING, Grant
from queues.engine.backpressure import ReplyHolder
from queues.engine.clients import ClientConnection
from queues.engine.consume.dispatch import Push, PushConsumer, PushRun, Waiter
from queues.engine.consume.local_queue import LocalDeadLetters, LocalQueue
from queues.engine.consume.message_runs import PayloadPart
from queues.engine.consume.subscriptions import LocalSubscription
from queues.engine.database import absence
from queues.engine.engine import Engine, running
from queues.engine.errors import (
    EngineError,
    MailboxClaimed,
    NotMigrated,
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
from queues.engine.garbage import spare_garbage_collector
from queues.engine.mailbox.items import Acks, Ask, Forward, Letters
from queues.engine.mailbox.mailbox import Mailbox, PeerMessage
from queues.engine.mailbox.service import MailboxService
from queues.engine.message import Content, Delivery, Detail, DetailedMessage
from queues.engine.options import EngineOptions, options_from_settings
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination
from queues.engine.publish.publisher import Producer, Publisher
from queues.engine.uuids import first_id
