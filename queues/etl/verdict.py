"""The verdict on each audit chain, as `queues.audit.verify` gives it, from where the job has found all rows right.

What the job has proven is skipped, but for the first row and the anchors' rows; the rest, head, tail, and what exactly
is wrong with a row, is looked at by the very code that reads a chain alone. So both always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

from django.db import DEFAULT_DB_ALIAS

from queues.audit import verify
from queues.audit.chains import seal
from queues.audit.reading import read_blocks, read_rows
from queues.audit.verify import ChainReader, Verification, VerificationProgress
from queues.etl.job.chains import ChainVerification

__all__ = ["figures", "sentences", "verify_chains"]

NOTHING = ChainVerification("", 0, 0)


def verify_chains(
    proven: Iterable[ChainVerification],
    progress: Callable[[VerificationProgress], None] = lambda progress: None,
    using: str = DEFAULT_DB_ALIAS,
) -> list[Verification]:
    """Verify every chain and keep the outcomes. Raises as `queues.audit.verify.attempt` does."""
    seal(using)
    copies = verify.read_copies()
    readers = {one.chain: partial(_Skipping, proven=one) for one in proven}
    outcomes: list[Verification] = []
    for name in verify.chain_names(copies, using):
        work = verify.verifying(name, copies, using, readers.get(name))
        outcomes.append(verify.attempt(name, work, progress, using))
    return outcomes


@dataclass
class _Skipping(ChainReader):
    """Reads a chain's first row, skips the proven rows, and reads the rest."""

    proven: ChainVerification = NOTHING

    def read(self) -> Generator[VerificationProgress, None, None]:
        self._find_start()
        yield VerificationProgress(0, self.end - self.start)
        with closing(read_blocks(self.connection, self.chain, self.start, 1)) as blocks:
            for block in islice(blocks, 1):
                self._check(block)
        if self.rows and not self.findings:
            self._skip()
        yield from self._read_on()

    def _skip(self) -> None:
        """Accept the proven rows after comparing them with the anchors."""
        last = min(self.proven.end, self.end) - 1
        if not self.proven.first <= self.start < last:
            return
        for seq in sorted(seq for seq in self.anchors.by_seq if self.start < seq <= last):
            self.findings += self.anchors.contradictions({seq: self._hash(seq)})
        self.rows, self.before = last + 1 - self.start, self._hash(last)

    def _hash(self, seq: int) -> str:
        rows = read_rows(self.connection, self.chain, seq, seq + 1)
        return rows[0].hash.hex() if rows else ""


def sentences(outcomes: Sequence[Verification]) -> list[str]:
    """Sentences about broken chains and about chains that could not be read."""
    return [
        f"The audit chain {one.chain} {'was' if one.error else 'is'} {one.fault}." for one in outcomes if not one.ok
    ]


def figures(outcomes: Sequence[Verification]) -> dict[str, dict[str, object]]:
    """The outcomes by chain, as stored in a run's row."""
    return {
        one.chain: {"ok": one.ok, "rows": one.rows, "broken_seq": one.finding.seq if one.finding else None}
        | ({"error": one.error} if one.error else {})
        for one in outcomes
    }
