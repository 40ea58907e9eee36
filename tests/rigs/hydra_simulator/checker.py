"""Checks the promises after every event, by a node's effects alone.

Messages, connections to IRC, and lines sent or delivered count; state that a crash may erase does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydra.protocol.effects import ConnectIrc, DeliverLine, Effect, LeaveIrc, Missed, Say, StoredNode, Transmit
from hydra.protocol.messages import Elect, Message, Nominate, Ping, Pledge, Pong
from hydra.protocol.node import Node

ONE_LEADER = "at most one leader in a term"
ONE_VOTE = "no node votes for two in a term"
TERMS_RISE = "terms never go back on a node"
ONE_ON_IRC = "at most one node holds IRC"
MAJORITY = "a leader had a majority"
SAME_LINES = "a line is the same for all who have it"
NO_GAP = "lines have no gap"
SAID_ONCE = "a line reaches IRC at most once"
LEADER_STAYS = "a leader with its lease is dropped by itself alone"
INDUCTION_ENDS = "an induction ends within MAX_MEET"
BOUNDED = "a network does not flood itself"
LEADER_FOUND = "a leader is found after healing"


@dataclass(frozen=True, slots=True)
class Violation(Exception):
    """A broken promise: which, when, and how."""

    promise: str
    at: float
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail} (at {self.at:.3f} s)"


class Checker:
    """The effects of one run so far."""

    def __init__(self, only: str | None = None) -> None:
        """With `only` no other promise is checked."""
        self.only = only
        self.now = 0.0
        self.leaders: dict[int, int] = {}
        """Each term's leader, by its id."""
        self.on_irc: int | None = None
        self.lingering: set[int] = set()
        """Nodes that stood still before they could leave IRC; their connections may linger until their next event."""
        self.said: set[str] = set()
        self.lines: dict[tuple[int, int], str] = {}
        self._votes: dict[tuple[str, int], int] = {}
        self._elected: dict[tuple[int, int], set[str]] = {}
        self._terms: dict[str, int] = {}
        self._next: dict[tuple[int, int], int] = {}

    def fail(self, promise: str, detail: str) -> None:
        """Raise the Violation."""
        if self.only in (None, promise):
            raise Violation(promise, self.now, detail)

    def effect(self, host: int, node: Node, effect: Effect) -> None:
        """Check an effect. Raises Violation."""
        match effect:
            case Transmit():
                self._transmit(node, effect.message)
            case ConnectIrc():
                if self.on_irc is not None:
                    self.fail(ONE_ON_IRC, f"node {host} connects while node {self.on_irc} is there")
                self.on_irc = host
            case LeaveIrc():
                self.off_irc(host)
            case Say():
                if self.on_irc not in (None, host):
                    self.fail(ONE_ON_IRC, f"node {host} says {effect.message} while node {self.on_irc} is there")
                if effect.message in self.said:
                    self.fail(SAID_ONCE, f"node {host} says {effect.message} again")
                self.said.add(effect.message)
            case DeliverLine():
                self._deliver(host, effect)
            case Missed():
                self._next[host, effect.term] = effect.last + 1

    def off_irc(self, host: int) -> None:
        """A node has left IRC, or died."""
        self.lingering.discard(host)
        if self.on_irc == host:
            self.on_irc = None

    def stands_still(self, host: int) -> None:
        """A node stands still: others may take its place."""
        if self.on_irc == host:
            self.on_irc = None
            self.lingering.add(host)

    def holds_irc(self, host: int) -> bool:
        """Whether a node's connection to IRC is open."""
        return self.on_irc == host or host in self.lingering

    def _goes_on(self, host: int) -> None:
        """Check a node that stood still, and has handled an event without leaving IRC."""
        self.lingering.discard(host)
        if self.on_irc is not None:
            self.fail(ONE_ON_IRC, f"node {host} goes on there beside node {self.on_irc}")
        self.on_irc = host

    def after_event(self, host: int, node: Node) -> None:
        """Check a node after an event. Raises Violation."""
        if host in self.lingering:
            self._goes_on(host)
        voter = node.core.voter
        if node.term < self._terms.get(voter, 0):
            self.fail(TERMS_RISE, f"node {host} went back from term {self._terms[voter]} to {node.term}")
        mediation = node.induction.mediation
        if mediation is not None and node.core.now > mediation.ends:
            self.fail(INDUCTION_ENDS, f"node {host} still asks for {mediation.ind}")

    def written(self, stored: StoredNode) -> None:
        """Check a row that has reached the disk. Raises Violation."""
        if stored.pledge is not None:
            self._vote(stored.voter, stored.term, stored.pledge)

    def lost_disk(self, host: int) -> None:
        """Expect a node without its disk to deliver lines again."""
        for key in [key for key in self._next if key[0] == host]:
            del self._next[key]

    def _transmit(self, node: Node, message: Message) -> None:
        """Check an own message; a relayed one says nothing about its relayer."""
        if getattr(message, "id", None) != node.id:
            return
        voter = node.core.voter
        if isinstance(message, Ping | Pong | Nominate | Pledge | Elect):
            term = int(message.val.partition(".")[0]) if isinstance(message, Pong) else message.term
            self._terms[voter] = max(term, self._terms.get(voter, 0))
        if isinstance(message, Ping):
            self._lead(node, message)
        elif isinstance(message, Pledge | Elect):
            self._vote(voter, message.term, message.nom)
        if isinstance(message, Elect):
            self._elected.setdefault((message.term, message.nom), set()).add(voter)

    def _vote(self, voter: str, term: int, nominee: int) -> None:
        former = self._votes.setdefault((voter, term), nominee)
        if former != nominee:
            self.fail(ONE_VOTE, f"{voter} votes for {nominee} after {former} in term {term}")

    def _lead(self, node: Node, message: Ping) -> None:
        if (former := self.leaders.get(message.term)) == message.id:
            return
        if former is not None:
            self.fail(ONE_LEADER, f"{message.id} and {former} lead term {message.term}")
        self.leaders[message.term] = message.id
        votes = self._elected.get((message.term, message.id), set())
        if self._votes.get((node.core.voter, message.term)) == message.id:
            votes = votes | {node.core.voter}  # a node alone sends no vote
        if not node.core.base.agrees(votes):
            self.fail(MAJORITY, f"{message.id} leads term {message.term} with {len(votes)} votes")

    def _deliver(self, host: int, effect: DeliverLine) -> None:
        if self.lines.setdefault((effect.term, effect.idx), effect.line) != effect.line:
            self.fail(SAME_LINES, f"node {host} has another line {effect.idx} of term {effect.term}")
        expected = self._next.get((host, effect.term), effect.idx)
        if effect.idx != expected:
            self.fail(NO_GAP, f"node {host} has line {effect.idx} of term {effect.term} instead of {expected}")
        self._next[host, effect.term] = effect.idx + 1
