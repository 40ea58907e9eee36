"""The lines of each term, in order and without gaps (docs/protocols/hydra.md, "Lines"). No I/O."""

from __future__ import annotations

from typing import Final

TERMS: Final = 4
"""How many terms are remembered."""
KEPT: Final = 4096
"""How many lines of a term are kept for neighbours that miss some."""
#: Bytes that they may have.
KEPT_BYTES: Final = 2 * 1024 * 1024
EARLY: Final = 1024
"""How many lines that came before their turn are kept; further ones are asked for when it comes."""
ANSWER: Final = 256
"""How many lines one question is answered with."""

Line = tuple[int, str]


class TermLines:
    """The lines of one term. They are handed on from `next`, which is None until it is known where to begin."""

    __slots__ = ("early", "kept", "known", "next", "refusals", "size")

    def __init__(self) -> None:
        self.next: int | None = None
        self.known = 0
        """Lines with a lower index are known to exist."""
        self.kept: dict[int, str] = {}
        self.size = 0
        """Bytes of the lines that are kept."""
        self.early: dict[int, str] = {}
        self.refusals: dict[int, int] = {}
        """The oldest line that each neighbour has which cannot give the next one, by link."""

    def __deepcopy__(self, memo: object) -> TermLines:
        copy = TermLines()
        copy.next, copy.known, copy.size = self.next, self.known, self.size
        copy.kept, copy.early, copy.refusals = self.kept.copy(), self.early.copy(), self.refusals.copy()
        return copy

    def take(self, idx: int, line: str) -> list[Line]:
        """A line has come: return those whose turn it is now."""
        self.known = max(self.known, idx + 1)
        if (self.next is not None and idx < self.next) or idx in self.early:
            return []
        if len(self.early) >= EARLY and idx != self.next:
            return []
        self.early[idx] = line
        return self.ready()

    def ready(self) -> list[Line]:
        """Return, once, the lines whose turn it is."""
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
        """It is known where to begin: return the lines whose turn it is."""
        self.next = idx
        self.early = {early: line for early, line in self.early.items() if early >= idx}
        return self.ready()

    def skip(self, idx: int) -> tuple[int, int]:
        """Go on at a later line, and return the range that is lost; lines kept have no gap, so that none are now."""
        lost = (self.next or 0, idx - 1)
        self.refusals.clear()
        self.kept.clear()
        self.size = 0
        self.next = idx
        self.early = {early: line for early, line in self.early.items() if early >= idx}
        return lost


class RecvLog:
    """The lines of the last few terms.

    A node that was here before follows each new term from its first line; one that is new begins where it comes in.
    """

    __slots__ = ("_position", "_terms", "continuing")

    def __init__(self, position: tuple[int, int] | None = None) -> None:
        """`position` is the term and index of the last line that was handed on before a restart."""
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
        """Whether the lines of this term are remembered."""
        return term in self._terms

    def begin(self, term: int, at: int) -> list[Line]:
        """A term of somebody else is followed, whose next line will be `at`: return the lines whose turn it is."""
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
        """A term of one's own begins."""
        self.continuing = True
        self.of(term).begin(0)

    def append(self, term: int, line: str) -> int:
        """Give a line of one's own term its index, and return that."""
        lines = self.of(term)
        idx = lines.known
        lines.take(idx, line)
        return idx

    def missing(self, term: int) -> int | None:
        """The index of the first line that is known to exist and has not come; None if there is none."""
        lines = self.of(term)
        return lines.next if lines.next is not None and lines.next < lines.known else None

    def answer(self, term: int, idx: int) -> tuple[list[Line], int | None]:
        """Return the lines from an index on, not too many, and the index of the oldest one if that is later."""
        kept = self._terms[term].kept if term in self._terms else {}
        if not kept:
            return [], None
        oldest = next(iter(kept))
        begin = max(idx, oldest)
        lines = [(each, kept[each]) for each in range(begin, begin + ANSWER) if each in kept]
        return lines, oldest if oldest > idx else None

    def go_to(self, term: int, idx: int) -> tuple[int, int] | None:
        """A line has come of a term whose lines nobody can be asked for: return the range before it that is lost."""
        lines = self.of(term)
        self.continuing = True
        if lines.next is None:
            lines.begin(idx)
        if lines.next is None or lines.next >= idx:
            return None
        return lines.skip(idx)

    def refused(self, term: int, link: int, first: int, links: int) -> tuple[int, int] | None:
        """A neighbour has nothing older than `first`; when none of so many has, return the lost range and go on."""
        lines = self.of(term)
        if lines.next is None or first <= lines.next:
            return None
        lines.refusals[link] = first
        if len(lines.refusals) < links:
            return None
        return lines.skip(min(lines.refusals.values()))
