"""Runs a node: what happens goes in, what it asks for is carried out.

docs/protocols/hydra.md, "The node and its driver".

Events are taken one after the other, also those that come while the effects of another are carried out. The driver
knows neither a database nor Django: `Disk`, `Irc` and `Watcher` are what its surroundings offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from hydra import clock
from hydra.errors import StoreError
from hydra.protocol.codec import MessageTooLong, encode
from hydra.protocol.effects import (
    Changed,
    CloseLink,
    ConnectIrc,
    Deliver,
    Dial,
    Effect,
    LeaveIrc,
    Missed,
    Persist,
    Refused,
    Say,
    Stored,
    Transmit,
)
from hydra.protocol.lines import E_RECV, passes
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.transports import dial, listen
from hydra.transports.address import Address, parse_address
from hydra.transports.base import Link, Listener, TransportError, TransportOptions
from wire.limits import LogThrottle

logger = logging.getLogger(__name__)

LONGEST_SLEEP: Final = 60.0
#: Seconds between two reports of faults of a kind.
FAULTS: Final = 60.0
PIECE: Final = 4096
"""Bytes that a node is handed at once."""


class Disk(Protocol):
    """Where a node's row is."""

    async def write(self, stored: Stored) -> None:
        """Return when it is committed; wait as long as the database is away.

        Raises StoreError for what can never be written; whoever made the disk hears of it, too, and stops the driver.
        """


class Irc(Protocol):
    """The leader's connection to IRC; it answers with `Driver.irc_connected`, `irc_line` and `irc_lost`."""

    def connect(self) -> None:
        """Begin to connect."""

    def say(self, line: str) -> bool:
        """Send a line; False if it cannot be sent, and never will be."""

    def leave(self, reason: str) -> None:
        """Be off IRC when this returns: nothing more is sent, and nothing more is called."""


class Watcher(Protocol):
    """Who is told what a node does. None of it may wait."""

    def changed(self, role: Role, term: int, leader: int | None) -> None:
        """Role, term or leader are others now."""

    def delivered(self, term: int, idx: int, line: str) -> None:
        """A line came from IRC."""

    def happened(self, kind: str, text: str) -> None:
        """Something that an operator may want to know."""

    def failed(self, error: Exception) -> None:
        """The node has a fault, is silent now, and cannot go on."""


class _Neighbour:
    """What comes over one link."""

    __slots__ = ("_driver", "number")

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self.number = number

    def received(self, data: bytes) -> None:
        self._driver.received(self.number, data)

    def closed(self, reason: str) -> None:
        self._driver.lost(self.number, reason)


class _Event(NamedTuple):
    """What is to be told to the node."""

    call: Callable[..., list[Effect]]
    args: tuple[Any, ...]
    unit: str = ""
    """Whose unit of work it is, for a log, if others chose what is in it: then it may fail alone."""
    link: int | None = None
    """The link that it came over, which ends with it."""


