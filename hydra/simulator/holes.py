"""Nodes that break one rule each, to show that the simulator notices (docs/protocols/hydra.md, "The six holes").

The numbers are those of the holes that the document leaves open; the others break a rule of our own.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from hydra.protocol.bridge import Bridge
from hydra.protocol.core import Core
from hydra.protocol.effects import Deliver, Effect, Say, Stored
from hydra.protocol.election import Election
from hydra.protocol.electorate import Electorate
from hydra.protocol.induction import Induction
from hydra.protocol.irclease import State
from hydra.protocol.links import Link
from hydra.protocol.messages import Drop, Nominate, Send
from hydra.protocol.node import Node
from hydra.protocol.outbox import Outbox
from hydra.protocol.reign import Reign
from hydra.protocol.termtime import Termtime


class _ShrinkingCore(Core):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gone: set[str] = set()

    @property
    def base(self) -> Electorate:
        there = {member.voter for member in self.members}
        return super().base._replace(voters=super().base.voters - (self.gone - there))


class _ShrinkingTermtime(Termtime):
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
    """1: who is dropped has no vote any more, so that a leader that is cut off has a majority of those who are left."""

    core_class: type[Core] = _ShrinkingCore
    termtime_class = _ShrinkingTermtime


class ForgetfulVoter(Node):
    """2: who was pledged to is forgotten in a restart."""

    def __init__(self, *, stored: Stored, **rest: Any) -> None:
        super().__init__(stored=stored._replace(pledge=None), **rest)


class _HastyOutbox(Outbox):
    def say(self, effect: Effect) -> None:
        self.at_once(effect)


class HastyVoter(Node):
    """2, in part: a vote is said before it is on disk."""

    def __init__(self, *, stored: Stored, **rest: Any) -> None:
        super().__init__(stored=stored, **rest)
        self.core.outbox = _HastyOutbox(stored)


class _EndlessTermtime(Termtime):
    def lead(self) -> None:
        super().lead()
        if self.reign is not None:
            self.reign.lease_until = inf


class StubbornLeader(Node):
    """3: a leader that nobody answers goes on."""

    termtime_class = _EndlessTermtime


class _RashElection(Election):
    def promise_ends(self) -> float:
        return self.core.now


class RashVoter(Node):
    """3, the half that departs from the document: nobody waits for the lease to end."""

    election_class = _RashElection


class _PunctualElection(Election):
    def wait(self, least: float, most: float) -> None:
        self.ends = self.core.now + most


class PunctualNominee(Node):
    """4: an election is given the same time by all."""

    election_class = _PunctualElection


class _PatientInduction(Induction):
    def expire(self) -> None:
        self.proceed()

    def forget_node(self, id: int) -> None:
        pass


class PatientMediator(Node):
    """5: a mediator waits for all, dead or alive, for ever."""

    induction_class = _PatientInduction


class _TermlessOutbox(Outbox):
    def say(self, effect: Effect) -> None:
        super().say(effect._replace(term=0) if isinstance(effect, Deliver) else effect)


class TermlessReader(Node):
    """6: lines are known by their index alone."""

    def __init__(self, *, stored: Stored, **rest: Any) -> None:
        super().__init__(stored=stored, **rest)
        self.core.outbox = _TermlessOutbox(stored)


class _CarelessElection(Election):
    def deserves(self, message: Nominate) -> bool:
        self.core.install(message.electorate)
        return True


class CarelessVoter(Node):
    """A nominee is pledged to whose electorate is outdated."""

    election_class = _CarelessElection


class _HurriedReign(Reign):
    def is_agreed(self, electorate: Electorate) -> bool:
        return True


class _HurriedTermtime(Termtime):
    reign_class = _HurriedReign


class HurriedLeader(Node):
    """The electorate is changed again before a majority has agreed to the last change."""

    termtime_class = _HurriedTermtime


class ForgetfulPromiser(Node):
    """A restarted node does not wait, though it may have promised to."""

    def start(self, now: float) -> list[Effect]:
        effects = super().start(now)
        self.core.promise_until = now
        return effects


class _RepeatingBridge(Bridge):
    def _speak(self, message: str, line: str) -> None:
        if self.irc.state is State.ON:
            self.core.outbox.say(Say(line, message))

    def on_send(self, message: Send, link: Link) -> None:
        super().on_send(message._replace(term=self.core.term), link)


class RepeatingLeader(Node):
    """A leader says what it hears, also if it was said before or was meant for another leader."""

    bridge_class = _RepeatingBridge


class _ObedientTermtime(Termtime):
    def withstands(self, message: Drop) -> bool:
        return False


class ObedientLeader(Node):
    """A leader resigns when any member says that it is dropped."""

    termtime_class = _ObedientTermtime


class StoppedClock(Node):
    """A clock that stands still while the machine is suspended (CLOCK_MONOTONIC); `World` has it so."""


HOLES: Final[dict[str, type[Node]]] = {
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
