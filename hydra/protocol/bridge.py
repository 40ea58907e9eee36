"""Lines between IRC and the nodes (docs/protocols/hydra.md, "The bridge"). No I/O.

The leader numbers the lines from IRC. A line for IRC belongs to one term; that term's leader sends it once, or never.
"""

from __future__ import annotations

import hashlib
from collections import deque
from math import inf
from typing import Final

from hydra.protocol.codec import is_word
from hydra.protocol.core import Core
from hydra.protocol.effects import ConnectIrc, DeliverLine, LeaveIrc, Missed, Refused, Say
from hydra.protocol.irclease import Action, Event, IrcLease, State
from hydra.protocol.lines import E_RECV, E_SEND, passes
from hydra.protocol.links import NodeLink
from hydra.protocol.messages import Ask, Recv, Send
from hydra.protocol.recvlog import Line, RecvLog
from hydra.protocol.roles import Role
from hydra.protocol.seen import Seen

#: Lines for IRC that wait for a leader or its connection, each.
MAX_WAITING: Final = 1000

#: Sent lines that the leader remembers.
MAX_SAID: Final = 65_536
_PLAIN: Final = "plain/"


class Bridge:
    """One node's part in carrying lines, as leader or not."""

    def __init__(self, core: Core, position: tuple[int, int] | None) -> None:
        self.core = core
        self.log = RecvLog(position)
        self.irc = IrcLease()
        self.connect_at = core.now
        self._parked: deque[tuple[str, str]] = deque()
        """Lines submitted while there was no leader: message and line."""
        self._waiting: deque[tuple[str, str]] = deque()
        """Lines that wait for this leader's connection."""
        self._said = Seen(MAX_SAID)
        self._submitted = Seen()

    # From IRC to the nodes.

    def irc_line(self, line: str) -> None:
        """Number a line from IRC and send it to all."""
        core = self.core
        if self.irc.state is State.ON and passes(line, E_RECV):
            idx = self.log.append(core.term, line)
            core.say(Recv(idx, line, core.term))
            core.outbox.say(DeliverLine(core.term, idx, line))

    def on_recv(self, message: Recv, link: NodeLink) -> None:
        core = self.core
        term = core.term if message.term is None else message.term
        if term == core.term and core.role is Role.LEADING:
            return
        if term > core.term or (term < core.term and not self.log.knows(term)):
            return
        if message.term is None and not self._is_of_plain_leader(message.idx):
            return
        if message.first is not None:
            self._skip(term, self.log.refused(term, link.number, message.first, len(core.links.extended)))
        message = message._replace(term=term, first=None)
        if core.is_new(message):
            core.relay(message, link)
        self._deliver(term, self.log.of(term).take(message.idx, message.line))

    def _is_of_plain_leader(self, idx: int) -> bool:
        """Whether a line without its term is one of this term; then no neighbour can be asked for missing ones."""
        core = self.core
        leader = core.members.get(core.leader)
        if leader is None or leader.voter is not None:
            return False
        self._skip(core.term, self.log.go_to(core.term, idx))
        return True

    def _skip(self, term: int, lost: tuple[int, int] | None) -> None:
        if lost is not None:
            self.core.outbox.say(Missed(term, *lost))
            self._deliver(term, self.log.of(term).ready())

    def _deliver(self, term: int, lines: list[Line]) -> None:
        for idx, line in lines:
            self.core.outbox.say(DeliverLine(term, idx, line))

    def follow(self, next_line: int | None, link: NodeLink) -> None:
        """Ask for the lines that a heartbeat shows to be missing, preferably the neighbour that it came from."""
        core = self.core
        if next_line is not None:
            self._deliver(core.term, self.log.begin(core.term, next_line))
        missing = self.log.missing(core.term)
        if missing is not None and core.links.extended:
            self._ask(missing, link)
        self._unpark()

    def _ask(self, idx: int, link: NodeLink) -> None:
        core = self.core
        refusals = self.log.of(core.term).refusals
        able = [each for each in core.links.extended if each not in refusals] or list(core.links.extended)
        number = link.number if link.number in able else able[0]
        asked = core.links.get(number)
        if asked is not None:
            core.answer(asked, Ask(core.term, idx))

    def on_ask(self, message: Ask, link: NodeLink) -> None:
        if not link.extended:
            return
        lines, first = self.log.answer(message.term, message.idx)
        for idx, line in lines:
            self.core.answer(link, Recv(idx, line, message.term, first))
            first = None

    # From the nodes to IRC.

    def submit(self, message: str, line: str) -> None:
        """Send a line to IRC, once or never. Raises ValueError for an invalid name."""
        core = self.core
        if not is_word(message):
            raise ValueError(f"a message's name is up to 200 printable characters without ; and =, not {message!r}")
        if not self._submitted.add(message):
            return
        if not passes(line, E_SEND):
            core.outbox.say(Refused(message, "no line that may be sent to IRC"))
        elif core.leader is not None:
            self._dispatch(f"{core.voter}/{message}", line)
        elif len(self._parked) < MAX_WAITING:
            self._parked.append((f"{core.voter}/{message}", line))
        else:
            core.outbox.say(Refused(message, f"{MAX_WAITING} lines wait for a leader already"))

    def _dispatch(self, message: str, line: str) -> None:
        core = self.core
        if core.role is Role.LEADING:
            self._speak(message, line)
        else:
            core.say(Send(core.id, line, core.term, message))

    def _unpark(self) -> None:
        while self._parked and self.core.leader is not None:
            self._dispatch(*self._parked.popleft())

    def on_send(self, message: Send, link: NodeLink) -> None:
        core = self.core
        if not core.knows(message.id, None, link) or not passes(message.line, E_SEND):
            return
        if message.message is None or message.term is None:
            if core.leader is None:
                return
            digest = hashlib.blake2b(f"{message.id} {message.line}".encode(), digest_size=8).hexdigest()
            message = message._replace(term=core.term, message=f"{_PLAIN}{digest}")
        if not core.is_new(message):
            return
        core.relay(message, link)
        if message.term == core.term and core.role is Role.LEADING and message.message is not None:
            self._speak(message.message, message.line)

    def _speak(self, message: str, line: str) -> None:
        """Send a line to IRC, as the leader, unless it was sent in this term."""
        # Two copies of a line of a node without attributes within this time are one line on two ways.
        lifetime = self.core.times.max_ping if message.startswith(_PLAIN) else inf
        if not self._said.add((self.core.term, message), self.core.now, lifetime):
            return
        if self.irc.state is State.ON:
            self.core.outbox.say(Say(line, message))
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((message, line))

    # The connection.

    def lead(self) -> None:
        """Begin a term as its leader."""
        self.log.lead(self.core.term)
        self.connect_at = self.core.now
        self._unpark()

    def leased(self) -> None:
        """Connect to IRC if this leader, which has its lease, is not connected."""
        if self.core.now >= self.connect_at and self.irc.on(Event.LEASED) is Action.CONNECT:
            self.core.outbox.say(ConnectIrc())

    def connected(self) -> None:
        """The connection to IRC is ready."""
        if self.irc.on(Event.CONNECTED) is Action.FLUSH:
            while self._waiting:
                message, line = self._waiting.popleft()
                self.core.outbox.say(Say(line, message))

    def lost(self) -> None:
        """The connection to IRC was lost, or could not be made."""
        if self.irc.on(Event.LOST) is Action.WAIT:
            self.connect_at = self.core.now + self.core.times.redial

    def resign(self, reason: str) -> None:
        """Leave IRC before any other effect: this node leads no longer."""
        self._waiting.clear()
        if self.irc.on(Event.ENDED) is Action.LEAVE:
            self.core.outbox.at_once(LeaveIrc(reason))
