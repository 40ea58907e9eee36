"""The faults of a chain's anchors, and the evidence of valid ones about its rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from queues.audit.anchor import NOTHING, Anchor, time_text
from queues.audit.diagnosis import Finding, FindingKind
from queues.audit.signing import Trusted, is_signed

RETENTION = "retention"
#: The most by which a server's clock may have been set back between a row and the anchor that vouches for it.
CLOCK = timedelta(seconds=1)
#: The longest time for which a row may have waited for its commit while an anchor was signed.
COMMIT = timedelta(minutes=10)


@dataclass
class Anchors:
    """The anchors of a chain that count, by seq, and the faults of the others."""

    by_seq: dict[int, list[Anchor]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _sorted: list[int] = field(default_factory=list)

    def add(self, anchor: Anchor) -> None:
        self.by_seq.setdefault(anchor.seq, []).append(anchor)
        self._sorted.clear()

    def between(self, low: int, high: int) -> list[int]:
        """The anchors' seqs with low <= seq <= high, in order."""
        if not self._sorted:
            self._sorted = sorted(self.by_seq)
        return self._sorted[bisect_left(self._sorted, low) : bisect_right(self._sorted, high)]

    @property
    def last_seq(self) -> int:
        """The highest seq that an anchor vouches for; -1 when there is none."""
        return max(self.by_seq, default=-1)

    @property
    def retention(self) -> Anchor | None:
        """The newest anchor that says that everything up to it was dropped."""
        dropped = [anchor for anchors in self.by_seq.values() for anchor in anchors if anchor.kind == RETENTION]
        return max(dropped, key=lambda anchor: (anchor.seq, anchor.number), default=None)

    def contradictions(self, hashes: Mapping[int, str]) -> Iterator[Finding]:
        """The anchors with another hash than these rows have; rows in order of seq."""
        for seq, found in hashes.items():
            for anchor in self.by_seq.get(seq, ()):
                if anchor.hash.hex() != found:
                    yield self._rewritten(anchor)

    def around(self, low: int, high: int) -> list[int]:
        """The rows with low <= seq <= high whose times anchors bound: the last one of each, and the one after it."""
        bounded = {seq for own in self.between(low - 1, high) for seq in (own, own + 1)}
        return sorted(seq for seq in bounded if low <= seq <= high)

    def untimely(self, times: Mapping[int, datetime]) -> Iterator[Finding]:
        """Which of these rows are said to be of another time than their anchors leave them.

        An anchor's rows were written before it. The next row comes after it, but for the moment between a row's time
        and its commit; of what retention has dropped an anchor tells long after.
        """
        for seq, at in sorted(times.items()):
            for anchor in self.by_seq.get(seq, ()):
                if at > anchor.at + CLOCK:
                    text = f"row {seq} is said to be of {time_text(at)}, later than anchor {anchor.number}"
                    yield Finding(FindingKind.TIME, seq, f"{text}, which vouches for it, at {time_text(anchor.at)}")
            for anchor in self.by_seq.get(seq - 1, ()):
                if anchor.kind != RETENTION and at < anchor.at - COMMIT:
                    text = f"row {seq} is said to be of {time_text(at)}, long before anchor {anchor.number}"
                    yield Finding(FindingKind.TIME, seq, f"{text}, which it follows, at {time_text(anchor.at)}")

    def _rewritten(self, anchor: Anchor) -> Finding:
        before = max((seq for seq in self.by_seq if seq < anchor.seq), default=None)
        since = "from the beginning" if before is None else f"after seq {before}"
        text = f"anchor {anchor.number} was signed for another row {anchor.seq}: rows {since} on were rewritten"
        return Finding(FindingKind.REWRITTEN, anchor.seq, text)


def check_anchors(stored: Sequence[Anchor], copies: Iterable[Anchor], trusted: Trusted) -> Anchors:
    """Look at a chain's anchors in the database, in order of number, and at copies of them kept elsewhere."""
    checked = Anchors()
    for anchor in stored:
        _check_signature(checked, anchor, trusted)
    checked.findings += _check_numbers(stored, checked)
    _check_copies(checked, stored, copies, trusted)
    return checked


def _check_signature(checked: Anchors, anchor: Anchor, trusted: Trusted) -> bool:
    """Keep the anchor if it counts, else say why it does not."""
    key = trusted.get(anchor.key)
    if key is None:
        text = (
            f"anchor {anchor.number} is signed by {anchor.key}; if that is a key of yours, "
            "put its public key into BROKER_AUDIT_TRUSTED_KEYS"
        )
        checked.findings.append(Finding(FindingKind.UNKNOWN_KEY, anchor.seq, text))
    elif not is_signed(key, anchor.message, anchor.signature):
        text = f"anchor {anchor.number} is not what its key has signed"
        checked.findings.append(Finding(FindingKind.SIGNATURE, anchor.seq, text))
    else:
        checked.add(anchor)
        return True
    return False


def _check_numbers(stored: Sequence[Anchor], checked: Anchors) -> Iterator[Finding]:
    """Each number follows the one before, and each anchor covers the signature before."""
    number, digest = 0, NOTHING
    for anchor in stored:
        if anchor.number == number + 1:
            if anchor.previous != digest:
                text = f"anchor {anchor.number} was not written after anchor {number} as it is now"
                yield Finding(FindingKind.ANCHOR_REPLACED, anchor.seq, text)
        elif number or checked.retention is None:  # the first ones go with the rows that retention drops
            yield _missing(number + 1, anchor.number - 1, anchor.seq)
        number, digest = anchor.number, anchor.digest


def _missing(first: int, last: int, seq: int) -> Finding:
    what = f"anchor {first} is" if first == last else f"anchors {first} to {last} are"
    return Finding(FindingKind.ANCHOR_MISSING, seq, f"{what} missing")


def _check_copies(checked: Anchors, stored: Sequence[Anchor], copies: Iterable[Anchor], trusted: Trusted) -> None:
    """A copy has what the database has, but for anchors that went with dropped rows."""
    known = {anchor.number: anchor for anchor in stored}
    first = stored[0].number if stored else 1
    seen = set()
    for copy in copies:
        same = known.get(copy.number)
        if (copy.number, copy.signature) in seen or (same is not None and same.signature == copy.signature):
            continue
        seen.add((copy.number, copy.signature))
        if not _check_signature(checked, copy, trusted):
            continue
        if same is not None:
            text = f"anchor {copy.number} in the database is another than in the copy"
            checked.findings.append(Finding(FindingKind.ANCHOR_REPLACED, min(copy.seq, same.seq), text))
        elif copy.number > first or not stored:
            text = f"anchor {copy.number} is in the copy and not in the database"
            checked.findings.append(Finding(FindingKind.ANCHOR_MISSING, copy.seq, text))
