"""Verifying a chain: every row follows from the one before, nothing is missing, and the signed anchors agree.

Rows are read in blocks, the next one while this one is checked. Within a block each row's hash is computed from the
hash that is stored before it, so a block is right if all of them equal the stored ones; the others are looked at row by
row (`diagnosis.py`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic

import psycopg
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections

from queues.audit import reading
from queues.audit.anchor import Anchor
from queues.audit.anchor_check import Anchors, check_anchors
from queues.audit.anchor_file import AnchorFile
from queues.audit.chains import seal
from queues.audit.diagnosis import WINDOW, Finding, FindingKind, judge
from queues.audit.errors import AuditError, NoSuchChain
from queues.audit.events import GENESIS, HASH, hash_block
from queues.audit.origin import chains_of, copies_of
from queues.audit.signing import trusted_keys
from queues.models import AuditChain, AuditVerification

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """The number of rows found right, and the number that there should be."""

    done: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The result for a chain. `rows` were verified, `dropped` before them had been dropped by retention. One that could
    not be read to its end has the `error` alone."""

    chain: str
    rows: int = 0
    dropped: int = 0
    anchors: int = 0
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.findings and not self.error

    @property
    def finding(self) -> Finding | None:
        """The first fault of the chain."""
        return self.findings[0] if self.findings else None

    @property
    def fault(self) -> str:
        """What is wrong, in words; empty if nothing is."""
        if self.error:
            return f"not read to its end: {self.error}"
        return "" if self.finding is None else f"broken at seq {self.finding.seq}: {self.finding}"


