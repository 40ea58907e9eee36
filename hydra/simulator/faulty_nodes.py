"""Nodes that break one rule each: the checker must find all of them.

Numbered classes show one of docs/protocols/hydra.md, "Gaps of the specification"; the others break a rule of this
implementation.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from hydra.protocol.bridge import Bridge
from hydra.protocol.core import Core
from hydra.protocol.effects import DeliverLine, Effect, Say, StoredNode
from hydra.protocol.election import Election
from hydra.protocol.electorate import Electorate
from hydra.protocol.heartbeat import Heartbeat
from hydra.protocol.induction import Induction
from hydra.protocol.irclease import State
from hydra.protocol.leader_term import LeaderTerm
from hydra.protocol.links import NodeLink
from hydra.protocol.messages import Drop, Nominate, Send
from hydra.protocol.node import Node
from hydra.protocol.outbox import Outbox


class _ShrinkingCore(Core):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gone: set[str] = set()

    @property
    def base(self) -> Electorate:
        there = {member.voter for member in self.members}
        return super().base._replace(voters=super().base.voters - (self.gone - there))


class _ShrinkingHeartbeat(Heartbeat):
    core: _ShrinkingCore

    def _drop_silent(self) -> None:
        for member in list(self.core.members):
            if self.core.now - member.heard > self.core.times.max_ping / 2:
                self.core.say(Drop(member.id))
                self.remove(member.id)

    def remove(self, id: int) -> None:
        member = self.core.members.get(id)
        if member is not None and member.voter is not None:
            self.core.gone.add(member.voter)
        super().remove(id)


class ShrinkingElectorate(Node):
    """1: a dropped node loses its vote, so that a leader that is cut off has a majority of the remaining nodes."""

    core_class: type[Core] = _ShrinkingCore
    heartbeat_class = _ShrinkingHeartbeat


class ForgetfulVoter(Node):
    """2: a restart forgets the pledge."""

    def __init__(self, *, stored: StoredNode, **rest: Any) -> None:
        super().__init__(stored=stored._replace(pledge=None), **rest)


class _HastyOutbox(Outbox):
    def say(self, effect: Effect) -> None:
        self.at_once(effect)


class HastyVoter(Node):
    """2, in part: a vote is sent before it is on disk."""

    def __init__(self, *, stored: StoredNode, **rest: Any) -> None:
        super().__init__(stored=stored, **rest)
        self.core.outbox = _HastyOutbox(stored)


class _EndlessHeartbeat(Heartbeat):
    def lead(self) -> None:
        super().lead()
        if self.leader_term is not None:
            self.leader_term.lease_until = inf


class StubbornLeader(Node):
    """3: a leader without answers goes on."""

    heartbeat_class = _EndlessHeartbeat


class _RashElection(Election):
    def promise_ends(self) -> float:
        return self.core.now


class RashVoter(Node):
    """3, the half that departs from the specification: no node waits for the end of the lease."""

    election_class = _RashElection


class _PunctualElection(Election):
    def wait(self, least: float, most: float) -> None:
        self.ends = self.core.now + most


class PunctualNominee(Node):
    """4: all nodes give an election the same time."""

    election_class = _PunctualElection


class _PatientInduction(Induction):
    def expire(self) -> None:
        self.proceed()

    def forget_node(self, id: int) -> None:
        pass


class PatientMediator(Node):
    """5: a mediator waits for all nodes, also dead ones, for ever."""

    induction_class = _PatientInduction


class _TermlessOutbox(Outbox):
    def say(self, effect: Effect) -> None:
        super().say(effect._replace(term=0) if isinstance(effect, DeliverLine) else effect)


class TermlessReader(Node):
    """6: lines are known by their index alone."""

    def __init__(self, *, stored: StoredNode, **rest: Any) -> None:
        super().__init__(stored=stored, **rest)
        self.core.outbox = _TermlessOutbox(stored)


class _CarelessElection(Election):
    def deserves(self, message: Nominate) -> bool:
        self.core.install(message.electorate)
        return True


class CarelessVoter(Node):
    """A voter pledges to a nominee with an outdated electorate."""

    election_class = _CarelessElection


class _HurriedLeaderTerm(LeaderTerm):
    def is_agreed(self, electorate: Electorate) -> bool:
        return True


class _HurriedHeartbeat(Heartbeat):
    leader_term_class = _HurriedLeaderTerm


class HurriedLeader(Node):
    """A leader changes the electorate before a majority has the last change."""

    heartbeat_class = _HurriedHeartbeat


class ForgetfulPromiser(Node):
    """A restarted node does not wait for the promise that it may have given."""

    def start(self, now: float) -> list[Effect]:
        effects = super().start(now)
        self.core.promise_until = now
        return effects


class _RepeatingBridge(Bridge):
    def _speak(self, message: str, line: str) -> None:
        if self.irc.state is State.ON:
            self.core.outbox.say(Say(line, message))

    def on_send(self, message: Send, link: NodeLink) -> None:
        super().on_send(message._replace(term=self.core.term), link)


class RepeatingLeader(Node):
    """A leader sends every line it hears, also those already sent or of another term."""

    bridge_class = _RepeatingBridge


class _ObedientHeartbeat(Heartbeat):
    def withstands(self, message: Drop) -> bool:
        return False


class ObedientLeader(Node):
    """A leader resigns at any member's DROP."""

    heartbeat_class = _ObedientHeartbeat


class StoppedClock(Node):
    """A clock that stands still while the machine is suspended (CLOCK_MONOTONIC), as `Cluster` simulates it."""


FAULTY_NODES: Final[dict[str, type[Node]]] = {
    "shrinking-electorate": ShrinkingElectorate,
    "forgetful-voter": ForgetfulVoter,
    "hasty-voter": HastyVoter,
    "stubborn-leader": StubbornLeader,
    "rash-voter": RashVoter,
    "punctual-nominee": PunctualNominee,
    "patient-mediator": PatientMediator,
    "termless-reader": TermlessReader,
    "careless-voter": CarelessVoter,
    "hurried-leader": HurriedLeader,
    "forgetful-promiser": ForgetfulPromiser,
    "repeating-leader": RepeatingLeader,
    "obedient-leader": ObedientLeader,
    "stopped-clock": StoppedClock,
}
"""By name."""
