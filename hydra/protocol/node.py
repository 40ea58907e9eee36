"""A Hydra node: events in, effects out (docs/protocols/hydra.md, "The node and its driver"). No I/O.

    node = Node(name="alpha", times=Times(), rng=Random(), stored=new_stored(rng), now=clock.now(), founder=True)
    effects = node.start(clock.now())
    effects = node.data_received(clock.now(), link, b"KNOCK 12345 probe\r\n")
    effects = node.tick(clock.now())  # not later than node.deadline

Each event takes the time, in seconds of a clock that never goes back, and returns the effects to carry out, in order.
Every event first carries out actions due by its time: a node that was stopped for a while leaves IRC before anything
else.

The parts share one `Core`. `Neighbours` keeps the links, `Receiver` hands messages to the rules in `heartbeat`,
`election`, `induction` and `bridge`, and `Transitions` carries out the table of roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from random import Random
from typing import Any, Final

from hydra.protocol.admission import AdmissionRules
from hydra.protocol.bridge import Bridge
from hydra.protocol.codec import IgnoredLine, parse
from hydra.protocol.core import Core
from hydra.protocol.effects import Effect, StoredNode
from hydra.protocol.election import Election
from hydra.protocol.electorate import Electorate
from hydra.protocol.heartbeat import LEADER_LEAVES, Heartbeat
from hydra.protocol.induction import Induction
from hydra.protocol.irclease import State as IrcState
from hydra.protocol.links import State
from hydra.protocol.members import Members
from hydra.protocol.messages import Drop, Message
from hydra.protocol.neighbours import Neighbours
from hydra.protocol.receiver import Receiver
from hydra.protocol.roles import Event, Role
from hydra.protocol.times import Times
from hydra.protocol.transitions import Transitions

_STANDING: Final = (Role.NOMINEE, Role.CALLING)
_ELECTING: Final = (Role.WAITING, *_STANDING)


def new_stored(rng: Random) -> StoredNode:
    """The first row of a node, with a new lasting key."""
    return StoredNode(voter=f"{rng.getrandbits(64):016x}")


class Node:
    """One node. It does nothing by itself: call `tick` when `deadline` has come."""

    core_class = Core
    election_class = Election
    heartbeat_class = Heartbeat
    induction_class = Induction
    bridge_class = Bridge

    def __init__(
        self,
        *,
        name: str,
        times: Times,
        rng: Random,
        stored: StoredNode,
        now: float,
        targets: Iterable[str] = (),
        founder: bool = False,
        position: tuple[int, int] | None = None,
        admission: AdmissionRules | None = None,
        irc: bool = True,
    ) -> None:
        """A node whose row on disk is `stored`; a `new_stored` one must be written before.

        `targets` are the addresses to dial. A `founder` begins a network of its own if its row has none: only one of
        the nodes that are to meet may do so, at its first start. `position` is the term and index of the last line
        delivered before a restart. A node without `irc` knows no server, and leads only while no other node could.
        """
        core = self.core = self.core_class(name, times, rng, stored, now, irc)
        self.heartbeat = self.heartbeat_class(core)
        self.election = self.election_class(core)
        self.induction = self.induction_class(core)
        self.bridge = self.bridge_class(core, position)
        self._neighbours = Neighbours(core, self.induction, admission or AdmissionRules(), targets)
        self._transitions = Transitions(core, self.heartbeat, self.election, self.induction, self.bridge)
        self._receiver = Receiver(self._neighbours, self._transitions)
        self._founder = founder and stored.electorate is None

    # For the driver and operators, read only.

    @property
    def id(self) -> int:
        """Its present id."""
        return self.core.id

    @property
    def role(self) -> Role:
        """Its place in the table of roles."""
        return self.core.role

    @property
    def term(self) -> int:
        """The latest term that it knows of."""
        return self.core.term

    @property
    def leader(self) -> int | None:
        """The id of the leader that it follows or is."""
        return self.core.leader

    @property
    def has_lease(self) -> bool:
        """Whether it leads, and a majority has answered a heartbeat of its term."""
        leader_term = self.heartbeat.leader_term
        return leader_term is not None and leader_term.leased

    @property
    def members(self) -> Members:
        """All other nodes."""
        return self.core.members

    @property
    def electorate(self) -> Electorate | None:
        """The newest electorate that it knows."""
        return self.core.electorate

    @property
    def deadline(self) -> float:
        """The latest time for the next `tick`."""
        times = self._neighbours.deadlines()
        if self.induction.mediation is not None:
            times.append(self.induction.mediation.ends)
        if self.election.deferred is not None:
            times.append(self.election.promise_ends())
        times.append(self._role_deadline())
        return min(times)

    def _role_deadline(self) -> float:
        leader_term = self.heartbeat.leader_term
        if leader_term is not None:
            times = [leader_term.ping_at, leader_term.lease_until]
            if leader_term.leased and self.bridge.irc.state is IrcState.OFF:
                times.append(self.bridge.connect_at)
            return min(times)
        if self.role is Role.FOLLOWING:
            return self.heartbeat.silent_at
        if self.role is Role.OUTSIDE:
            return self.core.now + self.core.times.max_ping
        if self.role in _STANDING:
            return min(self.election.ends, self.election.repeat_at)
        return self.election.ends

    # Events.

    def start(self, now: float) -> list[Effect]:
        """Begin. A restarted voter may have forgotten a promise to a leader, and so waits for MAX_PING."""
        core = self._at(now)
        if self._founder:
            core.found()
        alone = core.votes and core.base.quorum == 1
        if core.term > 0 and not alone:
            core.promise()
        if core.votes:
            self._transitions.on(Event.INDUCTED)
        if alone:
            self.election.end_now()
        return self._finish()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        self._at(now)
        return self._finish()

    def link_opened(self, now: float, number: int, *, target: str | None = None, origin: str = "") -> list[Effect]:
        """A link is open: a dialled one has a target, an accepted one an origin."""
        self._at(now)
        self._neighbours.open(number, target, origin)
        return self._finish()

    def link_closed(self, now: float, number: int) -> list[Effect]:
        """A link was lost, or closed by the other side."""
        self._at(now)
        self._neighbours.lost(number)
        return self._finish()

    def data_received(self, now: float, number: int, data: bytes) -> list[Effect]:
        """Bytes of a link that carries a stream, or a datagram of whole lines."""
        core = self._at(now)
        link = core.links.get(number)
        if link is None:
            return self._finish()
        for line in link.decoder.feed(data):
            try:
                message = parse(line)
            except IgnoredLine:
                self._neighbours.ignore(link, line)
            else:
                link.begin()
                self._receiver.take(link, message)
            if link.state is State.CLOSED:
                break
        self._neighbours.check_rest(link)
        return self._finish()

    def message_received(self, now: float, number: int, message: Message) -> list[Effect]:
        """A message of a link whose driver reads lines itself."""
        core = self._at(now)
        link = core.links.get(number)
        if link is not None:
            link.begin()
            self._receiver.take(link, message)
        return self._finish()

    def persisted(self, now: float, number: int) -> list[Effect]:
        """The row of the `Persist` with this number is committed."""
        self._at(now).outbox.persisted(number)
        return self._finish()

    def irc_connected(self, now: float) -> list[Effect]:
        """The connection asked for by `ConnectIrc` is ready for lines."""
        self._at(now)
        self.bridge.connected()
        return self._finish()

    def irc_lost(self, now: float) -> list[Effect]:
        """The connection to IRC was lost or could not be made."""
        self._at(now)
        self.bridge.lost()
        return self._finish()

    def irc_line(self, now: float, line: str) -> list[Effect]:
        """A line from IRC, without its end."""
        self._at(now)
        self.bridge.irc_line(line)
        return self._finish()

    def submit(self, now: float, message: str, line: str) -> list[Effect]:
        """Send a line to IRC, once or never; `message` is its name, unique among all that this node ever submits.

        The caller must not submit the same line again after a restart. Raises ValueError for an invalid name.
        """
        self._at(now)
        self.bridge.submit(message, line)
        return self._finish()

    def step_down(self, now: float) -> list[Effect]:
        """Stop leading, and stay a node. The others elect a leader when this term's lease is over."""
        self._at(now)
        if self.role is Role.LEADING:
            self._transitions.on(Event.LEASE_OVER)
        return self._finish()

    def drop(self, now: float, id: int, reason: str) -> list[Effect]:
        """Remove another node from the network. It may come back with another id."""
        core = self._at(now)
        if id in core.members:
            core.say(Drop(id, reason))
            self._receiver.remove(id)
        return self._finish()

    def disconnect(self, now: float, number: int, reason: str) -> list[Effect]:
        """Close a link; a dialled one is dialled again."""
        core = self._at(now)
        link = core.links.get(number)
        if link is not None:
            core.close(link, reason)
        return self._finish()

    def leave(self, now: float) -> list[Effect]:
        """Stop in order: leave IRC, and tell the others, so that they need not wait."""
        core = self._at(now)
        if self.role is not Role.OUTSIDE:
            leader_term = self.heartbeat.leader_term
            self._transitions.resign("leaving")
            proof = None if leader_term is None else leader_term.proof
            core.say(Drop(core.id, "leaving" if proof is None else LEADER_LEAVES, proof))
        return core.outbox.take()

    # The state before an event.

    def remember(self) -> dict[str, Any]:
        """The whole state of this node, for `recall`."""
        core = self.core
        # Constants are shared, and the generator's state, a long tuple, is taken as it is.
        shared = {id(each): each for each in (core.times, core.rng)}
        return {**deepcopy(self.__dict__, shared), "core.rng": core.rng.getstate()}

    def recall(self, memory: dict[str, Any]) -> None:
        """Return to the state before an event that failed unforeseen. None of its effects has left the node."""
        now = self.core.now
        self.core.rng.setstate(memory.pop("core.rng"))
        self.__dict__.update(memory)
        self.core.begin_event(now)

    # The beginning and the end of every event.

    def _at(self, now: float) -> Core:
        core = self.core
        core.begin_event(now)
        leader_term = self.heartbeat.leader_term
        if leader_term is not None and core.now >= leader_term.lease_until:
            self._transitions.on(Event.LEASE_OVER)
        if self.role is Role.FOLLOWING and core.now >= self.heartbeat.silent_at:
            self._transitions.on(Event.LEADER_SILENT)
        return core

    def _finish(self) -> list[Effect]:
        core = self.core
        if self.role is Role.LEADING and core.outdone:
            self._transitions.on(Event.LEASE_OVER)
        core.note_led()
        self._neighbours.settle_closed()
        self.induction.expire()
        self._go_on_electing()
        if self.heartbeat.wants_beat():
            self._beat()
        if self.has_lease:
            self.bridge.leased()
        if core.outbox.overfull:
            core.outbox.forget_held()
            self._neighbours.close_all("the disk does not answer")
        self._neighbours.keep()
        core.note_changes()
        return core.outbox.take()

    def _go_on_electing(self) -> None:
        election, now = self.election, self.core.now
        election.settle()
        if self.role in _ELECTING and now >= election.ends:
            if election.may_stand():
                self._transitions.on(Event.TIME_IS_UP)
            else:
                election.allow_time()
        if self.role in _STANDING and now >= election.repeat_at:
            election.repeat()

    def _beat(self) -> None:
        before = {member.id for member in self.core.members}
        self.heartbeat.beat(self.bridge.log.of(self.core.term).known)
        for id in before:
            if id not in self.core.members:
                self.induction.forget_node(id)
