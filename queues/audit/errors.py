"""The errors of the audit chains; each class's docstring is its message."""

from queues.errors import DescribedError


class AuditError(DescribedError):
    """The audit chain failed."""


class InvalidEvent(AuditError, ValueError):
    """The event cannot be recorded."""


class HeadNotLocked(AuditError):
    """The chain's head is not where its lock was taken; nothing was appended."""


class NoSuchChain(AuditError):
    """There is no such chain."""


class InvalidAuditKey(AuditError):
    """The text is no Ed25519 key."""


class InvalidAnchorFile(AuditError):
    """The file holds no anchors."""


class ChainBusy(AuditError):
    """The chains are being read; old days are dropped later."""
