"""Carries out the table of roles (docs/protocols/hydra.md, "Roles"). No I/O.

`on` takes an event, asks the table (`hydra.protocol.roles`) for the actions, and calls the parts that perform them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hydra.protocol.bridge import Bridge
from hydra.protocol.core import Core
from hydra.protocol.election import Election
from hydra.protocol.heartbeat import Heartbeat
from hydra.protocol.induction import Induction
from hydra.protocol.messages import Message, Nominate, Ping
from hydra.protocol.roles import Action, Event

_WHY: Final = {
    Event.LEADER_HEARD: "another node leads a later term",
    Event.NOMINATION: "another node is nominated for a later term",
    Event.LEASE_OVER: "no majority has answered in time",
    Event.RIVAL: "another node claims to lead this term",
    Event.DROPPED: "dropped from the network",
}


@dataclass(frozen=True, eq=False)
class Transitions:
    """The changes of one node's role."""

    core: Core
    heartbeat: Heartbeat
    election: Election
    induction: Induction
    bridge: Bridge

    def on(self, event: Event | None, message: Message | None = None) -> None:
        """Perform the table's actions for an event, then those for the events that follow from them.

        `message` has caused it: a LEADER_HEARD the heartbeat, a NOMINATION the nominee's.
        """
        while event is not None:
            actions = self.core.candidacy.on(event)
            happened, event = event, None
            for action in actions:
                event = self._act(action, happened, message) or event

    def _act(self, action: Action, event: Event, message: Message | None) -> Event | None:
        match action:
            case Action.AWAIT:
                self._await(event)
            case Action.FOLLOW if isinstance(message, Ping):
                self.election.drop_deferred()
                self.heartbeat.follow(message)
            case Action.CONSIDER if isinstance(message, Nominate):
                self.election.consider(message)
            case Action.STAND:
                return self.election.stand()
            case Action.STAND_AGAIN:
                return self.election.stand_again()
            case Action.CALL:
                return self.election.call()
            case Action.LEAD:
                self.heartbeat.lead()
                self.bridge.lead()
            case Action.RESIGN:
                self.resign(_WHY[event])
            case Action.REJOIN:
                return self._rejoin()
        return None

    def _await(self, event: Event) -> None:
        """Give the election some time: after a leader's end one node should stand soon, but not all at once."""
        self.core.set_leader(None)
        if event is Event.INDUCTED:
            self.election.allow_time()
        else:
            self.election.wait(0, self.core.times.max_vote_min)

    def resign(self, reason: str) -> None:
        """Leave IRC and stop leading."""
        self.bridge.resign(reason)
        self.heartbeat.resign()

    def _rejoin(self) -> Event | None:
        """Continue under another id; a voter is in the network at once."""
        core = self.core
        core.set_leader(None)
        self.election.drop_deferred()
        self.induction.restart()
        core.draw_id()
        return Event.INDUCTED if core.votes else None