class Driver:
    """One node in an event loop."""

    def __init__(self, node: Node, options: TransportOptions, disk: Disk, irc: Irc | None, watcher: Watcher) -> None:
        self.node = node
        self.listeners: list[Listener] = []
        self._options = options
        self._disk = disk
        self._irc = irc
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, Link] = {}
        self._unopened: set[int] = set()
        self._last_number = 0
        self._events: deque[_Event] = deque()
        self._at_work = False
        self.over = False
        """Whether nothing is said any more."""
        self._timer: asyncio.TimerHandle | None = None
        self._dialling: set[asyncio.Task[None]] = set()
        self._dialled_now: set[str] = set()
        """Targets of the dials under way: a neighbour takes every link that is opened to it."""
        self._unreachable: set[str] = set()
        """What could not be dialled the last time: said once."""
        self._writes: set[asyncio.Task[None]] = set()
        self.faults = 0
        """Units of work that were given up for an unforeseen reason."""
        self._throttle = LogThrottle(FAULTS)

    # Life.

    async def start(self, listen_on: Iterable[Address]) -> None:
        """Listen, and begin. Raises TransportError when an address cannot be listened on; then nothing was begun."""
        try:
            for address in listen_on:
                self.listeners.append(await listen(address, self._options, self._accept))
        except BaseException:
            await self._close_listeners()
            raise
        self.tell(self.node.start)

    async def leave(self) -> None:
        """Stop in order: leave IRC, tell the others, close everything."""
        self.tell(self.node.leave)
        # What was said goes out before the links close: transports send what needs no waiting.
        await self.abandon("the node stops")

    async def abandon(self, reason: str) -> None:
        """Stop at once: say nothing more to anybody."""
        self.silence(reason)
        await self._close_listeners()
        tasks = [*self._dialling, *self._writes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def silence(self, reason: str) -> None:
        """Be off IRC and off the network when this returns."""
        if self.over:
            return
        self.over = True
        if self._irc is not None:
            self._irc.leave(reason)
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._events.clear()

    async def _close_listeners(self) -> None:
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            await listener.close()

    # Events.

    def tell(self, event: Callable[..., list[Effect]], *args: Any) -> None:
        """Something has happened: an event of the node, and what it takes after the time.

        One that raises is a fault of the node: it is silent from then on, and `Watcher.failed` is told.
        """
        self._tell(_Event(event, args))

    def tell_of(self, unit: str, event: Callable[..., list[Effect]], *args: Any, link: int | None = None) -> None:
        """The same of what others have chosen. One that raises costs itself, and the link that it came over."""
        self._tell(_Event(event, args, unit, link))

    def _tell(self, event: _Event) -> None:
        if self.over:
            return
        self._events.append(event)
        if self._at_work:
            return
        self._at_work = True
        try:
            while self._events:
                for effect in self._handle(self._events.popleft()):
                    self._carry_out_alone(effect)
        except Exception as error:  # nobody knows any more what it has promised
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
            self._fault(event.unit, error)
            if event.link is not None:
                self._end_link(event.link, f"a fault in what came over it: {type(error).__name__}")
            return []

    def _fault(self, unit: str, error: Exception) -> None:
        """A unit of work has failed for an unforeseen reason: it is given up, the others go on."""
        self.faults += 1
        kind = type(error).__name__
        if count := self._throttle.admit(f"{unit.partition(' ')[0]} {kind}", clock.now()):
            logger.error("%s was given up, one of %d: %s", unit, count, error, exc_info=error)
            self._watcher.happened("fault", f"{unit} was given up: {kind}: {error}")

    def _end_link(self, number: int, reason: str) -> None:
        self._close(number, reason)
        self.tell(self.node.link_closed, number)

    def _sleep(self) -> None:
        if self.over:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = clock.now()
        self._timer = clock.call_at(self._loop, min(max(self.node.deadline, now), now + LONGEST_SLEEP), self._wake)

    def _wake(self) -> None:
        self.tell(self.node.tick)

    def irc_connected(self) -> None:
        """Registered, and in all channels."""
        self._watcher.happened("irc", "connected")
        self.tell(self.node.irc_connected)

    def irc_line(self, line: str) -> None:
        """A line came from IRC, without its end."""
        # Looked at before, since thousands may come at once: the node takes what passes in any case.
        try:
            wanted = passes(line, E_RECV)
        except Exception as error:
            self._fault("an IRC line", error)
            return
        if wanted:
            self.tell(self.node.irc_line, line)

    def irc_lost(self, reason: str) -> None:
        """The connection was lost, or could not be made."""
        self._watcher.happened("irc", f"lost: {reason}")
        self.tell(self.node.irc_lost)

    def may_speak(self) -> bool:
        """Whether the lease lasts at this very moment; to be asked before each line leaves for IRC."""
        reign = self.node.termtime.reign
        return not self.over and reign is not None and clock.now() < reign.lease_until

    # Links.

    def _accept(self, link: Link) -> _Neighbour | None:
        if self.over:
            return None
        return self._open(link, None)

    def _dialled(self, target: str, link: Link) -> _Neighbour | None:
        return None if self.over else self._open(link, target)

    def _open(self, link: Link, target: str | None) -> _Neighbour:
        self._last_number += 1
        neighbour = _Neighbour(self, self._last_number)
        self._links[neighbour.number] = link
        self._unopened.add(neighbour.number)
        self._watcher.happened("link opened", f"to {target}" if target is not None else f"from {link.origin}")
        # The transport is still opening the link: what is said at once goes out when it has.
        self._loop.call_soon(self._opened, neighbour.number, target, link.origin)
        return neighbour

    def _opened(self, number: int, target: str | None, origin: str) -> None:
        self._unopened.discard(number)
        if number in self._links:
            self.tell(lambda now: self.node.link_opened(now, number, target=target, origin=origin))

    def received(self, number: int, data: bytes) -> None:
        """Bytes came over a link."""
        if number in self._unopened:
            self._loop.call_soon(self.received, number, data)
            return
        # In pieces: whatever a neighbour floods this node with, heartbeats go out in time.
        for start in range(0, len(data), PIECE):
            if (link := self._links.get(number)) is None:
                return
            piece = data[start : start + PIECE]
            self.tell_of(f"link {number} with {link.origin}", self.node.data_received, number, piece, link=number)

    def lost(self, number: int, reason: str) -> None:
        """A link was closed by the other side, or lost."""
        if self._links.pop(number, None) is not None:
            self._watcher.happened("link closed", reason)
            self.tell(self.node.link_closed, number)

    async def _dial(self, target: str) -> None:
        try:
            opened = partial(self._dialled, target)
            await dial(parse_address(target), self._options, opened, listeners=self.listeners)
        except (TransportError, OSError) as error:
            if target not in self._unreachable:
                self._unreachable.add(target)
                self._watcher.happened("link failed", f"to {target}: {error}")
            self.tell(self.node.dial_failed, target)
        else:
            self._unreachable.discard(target)
        finally:
            self._dialled_now.discard(target)

    # Effects.

    def _carry_out_alone(self, effect: Effect) -> None:
        """Carry out an effect; what fails costs that one, unless it is one of those that promises rest on."""
        if isinstance(effect, Persist | ConnectIrc | LeaveIrc):
            self._carry_out(effect)
            return
        try:
            self._carry_out(effect)
        except Exception as error:
            self._fault(f"{type(effect).__name__} of the node", error)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Transmit():
                self._transmit(effect)
            case Dial(target) if target not in self._dialled_now:
                self._dialled_now.add(target)
                self._keep(self._loop.create_task(self._dial(target), name=f"hydra dials {target}"))
            case CloseLink(number, reason):
                self._close(number, reason)
            case Persist():
                self._persist(effect)
            case ConnectIrc():
                if self._irc is not None:
                    self._irc.connect()
            case LeaveIrc(reason):
                if self._irc is not None:
                    self._irc.leave(reason)
                    self._watcher.happened("irc", f"left: {reason}")
            case Say(line, message):
                if self._irc is None or not self._irc.say(line):
                    self._watcher.happened("line lost", f"{message} cannot be said: {line[:200]}")
            case Deliver(term, idx, line):
                self._watcher.delivered(term, idx, line)
            case Missed(term, first, last):
                self._watcher.happened("lines missed", f"term {term}, {first} to {last}")
            case Refused(message, reason):
                self._watcher.happened("line refused", f"{message}: {reason}")
            case Changed(role, term, leader):
                self._watcher.changed(role, term, leader)

    def _transmit(self, effect: Transmit) -> None:
        try:
            data = encode(effect.message, attributes=effect.attributes)
        except MessageTooLong as error:
            self._watcher.happened("message dropped", str(error))
            return
        for number in effect.links:
            link = self._links.get(number)
            if link is None:
                continue
            try:
                link.write(data)
            except Exception as error:
                self._fault(f"link {number} with {link.origin}", error)
                self._end_link(number, f"cannot be written to: {type(error).__name__}")

    def _close(self, number: int, reason: str) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._watcher.happened("link closed", reason)
            link.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    # The disk.

    def _persist(self, effect: Persist) -> None:
        """Every row is handed to the disk, which may write several as one: each pledge is to be on record."""
        task = self._loop.create_task(self._write(effect), name="hydra writes")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, effect: Persist) -> None:
        # Why a row can never be written is told elsewhere: the node does not go on then.
        with contextlib.suppress(asyncio.CancelledError, StoreError):
            await self._disk.write(effect.stored)
            self.tell(self.node.persisted, effect.number)
