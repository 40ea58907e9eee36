"""The electorate: the nodes that vote (docs/protocols/hydra.md, "The electorate"). No I/O.

Its stamp is the term of the leader that made or confirmed it, and a version. The greater stamp is newer. Successive
electorates differ by one voter, so that any two majorities of them share a voter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

#: More would not fit into a line; further nodes take part without a vote.
MAX_VOTERS: Final = 99
#: The greatest term or version.
MAX_STAMP: Final = 2**63 - 1

#: The term and the version of an electorate.
Stamp = tuple[int, int]
#: Older than the stamp of any electorate.
NO_STAMP: Final[Stamp] = (0, 0)

_TEXT: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19}):([0-9a-f]{16}(?:,[0-9a-f]{16})*)", re.ASCII)


class Electorate(NamedTuple):
    """Voters by their lasting keys, 16 hexadecimal digits each, and the stamp that tells the newer of two."""

    term: int
    version: int
    voters: frozenset[str]

    @property
    def stamp(self) -> Stamp:
        """Its age: the greater stamp is the newer electorate."""
        return self.term, self.version

    @property
    def quorum(self) -> int:
        """The number of voters that is a majority."""
        return len(self.voters) // 2 + 1

    def agrees(self, voters: Iterable[str]) -> bool:
        """Whether these voters include a majority."""
        return len(self.voters.intersection(voters)) >= self.quorum

    def confirmed(self, term: int) -> Electorate:
        """The same voters under the stamp of a new leader's term."""
        return self._replace(term=term)

    def with_voter(self, voter: str) -> Electorate:
        """The next version, with one voter more."""
        return Electorate(self.term, self.version + 1, self.voters | {voter})

    def without_voter(self, voter: str) -> Electorate:
        """The next version, with one voter less."""
        return Electorate(self.term, self.version + 1, self.voters - {voter})

    def __str__(self) -> str:
        return f"{self.term}.{self.version}:{','.join(sorted(self.voters))}"


def parse_electorate(text: str) -> Electorate:
    """Read an electorate's `str`. Raises ValueError."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError("an electorate reads TERM.VERSION:KEY,KEY,...")
    voters = match[3].split(",")
    if len(voters) > MAX_VOTERS:
        raise ValueError(f"an electorate has {MAX_VOTERS} voters at most")
    term, version = int(match[1]), int(match[2])
    if max(term, version) > MAX_STAMP:
        raise ValueError("an electorate's stamp is too great")
    return Electorate(term, version, frozenset(voters))