def chain_names(copies: Iterable[Anchor] = (), using: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Every chain there is, and those that should be there because copies of their anchors are."""
    stored = AuditChain.objects.using(using).values_list("name", flat=True)
    return sorted({*stored, *chains_of(copies, using)})


def read_copies(*files: AnchorFile) -> list[Anchor]:
    """The anchors in this installation's own file, if there is one, and in these. Raises InvalidAnchorFile, OSError."""
    own = AnchorFile.default()
    return [anchor for file in (*files, *([own] if own.path.exists() else [])) for anchor in file.read()]


def verify(
    chain: str,
    copies: Iterable[Anchor] | None = None,
    progress: Callable[[VerificationProgress], None] = lambda progress: None,
    using: str = DEFAULT_DB_ALIAS,
) -> Verification:
    """Verify a chain and keep the outcome in the database.

    `copies` are anchors from outside the database (default: `read_copies()`), read before this is called. Raises
    NoSuchChain, InvalidAuditKey, InvalidAnchorFile, or OSError when keys or copies cannot be read.
    """
    work = verifying(chain, copies, using)
    while not isinstance(step := _step(work, using), Verification):
        progress(step)
    return step


def attempt(
    chain: str,
    work: Generator[VerificationProgress, None, Verification],
    progress: Callable[[VerificationProgress], None],
    using: str = DEFAULT_DB_ALIAS,
) -> Verification:
    """Verify one chain of several, by `verifying` or the like: an unforeseen error costs this chain alone.

    Raises AuditError or OSError when keys or copies cannot be read, django.db.OperationalError when the database is
    away, and what `progress` raises.
    """
    while True:
        try:
            step = _step(work, using)
        except (AuditError, OSError):
            raise
        except Exception as error:
            return _unread(chain, error, using)
        if isinstance(step, Verification):
            return step
        progress(step)


def _unread(chain: str, error: Exception, using: str) -> Verification:
    """Log a chain that could not be read; the next one has a connection that works."""
    of_the_database = isinstance(error, (DatabaseError, InterfaceError, psycopg.Error))
    why = " ".join(str(error).split()) or type(error).__name__
    logger.error("the audit chain %r was not read to its end: %s", chain, why, exc_info=not of_the_database)
    if of_the_database:
        connections[using].close()
        connections[using].ensure_connection()
    return Verification(chain=chain, error=why)


def _step(
    work: Generator[VerificationProgress, None, Verification], using: str
) -> VerificationProgress | Verification:
    """The next step of a verification, or its outcome, which is kept."""
    try:
        return next(work)
    except StopIteration as end:
        outcome: Verification = end.value
        _keep(outcome, using)
        return outcome


def verifying(
    chain: str, copies: Iterable[Anchor] | None = None, using: str = DEFAULT_DB_ALIAS,
    make_reader: Callable[..., ChainReader] | None = None,
) -> Generator[VerificationProgress, None, Verification]:  # fmt: skip
    """Verify a chain step by step: yields after each block of rows, returns the outcome, and keeps nothing.

    Entries of the journal are moved into their chains first; rows appended later are left out. `make_reader` makes
    another reader of the rows than `ChainReader` with the same arguments.
    """
    started = monotonic()
    given = read_copies() if copies is None else copies
    trusted = trusted_keys()
    seal(using)
    with reading.snapshot(using) as connection:
        found = reading.find_chain(connection, chain)
        mine = copies_of(given, chain, None if found is None else found.created_at, using)
        if found is None:
            if not mine:
                raise NoSuchChain(repr(chain))
            return _gone(chain, monotonic() - started)
        anchors = check_anchors(reading.read_anchors(connection, found.id, chain), mine, trusted)
        reader = (make_reader or ChainReader)(connection, found.id, reading.read_head(connection, found.id), anchors)
        yield from reader.read()
    return Verification(
        chain=chain, rows=reader.rows, dropped=reader.start, anchors=sum(map(len, anchors.by_seq.values())),
        findings=tuple(sorted(anchors.findings + reader.findings, key=lambda finding: finding.seq)),
        seconds=monotonic() - started,
    )  # fmt: skip


def _gone(chain: str, seconds: float) -> Verification:
    finding = Finding(FindingKind.TAIL_CUT, 0, "the whole chain is gone; there are anchors of it outside the database")
    return Verification(chain=chain, findings=(finding,), seconds=seconds)


def _keep(outcome: Verification, using: str) -> None:
    """Remember the outcome with its chain."""
    chain = AuditChain.objects.using(using).filter(name=outcome.chain).first()
    if chain is None:
        return  # the finding is that it is gone
    first = outcome.finding
    AuditVerification.objects.using(using).create(
        chain=chain, ok=outcome.ok, rows=outcome.rows, broken_seq=first.seq if first else None,
        finding=str(first) if first else "", seconds=outcome.seconds,
    )  # fmt: skip


@dataclass
class ChainReader:
    """Reads the rows of one chain until they end or one is wrong."""

    connection: reading.Connection
    chain: int
    head: reading.Head | None
    anchors: Anchors
    findings: list[Finding] = field(default_factory=list)
    start: int = 0
    rows: int = 0
    before: str = GENESIS
    latest: int | None = None

    @property
    def seq(self) -> int:
        """Of the next row."""
        return self.start + self.rows

    @property
    def end(self) -> int:
        """The end of the chain as its head says."""
        return self.head.next_seq if self.head else self.anchors.last_seq + 1

    def read(self) -> Generator[VerificationProgress, None, None]:
        self._find_start()
        yield VerificationProgress(0, self.end - self.start)
        yield from self._read_on()

    def _read_on(self) -> Generator[VerificationProgress, None, None]:
        with closing(reading.read_blocks(self.connection, self.chain, self.seq, reading.BLOCK)) as blocks:
            for block in blocks:
                if self.findings:
                    return
                self._check(block)
                yield VerificationProgress(self.rows, max(self.rows, self.end - self.start))
        if not self.findings:
            self._check_tail()

    def _find_start(self) -> None:
        """At 0, or after what retention has dropped."""
        first = reading.first_seq(self.connection, self.chain)
        dropped = self.anchors.retention
        if first == 0 or (first is None and dropped is None):
            return
        if dropped is not None:
            self.start, self.before = dropped.seq + 1, dropped.hash.hex()
            self.findings += self.anchors.contradictions({dropped.seq: self.before})
        if first is not None and first != self.start:
            low, high = sorted((first, self.start))
            text = f"rows {low} to {high - 1} should " + (
                "be there" if first == high else f"have been dropped with row {dropped.seq if dropped else 0}"
            )
            self.findings.append(Finding(FindingKind.BEGINNING, low, text))

    def _check(self, block: reading.Block) -> None:
        """Take the rows that are right; of the first that is not say what it is."""
        wrong = self._misnumbered(block)
        count = len(block.seqs) if wrong is None else wrong.seq - self.seq
        stored = block.hashes
        right = hash_block(self.before, block.events, stored)
        if right[: HASH * count] != stored[: HASH * count]:
            count = next(n for n in range(count) if _nth(right, n) != _nth(stored, n))
            seq = self.seq + count
            before = _nth(stored, count - 1).hex() if count else self.before
            wrong = judge(before, reading.read_rows(self.connection, self.chain, seq, seq + WINDOW), self.end)
        anchored = self.anchors.between(self.seq, self.seq + count - 1)
        self.findings += self.anchors.contradictions({seq: _nth(stored, seq - self.seq).hex() for seq in anchored})
        if wrong is not None:
            self.findings.append(wrong)
        if count:
            self._check_times(block, self.seq, self.seq + count - 1)
            self.rows, self.before = self.rows + count, _nth(stored, count - 1).hex()

    def _check_times(self, block: reading.Block, low: int, high: int) -> None:
        """Time never falls as seq grows, and the anchors bound it. Hashes do not cover it."""
        times = block.times.tolist()
        falls = None
        if self.latest is not None and min(times) < self.latest:
            falls = low
        elif times != sorted(times):
            falls = next(seq for seq, before, at in zip(block.seqs[1:], times, times[1:], strict=False) if at < before)
        if falls is not None and falls <= high:
            text = f"row {falls} is said to be earlier than row {falls - 1}: the time of one of them was altered"
            self.findings.append(Finding(FindingKind.TIME, falls, text))
        elif bounded := self.anchors.around(low, high):
            self.findings += self.anchors.untimely(reading.read_times(self.connection, self.chain, bounded))
        self.latest = max(times)

    def _misnumbered(self, block: reading.Block) -> Finding | None:
        """A gap or a number that two rows have."""
        if block.seqs == array("q", range(self.seq, self.seq + len(block.seqs))):
            return None
        for expected, seq in enumerate(block.seqs, self.seq):
            if seq > expected:
                return _gap(expected, seq)
            if seq < expected:
                return Finding(FindingKind.DUPLICATE, seq, f"several rows have the number {seq}")
        raise AssertionError("the numbers are right")

    def _check_tail(self) -> None:
        """Nothing lies further on, and the head and the anchors end where the rows do."""
        seq = self.seq
        beyond = reading.first_seq(self.connection, self.chain, seq)
        if beyond is not None:
            self.findings.append(_gap(seq, beyond))
        elif seq < self.end:
            text = f"rows {seq} to {self.end - 1} are missing at the end"
            self.findings.append(Finding(FindingKind.TAIL_CUT, seq, text))
        elif seq <= self.anchors.last_seq:
            text = f"an anchor was signed for row {self.anchors.last_seq}; the chain ends before {seq}"
            self.findings.append(Finding(FindingKind.TAIL_CUT, seq, text))
        elif self.head is None:
            self.findings.append(Finding(FindingKind.HEAD, seq, "the chain has no head"))
        elif self.head.next_seq < seq:
            text = f"the head says that the chain ends before {self.head.next_seq}; there are rows up to {seq - 1}"
            self.findings.append(Finding(FindingKind.HEAD, self.head.next_seq, text))
        elif self.head.hash.hex() != self.before:
            text = f"the head has another hash than row {seq - 1}"
            self.findings.append(Finding(FindingKind.HEAD, max(0, seq - 1), text))


def _nth(hashes: bytes, n: int) -> bytes:
    """One of the hashes that follow each other."""
    return hashes[HASH * n : HASH * (n + 1)]


def _gap(low: int, high: int) -> Finding:
    what = f"row {low} is" if high - low == 1 else f"rows {low} to {high - 1} are"
    return Finding(FindingKind.MISSING, low, f"{what} missing")
