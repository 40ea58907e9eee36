"""The lines of each term, in order and without gaps (docs/protocols/hydra.md, "Lines"). No I/O."""

from __future__ import annotations

from typing import Final

#: Terms that are remembered.
TERMS: Final = 4
#: Lines of a term that are kept for neighbours.
KEPT: Final = 4096
#: Bytes of these lines.
KEPT_BYTES: Final = 2 * 1024 * 1024
#: Lines kept before their turn; further ones are asked for later.
EARLY: Final = 1024
#: Lines in the answer to one ASK.
ANSWER: Final = 256

Line = tuple[int, str]


class TermLines:
    """The lines of one term, delivered from `next` on; `next` is None until the beginning is known."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.known = 0
        """All lines with a lower index exist."""
        self.kept: dict[int, str] = {}
        self.size = 0
        """Bytes of `kept`."""
        self.early: dict[int, str] = {}
        self.refusals: dict[int, int] = {}
        """By link: the oldest line of each neighbour that lacks the next one."""

    def __deepcopy__(self, memo: object) -> TermLines:
        copy = TermLines()
        copy.next, copy.known, copy.size = self.next, self.known, self.size
        copy.kept, copy.early, copy.refusals = self.kept.copy(), self.early.copy(), self.refusals.copy()
        return copy

    def take(self, idx: int, line: str) -> list[Line]:
        """Take a line; returns the lines to deliver now."""
        self.known = max(self.known, idx + 1)
        if (self.next is not None and idx < self.next) or idx in self.early:
            return []
        if len(self.early) >= EARLY and idx != self.next:
            return []
        self.early[idx] = line
        return self.ready()

    def ready(self) -> list[Line]:
        """Return the lines to deliver, each once."""
        found: list[Line] = []
        while self.next is not None and self.next in self.early:
            line = self.early.pop(self.next)
            self._keep(self.next, line)
            found.append((self.next, line))
            self.next += 1
        if found:
            self.refusals.clear()
        return found

    def _keep(self, idx: int, line: str) -> None:
        self.kept[idx] = line
        self.size += len(line.encode())
        while len(self.kept) > KEPT or self.size > KEPT_BYTES:
            self.size -= len(self.kept.pop(next(iter(self.kept))).encode())

    def begin(self, idx: int) -> list[Line]:
        """Begin at a line; returns the lines to deliver now."""
        self.next = idx
        self.early = {early: line for early, line in self.early.items() if early >= idx}
        return self.ready()

    def skip(self, idx: int) -> tuple[int, int]:
        """Continue at a later line; returns the lost range. Kept lines have no gap, so all are discarded."""
        lost = (self.next or 0, idx - 1)
        self.refusals.clear()
        self.kept.clear()
        self.size = 0
        self.next = idx
        self.early = {early: line for early, line in self.early.items() if early >= idx}
        return lost


class RecvLog:
    """The lines of the last few terms.

    A node that was in the network before follows each new term from its first line; a new one begins where it joins.
    """

    def __init__(self, position: tuple[int, int] | None = None) -> None:
        """`position` is the term and index of the last line delivered before a restart."""
        self._terms: dict[int, TermLines] = {}
        self._position = position
        self.continuing = position is not None

    def of(self, term: int) -> TermLines:
        """The lines of a term."""
        lines = self._terms.get(term)
        if lines is None:
            lines = self._terms[term] = TermLines()
            if len(self._terms) > TERMS:
                del self._terms[min(self._terms)]
        return lines

    def knows(self, term: int) -> bool:
        """Whether this term is remembered."""
        return term in self._terms

    def begin(self, term: int, at: int) -> list[Line]:
        """Follow another node's term whose next line will be `at`; returns the lines to deliver now."""
        lines = self.of(term)
        lines.known = max(lines.known, at)
        if lines.next is not None:
            return []
        first = at if not self.continuing else 0
        if self._position is not None and self._position[0] == term:
            first = self._position[1] + 1
        self.continuing = True
        return lines.begin(first)

    def lead(self, term: int) -> None:
        """Begin an own term."""
        self.continuing = True
        self.of(term).begin(0)

    def append(self, term: int, line: str) -> int:
        """Number a line of an own term; returns its index."""
        lines = self.of(term)
        idx = lines.known
        lines.take(idx, line)
        return idx

    def missing(self, term: int) -> int | None:
        """The index of the first missing line, or None."""
        lines = self.of(term)
        return lines.next if lines.next is not None and lines.next < lines.known else None

    def answer(self, term: int, idx: int) -> tuple[list[Line], int | None]:
        """Return up to `ANSWER` lines from an index on, and the index of the oldest kept line if that is later."""
        kept = self._terms[term].kept if term in self._terms else {}
        if not kept:
            return [], None
        oldest = next(iter(kept))
        begin = max(idx, oldest)
        lines = [(each, kept[each]) for each in range(begin, begin + ANSWER) if each in kept]
        return lines, oldest if oldest > idx else None

    def go_to(self, term: int, idx: int) -> tuple[int, int] | None:
        """Continue at a line whose predecessors no neighbour can be asked for; returns the lost range."""
        lines = self.of(term)
        self.continuing = True
        if lines.next is None:
            lines.begin(idx)
        if lines.next is None or lines.next >= idx:
            return None
        return lines.skip(idx)

    def refused(self, term: int, link: int, first: int, links: int) -> tuple[int, int] | None:
        """Note a neighbour whose oldest line is `first`; when all `links` lack the next line, return the lost range."""
        lines = self.of(term)
        if lines.next is None or first <= lines.next:
            return None
        lines.refusals[link] = first
        if len(lines.refusals) < links:
            return None
        return lines.skip(min(lines.refusals.values()))
