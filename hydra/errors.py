"""The errors of a node's store."""

from __future__ import annotations

from queues.errors import BrokerError


class StoreError(BrokerError):
    """The store cannot do this, and cannot later."""


class NodeNameTaken(StoreError):
    """Another process runs the node of this name, or has run it since this one lost its connection."""


class NodeForgotten(StoreError):
    """The node's row was deleted while it ran: its promises are lost."""


class StaleWrite(StoreError):
    """A write would lower the term, or change the pledge of a term."""


class UnreadableRow(StoreError):
    """The node's row holds invalid values."""


class StoreBroken(StoreError):
    """The store has failed unforeseen; the log says where."""


class StoreClosed(StoreError):
    """The store was closed before the write was committed."""
