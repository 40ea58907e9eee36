"""The hot path: a durable store of messages in PostgreSQL that many connections share.

Sessions of every protocol use what is exported here and nothing else: an `Engine` for the process, a `Source` to
publish to, a `QueueBuffer` or a `Subscription` to consume from. docs/architecture.md tells how it works.
"""

from queues.engine.access import ANYBODY, NOTHING, Grant
from queues.engine.buffer import DeadLetterBuffer, QueueBuffer, Waiter
from queues.engine.engine import Engine, Holder, running
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
from queues.engine.mailbox import Letter, Mailbox
from queues.engine.mailroom import Mailroom
from queues.engine.message import Content, Delivery, Detail, Outgoing
from queues.engine.options import EngineOptions, options_from_settings
from queues.engine.policy import QueuePolicy
from queues.engine.pusher import Push
from queues.engine.source import Address, Publisher, Source
from queues.engine.subscriptions import Subscription

__all__ = [
    "ANYBODY",
    "NOTHING",
    "Address",
    "Content",
    "DeadLetterBuffer",
    "Delivery",
    "Detail",
    "Engine",
    "EngineError",
    "EngineOptions",
    "Grant",
    "Holder",
    "Letter",
    "Mailbox",
    "MailboxClaimed",
    "Mailroom",
    "NotMigrated",
    "Outgoing",
    "Publisher",
    "Push",
    "QueueBuffer",
    "QueueFull",
    "QueueNotFound",
    "QueuePolicy",
    "QuotaExceeded",
    "Source",
    "StoreUnavailable",
    "Subscription",
    "TooManyNames",
    "Undeliverable",
    "UnsafeServer",
    "Unstorable",
    "UnsupportedServer",
    "Waiter",
    "options_from_settings",
    "running",
]
