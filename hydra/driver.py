"""Runs a node in an event loop (docs/protocols/hydra.md, "The node and its driver").

Events go into the node one after the other; events that come while effects are carried out are queued. The driver knows
neither a database nor Django: `StateStore`, `Irc` and `Watcher` are its surroundings, `OpenLinks` its neighbours.

An event with another party's content that fails unforeseen is given up alone, with its link if it has one; the node
returns to its state before. A failure in the node's own work ends the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from hydra import clock
from hydra.errors import StoreError
from hydra.irc.fates import LINE_REFUSED, LINES_MISSED, Fate, FateKind, Settle
from hydra.open_links import OpenLinks
from hydra.protocol import effects
from hydra.protocol.codec import MessageTooLong, encode
from hydra.protocol.effects import Effect, Persist, StoredNode, Transmit
from hydra.protocol.lines import E_RECV, passes
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.transports.address import NodeAddress
from hydra.transports.base import LinkListener, TransportOptions
from queues.log_throttle import LogThrottle
from wire.net.tasks import Tasks

logger = logging.getLogger(__name__)

MAX_SLEEP: Final = 60.0
#: Seconds between two log reports of faults of a kind.
FAULTS: Final = 60.0


class StateStore(Protocol):
    """The place of a node's row."""

    async def write(self, stored: StoredNode) -> None:
        """Return when the row is committed, however long the database is away.

        Raises StoreError for a row that can never be written; the store's owner is told too, and stops the driver.
        """


class Irc(Protocol):
    """The leader's connection to IRC; it answers with `Driver.irc_connected`, `irc_line` and `irc_lost`."""

    def connect(self) -> None:
        """Begin to connect."""

    def say(self, line: str, settle: Settle) -> bool:
        """Send a line, and tell its fate by `settle`, once; False if it will not be sent."""

    def leave(self, reason: str) -> None:
        """Leave IRC before this returns: nothing is sent and nothing called after it."""


class Watcher(Protocol):
    """The receiver of a node's news. No method may wait."""

    def changed(self, role: Role, term: int, leader: int | None) -> None:
        """Role, term or leader have changed."""

    def delivered(self, term: int, idx: int, line: str) -> None:
        """A line came from IRC."""

    def settled(self, message: str, line: str, fate: Fate) -> None:
        """What became of a line for IRC that has this name."""

    def happened(self, kind: str, text: str) -> None:
        """An event for operators."""

    def failed(self, error: Exception) -> None:
        """The node has failed unforeseen, is silent now, and cannot go on."""


class _Event(NamedTuple):
    """An event for the node."""

    call: Callable[..., list[Effect]]
    args: tuple[Any, ...]
    unit: str
    link: int | None


