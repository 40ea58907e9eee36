"""What can go wrong with an audit chain; each class's docstring is its message."""

from __future__ import annotations


class AuditError(Exception):
    """The audit chain failed."""

    def __init__(self, detail: str = "") -> None:
        text = (type(self).__doc__ or "").strip().rstrip(".")
        super().__init__(f"{text}: {detail}" if detail else text)
        self.detail = detail


class InvalidEvent(AuditError, ValueError):
    """This event cannot be recorded."""


class HeadNotLocked(AuditError):
    """The chain's head is not where its lock was taken; nothing was appended."""


class NoSuchChain(AuditError):
    """There is no such chain."""


class InvalidAuditKey(AuditError):
    """This is no Ed25519 key."""


class InvalidAnchorFile(AuditError):
    """This file does not hold anchors."""


class ChainBusy(AuditError):
    """Somebody reads the chains; old days are dropped later."""
