"""Whether rows of an audit chain follow from each other: runs in the executors."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from queues.audit.events import GENESIS, HASH, hash_block


def first_wrong(low: int, high: int, seqs: bytes, hashes: bytes, events: bytes) -> int | None:
    """The first seq in [low, high) whose row is missing, doubled, or does not follow from the row before it.

    The rows are those of [low - 1, high), as audit_block.sql has read them. None: all rows are right. """
    numbers = struct.unpack(f">{len(seqs) // 8}q", seqs)
    expected = range(low - 1, high)
    count = next((n for n, (seq, want) in enumerate(zip(numbers, expected, strict=False)) if seq != want), len(numbers))
    count = min(count, high - low + 1)
    right = hash_block(GENESIS, events, hashes)  # the hash before the first row is unknown here
    for at in range(HASH, HASH * count, HASH):
        if right[at : at + HASH] != hashes[at : at + HASH]:
            return low - 1 + at // HASH
    return None if count == high - low + 1 and len(numbers) == count else min(high - 1, max(low, low - 1 + count))


def check(blocks: Iterable[Any]) -> Iterator[tuple[int, int | None]]:
    """For each block that a query returned: its low end and its first wrong seq."""
    for low, high, *columns in blocks:
        yield low, low if columns[0] is None else first_wrong(low, high, *map(bytes, columns))