class Driver:
    """One node in an event loop."""

    def __init__(
        self, node: Node, options: TransportOptions, store: StateStore, irc: Irc | None, watcher: Watcher
    ) -> None:
        self.node = node
        self._store = store
        self._irc = irc
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._links = OpenLinks(replace(options, fault=self.fault), node, self.tell, watcher.happened)
        self._events: deque[_Event] = deque()
        self._at_work = False
        #: Whether the node is silent for good.
        self.over = False
        self._timer: asyncio.TimerHandle | None = None
        self._writes = Tasks()
        #: Units of work given up for unforeseen reasons.
        self.faults = 0
        self._throttle = LogThrottle(FAULTS)

    @property
    def listeners(self) -> list[LinkListener]:
        """The listeners that are open."""
        return self._links.listeners

    # Life.

    async def start(self, listen_on: Iterable[NodeAddress]) -> None:
        """Listen, and begin. Raises TransportError, with nothing begun, for an address that cannot be listened on."""
        await self._links.listen(listen_on)
        self.tell(self.node.start)

    async def leave(self) -> None:
        """Stop in order: leave IRC, tell the others, close all links."""
        self.tell(self.node.leave)
        # The last messages leave before the links close: transports send at once.
        await self.abandon("the node stops")

    async def abandon(self, reason: str) -> None:
        """Stop at once, without a message."""
        self.silence(reason)
        await self._links.stop()
        await self._writes.end()

    def silence(self, reason: str) -> None:
        """Leave IRC and the network before this returns."""
        if self.over:
            return
        self.over = True
        if self._irc is not None:
            self._irc.leave(reason)
        if self._timer is not None:
            self._timer.cancel()
        self._links.silence()
        self._events.clear()

    # Events.

    def tell(self, call: Callable[..., list[Effect]], *args: Any, unit: str = "", link: int | None = None) -> None:
        """Give the node an event: one of its methods, and the arguments after the time.

        If it fails, the node is silent from then on, and `Watcher.failed` is called. With `unit`, the name of this work
        for logs, another party has chosen its content: if it fails, it is given up alone, and its `link` ends.
        """
        if self.over:
            return
        self._events.append(_Event(call, args, unit, link))
        if self._at_work:
            return
        self._at_work = True
        try:
            while self._events:
                for effect in self._handle(self._events.popleft()):
                    self._carry_out_alone(effect)
        except Exception as error:  # the node's promises are unknown from here on
            self.silence(f"a fault: {error}")
            self._watcher.failed(error)
        finally:
            self._at_work = False
        self._sleep()

    def _handle(self, event: _Event) -> list[Effect]:
        if not event.unit:
            return event.call(clock.now(), *event.args)
        memory = self.node.remember()
        try:
            return event.call(clock.now(), *event.args)
        except Exception as error:
            self.node.recall(memory)
            self.fault(event.unit, error)
            if event.link is not None:
                self._links.end(event.link, f"a fault in what came over it: {type(error).__name__}")
            return []

    def fault(self, unit: str, error: Exception) -> None:
        """Count and report a unit of work that failed for an unforeseen reason."""
        self.faults += 1
        kind = type(error).__name__
        if count := self._throttle.admit(f"{unit.partition(' ')[0]} {kind}", clock.now()):
            logger.error("%s was given up, one of %d: %s", unit, count, error, exc_info=error)
            self._watcher.happened("fault", f"{unit} was given up: {kind}: {error}")

    def _sleep(self) -> None:
        if self.over:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = clock.now()
        wake_at = min(max(self.node.deadline, now), now + MAX_SLEEP)
        self._timer = clock.call_at(self._loop, wake_at, self.tell, self.node.tick)

    def irc_connected(self) -> None:
        """Registered, and in all channels."""
        self._watcher.happened("irc", "connected")
        self.tell(self.node.irc_connected)

    def irc_line(self, line: str) -> None:
        """A line came from IRC, without its end."""
        # Checked here, too, since thousands may come at once: the node takes lines of these commands only.
        try:
            wanted = passes(line, E_RECV)
        except Exception as error:
            self.fault("IRC line", error)
            return
        if wanted:
            self.tell(self.node.irc_line, line)

    def irc_lost(self, reason: str) -> None:
        """The connection was lost, or could not be made."""
        self._watcher.happened("irc", f"lost: {reason}")
        self.tell(self.node.irc_lost)

    def may_speak(self) -> bool:
        """Whether the lease lasts at this moment; asked before each line leaves for IRC."""
        leader_term = self.node.heartbeat.leader_term
        return not self.over and leader_term is not None and clock.now() < leader_term.lease_until

    # Effects.

    def _carry_out_alone(self, effect: Effect) -> None:
        """Carry out an effect; a failure costs the effect alone, unless promises depend on it."""
        if isinstance(effect, effects.Persist | effects.ConnectIrc | effects.LeaveIrc):
            self._carry_out(effect)
            return
        try:
            self._carry_out(effect)
        except Exception as error:
            self.fault(f"{type(effect).__name__} of the node", error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.Transmit():
                self._transmit(effect)
            case effects.Dial(target):
                self._links.dial(target)
            case effects.CloseLink(number, reason):
                self._links.close(number, reason)
            case effects.Persist():
                self._persist(effect)
            case effects.Say(line, message):
                settle = partial(self._watcher.settled, message, line)
                if self._irc is None or not self._irc.say(line, settle):
                    settle(Fate(FateKind.UNSENT, "it cannot be sent"))
            case effects.ConnectIrc() if self._irc is not None:
                self._irc.connect()
            case effects.LeaveIrc(reason) if self._irc is not None:
                self._irc.leave(reason)
                self._watcher.happened("irc", f"left: {reason}")
            case effects.DeliverLine(term, idx, line):
                self._watcher.delivered(term, idx, line)
            case effects.Missed(term, first, last):
                self._watcher.happened(LINES_MISSED, f"term {term}, {first} to {last}")
            case effects.Refused(message, reason):
                self._watcher.happened(LINE_REFUSED, f"{message}: {reason}")
            case effects.RoleChanged(role, term, leader):
                self._watcher.changed(role, term, leader)

    def _transmit(self, effect: Transmit) -> None:
        try:
            data = encode(effect.message, attributes=effect.attributes)
        except MessageTooLong as error:
            self._watcher.happened("message dropped", str(error))
            return
        for number in effect.links:
            try:
                self._links.write(number, data)
            except Exception as error:
                self.fault(self._links.name(number), error)
                self._links.end(number, f"cannot be written to: {type(error).__name__}")

    # The store.

    def _persist(self, effect: Persist) -> None:
        """Give every row to the store, which may write several as one: each pledge must be on record."""
        self._writes.spawn(self._write(effect), "hydra writes")

    async def _write(self, effect: Persist) -> None:
        # The store's owner handles a row that can never be written: the node does not go on then.
        with contextlib.suppress(asyncio.CancelledError, StoreError):
            await self._store.write(effect.stored)
            self.tell(self.node.persisted, effect.number)
