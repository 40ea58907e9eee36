"""Nodes that break one rule each: the checker must find all of them.

Numbered classes show one of docs/protocols/hydra.md, "Gaps of the specification"; the others break a rule of this
implementation.
"""

from __future__ import annotations

import re
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


class StubbornLeader(Node):
    """3: a leader without answers goes on."""

    class heartbeat_class(Heartbeat):
        def lead(self) -> None:
            super().lead()
            if self.leader_term is not None:
                self.leader_term.lease_until = inf


class RashVoter(Node):
    """3, the half that departs from the specification: no node waits for the end of the lease."""

    class election_class(Election):
        def promise_ends(self) -> float:
            return self.core.now


class PunctualNominee(Node):
    """4: all nodes give an election the same time."""

    class election_class(Election):
        def wait(self, least: float, most: float) -> None:
            self.ends = self.core.now + most


class PatientMediator(Node):
    """5: a mediator waits for all nodes, also dead ones, for ever."""

    class induction_class(Induction):
        def expire(self) -> None:
            self.proceed()

        def forget_node(self, id: int) -> None:
            pass


class _TermlessOutbox(Outbox):
    def say(self, effect: Effect) -> None:
        super().say(effect._replace(term=0) if isinstance(effect, DeliverLine) else effect)


class TermlessReader(Node):
    """6: lines are known by their index alone."""

    def __init__(self, *, stored: StoredNode, **rest: Any) -> None:
        super().__init__(stored=stored, **rest)
        self.core.outbox = _TermlessOutbox(stored)


class CarelessVoter(Node):
    """A voter pledges to a nominee with an outdated electorate."""

    class election_class(Election):
        def deserves(self, message: Nominate) -> bool:
            self.core.install(message.electorate)
            return True


class HurriedLeader(Node):
    """A leader changes the electorate before a majority has the last change."""

    class heartbeat_class(Heartbeat):
        class leader_term_class(LeaderTerm):
            def is_agreed(self, electorate: Electorate) -> bool:
                return True


class ForgetfulPromiser(Node):
    """A restarted node does not wait for the promise that it may have given."""

    def start(self, now: float) -> list[Effect]:
        effects = super().start(now)
        self.core.promise_until = now
        return effects


class RepeatingLeader(Node):
    """A leader sends every line it hears, also those already sent or of another term."""

    class bridge_class(Bridge):
        def _speak(self, message: str, line: str) -> None:
            if self.irc.state is State.ON:
                self.core.outbox.say(Say(line, message))

        def on_send(self, message: Send, link: NodeLink) -> None:
            super().on_send(message._replace(term=self.core.term), link)


class ObedientLeader(Node):
    """A leader resigns at any member's DROP."""

    class heartbeat_class(Heartbeat):
        def withstands(self, message: Drop) -> bool:
            return False


class StoppedClock(Node):
    """A clock that stands still while the machine is suspended (CLOCK_MONOTONIC), as `Cluster` simulates it."""


def _by_name(*nodes: type[Node]) -> dict[str, type[Node]]:
    return {re.sub("(?<=[a-z])(?=[A-Z])", "-", node.__name__).lower(): node for node in nodes}


#: By the names of their classes, such as "forgetful-voter".
FAULTY_NODES: Final = _by_name(
    ShrinkingElectorate, ForgetfulVoter, HastyVoter, StubbornLeader, RashVoter, PunctualNominee,
    PatientMediator, TermlessReader, CarelessVoter, HurriedLeader, ForgetfulPromiser,
    RepeatingLeader, ObedientLeader, StoppedClock,
)  # fmt: skip
