"""Ids of clients' connections: the node's id, and below it the connection's number there."""

from __future__ import annotations

from typing import Final

#: Bits of a connection's id below those of its node's.
NUMBER_BITS: Final = 32


def connection_id(node: int, number: int) -> int:
    """The id of a connection's row."""
    return node << NUMBER_BITS | number


def parts_of_id(id: int) -> tuple[int, int]:
    """The node and the number in a connection's id."""
    return id >> NUMBER_BITS, id & ((1 << NUMBER_BITS) - 1)
