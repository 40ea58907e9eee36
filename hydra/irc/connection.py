"""One client's connection to an IRC server, such as the leader's (docs/protocols/hydra.md, "The bridge").

    handlers = IrcHandlers(on_connected=..., on_line=..., on_lost=..., on_fault=...)
    connection = IrcConnection(IrcServer("irc.example.net", 6667), IrcUser("hydra", ["#status"]), handlers)
    connection.connect()
    connection.say("PRIVMSG #status :hello")
    connection.leave("no majority has answered in time")

    ENDED --connect--> CONNECTING --> REGISTERING --welcome--> JOINING --all JOINs answered--> READY
    any --lost or left--> ENDED

All methods are synchronous and for the event loop's thread. Each `connect` begins one attempt, which ends once: by
`on_lost`, or by `leave`, after which nothing is sent and no handler is called. It does not reconnect by itself.

It registers, joins the channels, answers PING, and sends lines unchanged and in order, at the pace that the server
bears. Lines that wait when the connection ends are discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from irc.client import Event  # type: ignore[import-untyped]

from hydra import clock
from hydra.irc.channels import Channels, ChannelState, fold
from hydra.irc.events import event_text, is_refusal
from hydra.irc.nicks import other_nicks
from hydra.irc.pace import Pace
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser
from hydra.irc.wire import MAX_LINE, Wire
from hydra.protocol.lines import MAX_IRC

logger = logging.getLogger("hydra.irc")

#: Seconds within which a line counts as sent at once.
SOON: Final = 0.25


class ConnectionState(Enum):
    """The state of a connection."""

    CONNECTING = auto()
    REGISTERING = auto()
    """NICK and USER are sent; the server's welcome has not come."""
    JOINING = auto()
    """Some JOIN is not answered yet."""
    READY = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcHandlers:
    """The callbacks of a connection. They are called in the event loop."""

    on_connected: Callable[[], None]
    """Lines can be sent: each channel is joined or refused (the log says why)."""
    on_line: Callable[[str], None]
    """A line has come, without its end; bytes that are not UTF-8 are U+FFFD."""
    on_lost: Callable[[str], None]
    """The connection was lost or could not be made; the reason."""
    on_fault: Callable[[str, Exception], None]
    """A line was given up for an unforeseen reason: its name for logs, and the error."""
    on_event: Callable[[Event], None] | None = None
    """The `irc` package's event of a line, after `on_line`."""
    may_speak: Callable[[], bool] = lambda: True
    """Asked before each line is sent; a line that may not be sent waits."""
    more: Callable[[], str | None] | None = None
    """Asked for a line whenever one could be sent and none waits. After None it must `drain` the connection."""


