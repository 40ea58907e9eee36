"""A Hydra node: events in, effects out (docs/protocols/hydra.md, "The node and its driver"). No I/O.

    node = Node(name="alpha", times=Times(), rng=Random(), stored=new_stored(rng), now=clock.now(), founder=True)
    effects = node.start(clock.now())
    effects = node.data_received(clock.now(), link, b"KNOCK 12345 probe\r\n")
    effects = node.tick(clock.now())  # not later than node.deadline

Each event takes the time, in seconds of a clock that never goes back, and returns what is to be done, in order. Before
anything else each event does what is due by then, so that a node that was stopped for a while leaves IRC first.

The rules are in the parts: `termtime`, `election`, `induction`, `bridge`. This class hands them what comes, and does
what the table of roles says.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from random import Random
from typing import Any, Final

from hydra.protocol.bridge import Bridge
from hydra.protocol.codec import Ignored, may_begin, parse
from hydra.protocol.core import Core
from hydra.protocol.doorkeeper import Doorkeeper, DoorRules
from hydra.protocol.effects import CloseLink, Dial, Effect, Stored
from hydra.protocol.election import Election
from hydra.protocol.electorate import Electorate
from hydra.protocol.induction import Induction
from hydra.protocol.irclease import State as IrcState
from hydra.protocol.links import Link, State
from hydra.protocol.members import Members
from hydra.protocol.messages import (
    Ask,
    Call,
    Drop,
    Elect,
    Hello,
    Knock,
    Meet,
    Message,
    Nominate,
    Ping,
    Pledge,
    Pong,
    Recv,
    Send,
    Welcome,
    bare,
)
from hydra.protocol.roles import Action, Event, Role
from hydra.protocol.termtime import LEADER_LEAVES, Termtime
from hydra.protocol.times import Times

#: Characters of a stranger's first line that a log shows.
SHOWN: Final = 40
MAX_IGNORED: Final = 100
"""Lines that mean nothing that are taken from a link before its handshake is over; then it is closed."""


def new_stored(rng: Random) -> Stored:
    """What is stored for a node that has no row yet."""
    return Stored(voter=f"{rng.getrandbits(64):016x}")


class Node:
    """One node. It does nothing by itself: call `tick` when `deadline` has come."""

    core_class = Core
    election_class = Election
    termtime_class = Termtime
    induction_class = Induction
    bridge_class = Bridge

    def __init__(
        self,
        *,
        name: str,
        times: Times,
        rng: Random,
        stored: Stored,
        now: float,
        targets: Iterable[str] = (),
        founder: bool = False,
        position: tuple[int, int] | None = None,
        door: DoorRules | None = None,
        irc: bool = True,
    ) -> None:
        """A node with a row as it is on disk, or `new_stored`, written already.

        `targets` are the addresses to dial. A `founder` begins a network of its own if its row has none: of all nodes
        that are to meet, one only may do so, and only when it is started for the first time. `position` is the term
        and index of the last line that was delivered before a restart. A node without `irc` knows no server: it leads
        only as long as no other could do better.
        """
        self.core = self.core_class(name, times, rng, stored, now, irc)
        self.termtime = self.termtime_class(self.core)
        self.election = self.election_class(self.core)
        self.induction = self.induction_class(self.core)
        self.bridge = self.bridge_class(self.core, position)
        self._doorkeeper = Doorkeeper(door or DoorRules())
        self._dial_at = dict.fromkeys(targets, now)
        self._founder = founder and stored.electorate is None

    # What others may look at.

    @property
    def id(self) -> int:
        """The id it has now."""
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
    def members(self) -> Members:
        """All other nodes."""
        return self.core.members

    @property
    def electorate(self) -> Electorate | None:
        """Who has a vote, as far as it knows."""
        return self.core.electorate

    @property
    def deadline(self) -> float:
        """When `tick` is to be called, if nothing else happens before."""
        core = self.core
        times = [at for target, at in self._dial_at.items() if target not in core.links.targets()]
        for link in core.links:
            if link.state is State.KNOCKING:
                times.append(min(link.knock_at, link.opened + core.times.handshake))
            elif link.state is not State.JOINED:
                times.append(link.opened + core.times.handshake)
        if self.induction.mediation is not None:
            times.append(self.induction.mediation.ends)
        if self.election.deferred is not None:
            times.append(self.election.promise_ends())
        times.append(self._role_deadline())
        return min(times)

    def _role_deadline(self) -> float:
        reign = self.termtime.reign
        if reign is not None:
            times = [reign.ping_at, reign.lease_until]
            if reign.leased and self.bridge.irc.state is IrcState.OFF:
                times.append(self.bridge.connect_at)
            return min(times)
        if self.role is Role.FOLLOWING:
            return self.termtime.silent_at
        if self.role is Role.OUTSIDE:
            return self.core.now + self.core.times.max_ping
        if self.role in _STANDING:
            return min(self.election.ends, self.election.repeat_at)
        return self.election.ends

    # Events.

    def start(self, now: float) -> list[Effect]:
        """Begin. A voter that was stopped may have promised something that it has forgotten: it waits for MAX_PING."""
        core = self._at(now)
        if self._founder:
            core.electorate = Electorate(0, 1, frozenset({core.voter}))
        alone = core.votes and core.base.quorum == 1
        if core.term > 0 and not alone:
            core.promise_until = now + core.times.max_ping
        if core.votes:
            self._on(Event.INDUCTED)
        if alone:
            self.election.ends = now
        return self._finish()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        self._at(now)
        return self._finish()

    def link_opened(self, now: float, number: int, *, target: str | None = None, origin: str = "") -> list[Effect]:
        """A link is open: one that was dialled has a target, one that was accepted an origin."""
        core = self._at(now)
        if target is None and (refusal := self._doorkeeper.refusal(origin, len(core.links), now)) is not None:
            core.outbox.at_once(CloseLink(number, refusal))
            return self._finish()
        link = Link(number, now, target=target, origin=origin)
        core.links.add(link)
        if target is not None:
            if self.role is Role.OUTSIDE and not core.links.joined and len(core.links) == 1:
                core.draw_id()
            self.induction.knock(link)
        return self._finish()

    def link_closed(self, now: float, number: int) -> list[Effect]:
        """A link was lost, or closed by the other side."""
        core = self._at(now)
        link = core.links.remove(number)
        if link is not None:
            core.closed.append(link)
        return self._finish()

    def dial_failed(self, now: float, target: str) -> list[Effect]:
        """An address could not be reached. It is tried again."""
        self._at(now)
        return self._finish()

    def data_received(self, now: float, number: int, data: bytes) -> list[Effect]:
        """Bytes have come over a link that carries a stream, or a datagram of whole lines."""
        core = self._at(now)
        link = core.links.get(number)
        if link is None:
            return self._finish()
        for line in link.decoder.feed(data):
            try:
                message = parse(line)
            except Ignored:
                self._ignore(link, line)
            else:
                link.begun = True
                self._take(link, message)
            if link.state is State.CLOSED:
                break
        self._judge_rest(link)
        return self._finish()

    def message_received(self, now: float, number: int, message: Message) -> list[Effect]:
        """A message has come over a link whose driver reads lines itself."""
        core = self._at(now)
        link = core.links.get(number)
        if link is not None:
            link.begun = True
            self._take(link, message)
        return self._finish()

    def persisted(self, now: float, number: int) -> list[Effect]:
        """The row of a `Persist` with this number is committed."""
        core = self._at(now)
        core.outbox.persisted(number)
        return self._finish()

    def irc_connected(self, now: float) -> list[Effect]:
        """The connection asked for by `ConnectIrc` stands: lines can be said."""
        self._at(now)
        self.bridge.connected()
        return self._finish()

    def irc_lost(self, now: float) -> list[Effect]:
        """The connection to IRC was lost or could not be made."""
        self._at(now)
        self.bridge.lost()
        return self._finish()

    def irc_line(self, now: float, line: str) -> list[Effect]:
        """A line has come from IRC, without its end."""
        self._at(now)
        self.bridge.irc_line(line)
        return self._finish()

    def submit(self, now: float, message: str, line: str) -> list[Effect]:
        """Send a line to IRC, once or never; `message` is its name, unique among all that this node ever submits.

        Whoever submits has made sure before that it will not submit the same again after a restart.
        Raises ValueError for a name that cannot be one.
        """
        self._at(now)
        self.bridge.submit(message, line)
        return self._finish()

    def step_down(self, now: float) -> list[Effect]:
        """Stop leading, and stay a node. The others elect somebody when this term's lease is over."""
        self._at(now)
        if self.role is Role.LEADING:
            self._on(Event.LEASE_OVER)
        return self._finish()

    def drop(self, now: float, id: int, reason: str) -> list[Effect]:
        """Remove another node from the network. It may come back with another id."""
        core = self._at(now)
        if id in core.members:
            core.say(Drop(id, reason))
            self.termtime.remove(id)
            self.induction.forget_node(id)
            if id == core.leader:
                core.leader = None
                self._on(Event.LEADER_SILENT)
        return self._finish()

    def disconnect(self, now: float, number: int, reason: str) -> list[Effect]:
        """Close a link; one that was dialled is dialled again."""
        core = self._at(now)
        link = core.links.get(number)
        if link is not None:
            core.close(link, reason)
        return self._finish()

    def leave(self, now: float) -> list[Effect]:
        """Stop in order: leave IRC, and tell the others, so that they need not wait."""
        core = self._at(now)
        if self.role is not Role.OUTSIDE:
            reign = self.termtime.reign
            self._resign("leaving")
            core.say(Drop(core.id, "leaving") if reign is None else Drop(core.id, LEADER_LEAVES, reign.proof))
        return core.outbox.take()

    # What was before an event.

    def remember(self) -> dict[str, Any]:
        """All that this node knows now, for `recall`."""
        core = self.core
        # What does not change is shared, and the generator's state, a long tuple, is taken as it is.
        shared = {id(each): each for each in (core.times, core.rng)}
        return {**deepcopy(self.__dict__, shared), "core.rng": core.rng.getstate()}

    def recall(self, memory: dict[str, Any]) -> None:
        """An event has raised what nobody has foreseen: be as before it. Nothing of it has left the node."""
        now = self.core.now
        self.core.rng.setstate(memory.pop("core.rng"))
        self.__dict__.update(memory)
        self.core.now = now

    # What every event begins and ends with.

    def _at(self, now: float) -> Core:
        core = self.core
        core.now = max(now, core.now)
        reign = self.termtime.reign
        if reign is not None and core.now >= reign.lease_until:
            self._on(Event.LEASE_OVER)
        if self.role is Role.FOLLOWING and core.now >= self.termtime.silent_at:
            self._on(Event.LEADER_SILENT)
        return core

    def _finish(self) -> list[Effect]:
        core = self.core
        if self.role is Role.LEADING and core.outdone:
            self._on(Event.LEASE_OVER)
        if core.leader is not None:
            core.led_at = core.now
        self._forget_closed()
        self.induction.expire()
        self.election.settle()
        if self.role in _ELECTING and core.now >= self.election.ends:
            if self.election.may_stand():
                self._on(Event.TIME_IS_UP)
            else:
                self.election.allow_time()
        if self.role in _STANDING and core.now >= self.election.repeat_at:
            self.election.repeat()
        if self.termtime.wants_beat():
            self._beat()
        if self.termtime.reign is not None and self.termtime.reign.leased:
            self.bridge.leased()
        if core.outbox.overfull:
            core.outbox.forget_held()
            self._close_all("the disk does not answer")
        self._keep_links()
        core.note_changes()
        return core.outbox.take()

    def _beat(self) -> None:
        before = {member.id for member in self.core.members}
        self.termtime.beat(self.bridge.log.of(self.core.term).known)
        for id in before:
            if id not in self.core.members:
                self.induction.forget_node(id)

    # Links.

    def _keep_links(self) -> None:
        core = self.core
        self._forget_closed()
        for link in core.links:
            if link.state is State.JOINED:
                continue
            if core.now >= link.opened + core.times.handshake:
                self.core.close(link, "nobody was inducted")
            elif link.state is State.KNOCKING and core.now >= link.knock_at:
                self.induction.knock(link)
        connected = core.links.targets()
        for target, at in self._dial_at.items():
            if target not in connected and core.now >= at:
                self._dial_at[target] = core.now + core.times.redial * core.rng.uniform(0.5, 1.5)
                core.outbox.at_once(Dial(target))

    def _judge_rest(self, link: Link) -> None:
        """Close a link whose other side sends no lines, or has begun with something else than a message."""
        decoder = link.decoder
        if link.state is State.CLOSED:
            return
        if decoder.error is not None:
            self.core.close(link, str(decoder.error))
        elif not link.begun and decoder.pending and not may_begin(decoder.pending):
            self._refuse_stranger(link, decoder.pending.decode(errors="replace"))

    def _refuse_stranger(self, link: Link, text: str) -> None:
        """A browser, a scanner, a TLS client: what follows its first line is not looked at."""
        self.core.close(link, f"its first line is no message of Hydra's: {text[:SHOWN]!a}")

    def _ignore(self, link: Link, line: str) -> None:
        if not link.begun:
            self._refuse_stranger(link, line)
        else:
            self._count_ignored(link)

    def _count_ignored(self, link: Link) -> None:
        link.ignored += 1
        if link.state is not State.JOINED and link.ignored > MAX_IGNORED:
            self.core.close(link, f"more than {MAX_IGNORED} lines that mean nothing")

    def _close_all(self, reason: str) -> None:
        for link in self.core.links:
            self.core.close(link, reason)

    def _forget_closed(self) -> None:
        core = self.core
        while core.closed:
            link = core.closed.pop()
            core.members.forget_link(link.number)
            self.induction.forget_link(link.number)
            if link.target is None:
                self._doorkeeper.ended(link.origin, core.now)
            else:
                self._dial_at[link.target] = core.now + core.times.redial * core.rng.uniform(0.1, 0.5)

    # Messages.

    def _take(self, link: Link, message: Message) -> None:
        if link.state is not State.JOINED:
            self._take_handshake(link, message)
            return
        if not link.extended:
            message = self._without_attributes(link, message)
        match message:
            case Ping():
                self._take_ping(link, message)
            case Pong():
                self.termtime.on_pong(message, link)
            case Recv():
                self.bridge.on_recv(message, link)
            case Send():
                self.bridge.on_send(message, link)
            case Ask():
                self.bridge.on_ask(message, link)
            case Drop():
                self._take_drop(link, message)
            case Nominate() | Pledge() | Call() | Elect():
                self._take_election(link, message)
            case _:
                self._take_induction(link, message)

    def _without_attributes(self, link: Link, message: Message) -> Message:
        """Attributes show that the other side knows them, if it was told that this one does; else they are void."""
        plain = bare(message)
        if plain == message or not link.asked:
            return plain
        link.extended = True
        self.core.links.sort()
        return message

    def _take_handshake(self, link: Link, message: Message) -> None:
        if isinstance(message, Knock):
            self.induction.on_own_knock(message, link)
        elif not link.asked:
            self._count_ignored(link)
        elif isinstance(message, Drop):
            if message.id == self.core.id:
                self._told_dropped(link, message)
        elif isinstance(message, Meet | Welcome | Hello):
            if self.induction.on_answer(message, link):
                self._on(Event.INDUCTED)
        else:
            self._count_ignored(link)

    def _take_ping(self, link: Link, message: Ping) -> None:
        event = self.termtime.on_ping(message, link)
        if event is Event.LEADER_HEARD:
            self._on(event, heard=message)
            self.bridge.follow(message.next, link)
        elif event is not None:
            self._on(event)

    def _take_election(self, link: Link, message: Nominate | Pledge | Call | Elect) -> None:
        match message:
            case Nominate():
                if self.election.on_nominate(message, link):
                    self._on(Event.NOMINATION, nominated=message)
            case Pledge():
                self._on(self.election.on_pledge(message, link))
            case Call():
                self.election.on_call(message, link)
            case Elect():
                self._on(self.election.on_elect(message, link))

    def _take_induction(self, link: Link, message: Message) -> None:
        match message:
            case Knock():
                if message.ind == link.peer:
                    self.induction.on_own_knock(message, link)
                else:
                    self.induction.on_knock(message, link)
            case Meet():
                self.induction.on_meet(message, link)
            case Welcome():
                self.induction.on_welcome(message, link)
            case Hello():
                self.induction.on_hello(message, link)

    def _take_drop(self, link: Link, message: Drop) -> None:
        core = self.core
        if not core.is_new(message) and message.id not in core.members and message.id != core.id:
            return
        if self.termtime.withstands(message):
            return
        core.relay(message, link)
        if message.id == core.id:
            self._dropped(message.reason)
            return
        leaves = self.termtime.leaves(message)
        self.termtime.remove(message.id)
        self.induction.forget_node(message.id)
        if message.id == core.leader:
            core.leader = None
            if leaves:
                core.release(message.id, core.term + 1)
            self._on(Event.LEADER_SILENT)

    def _told_dropped(self, link: Link, message: Drop) -> None:
        """The other side of a link that has not joined has dropped this node."""
        if self.termtime.withstands(message):
            self.core.close(link, f"it takes this leader for dropped: {message.reason}")
        else:
            self._dropped(message.reason)

    def _dropped(self, reason: str) -> None:
        self._close_all(f"dropped: {reason or 'no reason given'}")
        self._on(Event.DROPPED)

    # The table of roles.

    def _on(self, event: Event | None, *, heard: Ping | None = None, nominated: Nominate | None = None) -> None:
        """Something has happened: do what the table says, and then what follows from that."""
        while event is not None:
            actions = self.core.candidacy.on(event)
            happened, event = event, None
            for action in actions:
                event = self._act(action, happened, heard, nominated) or event

    def _act(self, action: Action, event: Event, heard: Ping | None, nominated: Nominate | None) -> Event | None:
        match action:
            case Action.AWAIT:
                self._await(event)
            case Action.FOLLOW if heard is not None:
                self.election.deferred = None
                self.termtime.follow(heard)
            case Action.CONSIDER if nominated is not None:
                self.election.consider(nominated)
            case Action.STAND:
                return self.election.stand()
            case Action.STAND_AGAIN:
                return self.election.stand_again()
            case Action.CALL:
                return self.election.call()
            case Action.LEAD:
                self.termtime.lead()
                self.bridge.lead()
            case Action.RESIGN:
                self._resign(_WHY[event])
            case Action.REJOIN:
                return self._rejoin()
            case _:
                pass
        return None

    def _await(self, event: Event) -> None:
        """Give the election some time; after a leader's end somebody should stand soon, but not all at once."""
        self.core.leader = None
        if event is Event.INDUCTED:
            self.election.allow_time()
        else:
            self.election.wait(0, self.core.times.max_vote_min)

    def _resign(self, reason: str) -> None:
        self.bridge.resign(reason)
        self.termtime.resign()

    def _rejoin(self) -> Event | None:
        """Be somebody else from now on; a voter still is one."""
        core = self.core
        core.leader = None
        self.election.deferred = None
        self.induction = self.induction_class(core)
        core.draw_id()
        return Event.INDUCTED if core.votes else None


_STANDING: Final = (Role.NOMINEE, Role.CALLING)
_ELECTING: Final = (Role.WAITING, *_STANDING)
_WHY: Final = {
    Event.LEADER_HEARD: "another leads a later term",
    Event.NOMINATION: "another is nominated for a later term",
    Event.LEASE_OVER: "no majority has answered in time",
    Event.RIVAL: "another claims to lead this term",
    Event.DROPPED: "dropped from the network",
}
