"""Errors of the engine; each class's docstring is its message."""

from queues.errors import DescribedError


class EngineError(DescribedError):
    """The engine failed."""


class UnsafeServer(EngineError):
    """PostgreSQL is configured so that a crash could lose confirmed messages."""


class Pooled(EngineError):
    """A connection pooler between this process and PostgreSQL does not serve the engine."""


class UnsupportedServer(EngineError):
    """This version of PostgreSQL is not supported."""


class NotMigrated(EngineError):
    """The database has no up-to-date schema; run manage.py migrate."""


class StoreUnavailable(EngineError):
    """The database is away."""


class OutcomeUnknown(StoreUnavailable):
    """The database does not answer: the messages sent to it may be stored or not."""


class Later(EngineError):
    """This cannot be written now"""


class QueueNotFound(EngineError):
    """There is no such queue."""


class QuotaExceeded(EngineError):
    """The API key has as many as it may."""


class QueueFull(EngineError):
    """The queue is full."""


class TopologyMoved(EngineError):
    """A queue, subscription or route changed while a publish was under way; it is routed again."""


class Unstorable(EngineError):
    """PostgreSQL cannot store this message."""


class MailboxClaimed(EngineError):
    """The name belongs to another API key."""


class TooManyNames(EngineError):
    """The API key has as many names as it may."""


class Undeliverable(EngineError):
    """This message cannot be delivered to a peer."""