class IrcConnection:
    """One client's connection to one server."""

    def __init__(self, server: IrcServer, user: IrcUser, handlers: IrcHandlers, times: IrcTimes | None = None) -> None:
        self.user = user
        self.times = times or IrcTimes()
        self._server = server
        self._handlers = handlers
        self.state = ConnectionState.ENDED
        self.loop = asyncio.get_running_loop()
        self._rng = Random()
        self._queue: deque[str] = deque()

    def connect(self) -> None:
        """Begin to connect. Raises RuntimeError while an attempt lasts."""
        if self.state is not ConnectionState.ENDED:
            raise RuntimeError(f"there is a connection to {self._server} already")
        self.state = ConnectionState.CONNECTING
        self.wire = Wire(self)
        self.channels = Channels(self.user.channels)
        self._nicks = other_nicks(self.user.nick, self._rng)
        self._pace = Pace(self.times.burst, self.times.interval)
        self._drain_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._join_timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._heard = self._ping_at = clock.now()
        self._task = self.loop.create_task(self._connect(self.wire))

    @property
    def welcomed(self) -> bool:
        """Whether the server has welcomed this client."""
        return self.state in (ConnectionState.JOINING, ConnectionState.READY)

    @property
    def nick(self) -> str:
        """The client's nick on the server, or before its welcome the wanted one."""
        return self.wire.own_nick if self.welcomed else self.user.nick

    async def _connect(self, wire: Wire) -> None:
        server, failure = self._server, ""
        try:
            async with asyncio.timeout(self.times.connect):
                await wire.register(server, self.user)
        except TimeoutError:
            failure = f"{server} does not answer for {self.times.connect:g} s"
        except (OSError, ValueError) as error:
            failure = f"{server} cannot be reached: {error}"
        if wire is not self.wire:  # another attempt has begun meanwhile
            return
        if failure:
            self.lose(failure)
        else:
            self._begin()

    def _begin(self) -> None:
        """Wait for the welcome: NICK and USER are sent."""
        if self.state is not ConnectionState.CONNECTING:
            return
        self.state = ConnectionState.REGISTERING
        self._heard = clock.now()
        self._ping_at = self._heard + self.times.ping
        seconds = self.times.register
        self._deadline = self.loop.call_later(
            seconds, self.lose, f"{self._server} has not welcomed this client for {seconds:g} s"
        )
        self._watch()

    # From the server (`wire.LineReceiver`).

    def line(self, line: str) -> None:
        """See `wire.LineReceiver`."""
        self._heard = clock.now()
        self._handlers.on_line(line)

    def too_long(self) -> None:
        """See `wire.LineReceiver`."""
        self.lose(f"{self._server} sends a line of more than {MAX_LINE} bytes")

    def ended(self, error: Exception | None) -> None:
        """See `wire.LineReceiver`."""
        server = self._server
        self.lose(f"the connection to {server} was lost: {error}" if error else f"{server} has closed the connection")

    def fault(self, unit: str, error: Exception) -> None:
        """See `wire.LineReceiver`."""
        self._handlers.on_fault(unit, error)

    def event(self, event: Event) -> None:
        """See `wire.LineReceiver`."""
        match event.type:
            case "ping":
                self._pong(event)
            case "error":
                self.lose(f"{self._server} closes the connection: {event_text(event)}")
            case "welcome" if self.state is ConnectionState.REGISTERING:
                self._welcome()
            case "join" | "part" | "kick":
                self._moved(event)
            case _ if is_refusal(event):
                self._refused(event)
        if self._handlers.on_event is not None and self.welcomed:
            self._handlers.on_event(event)

    def _pong(self, event: Event) -> None:
        """Answer PING out of turn."""
        if self._may_send():
            self._pace.spend(clock.now())
            self.wire.send_raw(f"PONG :{event.target}")

    def _welcome(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.state = ConnectionState.JOINING
        self._join()
        self._settle()

    def _refused(self, event: Event) -> None:
        if self.state is ConnectionState.REGISTERING:
            self._registration_refused(event)
        elif (channel := self.channels.refused([event.target or "", *event.arguments])) is not None:
            logger.warning("%s refuses JOIN %s: %s", self._server, channel, event_text(event))
            self._settle()

    def _registration_refused(self, event: Event) -> None:
        match event.type:
            case "nicknameinuse" | "nickcollision" | "unavailresource" if self.user.other_nicks:
                nick = next(self._nicks, None)
                if nick is None:
                    self.lose(f"all nicks like {self.user.nick} are in use on {self._server}")
                else:
                    self.wire.take_nick(nick)
            case "nicknameinuse" | "nickcollision" | "unavailresource":
                self.lose(f"the nick {self.user.nick} is in use on {self._server}")
            case "erroneusnickname" | "nonicknamegiven" | "passwdmismatch" | "yourebannedcreep" | "nopermforhost":
                self.lose(f"{self._server} refuses this client: {event_text(event)}")

    # Channels.

    def _join(self) -> None:
        self._queue.extendleft(reversed(self.channels.ask()))
        self._join_timer = self.loop.call_later(self.times.join, self._join_again)
        self.drain()

    def _join_again(self) -> None:
        for name in self.channels.give_up():
            logger.warning("%s does not answer JOIN %s", self._server, name)
        self._settle()
        if self.welcomed:
            self._join()

    def _settle(self) -> None:
        if self.state is ConnectionState.JOINING and self.channels.settled():
            self.state = ConnectionState.READY
            self._handlers.on_connected()

    def _moved(self, event: Event) -> None:
        own = fold(self.wire.own_nick)
        by = fold(getattr(event.source, "nick", ""))
        if event.type == "join" and by == own:
            self.channels.change(event.target, ChannelState.JOINED)
            self._settle()
        elif event.type == "part" and by == own:
            self.channels.change(event.target, ChannelState.LEFT)
        elif event.type == "kick" and event.arguments and fold(event.arguments[0]) == own:
            logger.warning("kicked out of %s on %s: %s", event.target, self._server, event_text(event))
            self.channels.change(event.target, ChannelState.REFUSED)

    # To the server.

    def say(self, line: str) -> bool:
        """Send a line, now or soon. False if it is refused: not connected, too many lines wait, or it is no line."""
        if self.state is not ConnectionState.READY or any(each in line for each in "\r\n\0"):
            return False
        if len(self._queue) >= self.times.queue:
            return False
        if len(line.encode(errors="replace")) > MAX_IRC and not line.startswith("@"):
            logger.warning("%s may cut a line of more than %d bytes", self._server, MAX_IRC)
        self._queue.append(line)
        self.drain()
        return True

    def drain(self) -> None:
        """Send the lines that may be sent now."""
        if self._drain_timer is not None:
            return
        while self.welcomed and not self.wire.choked:
            now = clock.now()
            wait = self._pace.wait(now) if self._may_send() else SOON
            if wait > 0:
                self._drain_timer = self.loop.call_later(wait, self._drain_on)
                return
            line = self._next()
            if line is None:
                return
            self._pace.spend(now)
            self.wire.send_raw(line)

    def _drain_on(self) -> None:
        self._drain_timer = None
        self.drain()

    @property
    def has_room(self) -> bool:
        """Whether a line would be sent at once, or nearly so."""
        if self.state is not ConnectionState.READY or self._queue or not self._may_send():
            return False
        return self._pace.wait(clock.now()) <= SOON

    @property
    def waiting(self) -> int:
        """Lines that wait to be sent."""
        return 0 if self.state is ConnectionState.ENDED else len(self._queue) + self.wire.choked

    def _may_send(self) -> bool:
        """Never to a server that does not read: only the kernel may hold sent lines, and few of them."""
        return not self.wire.choked and self._handlers.may_speak()

    def _next(self) -> str | None:
        if self._queue:
            return self._queue.popleft()
        more = self._handlers.more
        return more() if more is not None and self.state is ConnectionState.READY else None

    # Time.

    def _watch(self) -> None:
        """Check whether the server is alive."""
        now = clock.now()
        if now >= self._heard + self.times.silence:
            self.lose(f"{self._server} says nothing for {self.times.silence:g} s")
            return
        if now >= self._ping_at:
            self._ping_at = now + self.times.ping
            if self.welcomed and self._may_send():
                self.wire.send_raw("PING :hydra")
        self._watch_timer = clock.call_at(self.loop, min(self._ping_at, self._heard + self.times.silence), self._watch)

    # The end.

    def lose(self, reason: str) -> None:
        """End the connection, and report why."""
        if self.state is not ConnectionState.ENDED:
            self._end(None)
            self._handlers.on_lost(reason)

    def leave(self, reason: str) -> None:
        """Leave IRC, or stop connecting, before this returns (see `Wire.abort`). The reason goes with QUIT."""
        if self.state is not ConnectionState.ENDED:
            self._end(f"QUIT :{_one_line(reason)}" if self.welcomed else None)

    def _end(self, farewell: str | None) -> None:
        self.state = ConnectionState.ENDED
        self._queue.clear()
        for timer in (self._drain_timer, self._watch_timer, self._join_timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self.wire.abort(farewell)
        if self._task is not asyncio.current_task(self.loop):
            self._task.cancel()


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:200]
