"""Whether rows of an audit chain follow from each other: runs in the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from queues.audit.events import hash_each

HASH = 32


def first_wrong(
    low: int, high: int, seqs: Sequence[int], names: Sequence[str], ids: Sequence[str], senders: Sequence[str],
    recipients: Sequence[str], hashes: bytes,
) -> int | None:
    """The first seq in [low, high) whose row is not there once, or does not follow from the one before it.

    The rows are those of [low - 1, high) in order of seq, as columns. None: all are right.
    """  # fmt: skip
    expected = range(low - 1, high)
    count = next((n for n, (seq, want) in enumerate(zip(seqs, expected, strict=False)) if seq != want), len(seqs))
    count = min(count, high - low + 1)
    text = hashes.hex()
    stored = [text[at : at + 2 * HASH] for at in range(0, 2 * HASH * count, 2 * HASH)]
    right = hash_each(stored[: max(0, count - 1)], names[1:count], ids[1:count], senders[1:count], recipients[1:count])
    for seq, (hash_hex, found) in enumerate(zip(right, stored[1:], strict=True), low):
        if hash_hex != found:
            return seq
    return None if count == high - low + 1 and len(seqs) == count else min(high - 1, max(low, low - 1 + count))


def check(blocks: Iterable[Any]) -> Iterator[tuple[int, int | None]]:
    """For each block that a query has brought: its low end, and the first wrong seq in it."""
    for low, high, seqs, names, ids, senders, recipients, hashes in blocks:
        if hashes is None:
            yield low, low
        else:
            yield low, first_wrong(low, high, seqs, names, ids, senders, recipients, bytes(hashes))
