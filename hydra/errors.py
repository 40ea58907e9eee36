"""Why a node's store cannot do what it is asked for."""

from __future__ import annotations


class StoreError(Exception):
    """What was asked of the store cannot be, and trying again is of no use."""


class NodeNameTaken(StoreError):
    """Another process runs the node of this name, or has run it since this one lost its connection."""


class NodeForgotten(StoreError):
    """The node's row was deleted while it ran: what it has promised is not known any more."""


class StaleWrite(StoreError):
    """A term was to go back, or a second pledge to be given in one term."""


class UnreadableRow(StoreError):
    """The node's row holds what no node has written."""


class StoreBroken(StoreError):
    """Something went wrong that should not have; the log says where."""


class StoreClosed(StoreError):
    """The store was closed before the write was committed."""
