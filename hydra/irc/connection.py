"""The leader's connection to IRC (docs/protocols/hydra.md, "The bridge").

    connection = IrcConnection(IrcServer("irc.example.net", 6667), IrcUser("hydra", ["#status"]), on_connected=...,
                               on_line=..., on_lost=...)
    connection.connect()
    connection.say("PRIVMSG #status :hello")
    connection.leave("no majority has answered in time")

Everything is synchronous and in the event loop. Each `connect` begins one attempt, which ends once: by `on_lost`, or by
`leave`, after which nothing is sent and nothing is called any more. It never connects again by itself.

What is said goes out as it is, in order, at the pace that servers bear; what waits when the connection ends is
forgotten, and never said on another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Final

from hydra import clock
from hydra.irc.channels import Channels, fold
from hydra.irc.nicks import other_nicks
from hydra.irc.pace import Pace
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser
from hydra.irc.wire import MAX_LINE, Wire
from hydra.protocol.lines import MAX_IRC

if TYPE_CHECKING:
    from irc.client import Event  # type: ignore[import-untyped]

logger = logging.getLogger("hydra.irc")

SOON: Final = 0.25
"""Seconds: hardly a wait."""


class State(Enum):
    """Where an attempt stands."""

    CONNECTING = auto()
    REGISTERING = auto()
    """NICK and USER are sent; the server has not welcomed this client yet."""
    JOINING = auto()
    """Some JOIN is not answered yet."""
    READY = auto()
    ENDED = auto()


class IrcConnection:
    """One client's connection to one server."""

    def __init__(
        self,
        server: IrcServer,
        user: IrcUser,
        times: IrcTimes | None = None,
        *,
        on_connected: Callable[[], None],
        on_line: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_event: Callable[[Event], None] | None = None,
        may_speak: Callable[[], bool] = lambda: True,
        more: Callable[[], str | None] | None = None,
    ) -> None:
        """`on_connected` is called when lines can be said: each channel is joined, or refused (the log tells why).

        `on_line` gets every line that comes, without its end and otherwise unaltered, but that bytes which are not
        UTF-8 are U+FFFD. `on_lost` gets the reason when the connection is lost or could not be made. `on_event` gets
        what the `irc` package understands of a line, after `on_line`. `may_speak` is asked before each line is sent;
        what may not be sent goes on waiting. `more` is asked for a line whenever one could be sent and none waits;
        after it has had none, call `wake`.
        """
        self.server = server
        self.user = user
        self.times = times or IrcTimes()
        self.on_connected = on_connected
        self.on_line = on_line
        self.on_lost = on_lost
        self.on_event = on_event
        self.may_speak = may_speak
        self.more = more
        self._attempt: _Attempt | None = None

    @property
    def state(self) -> State:
        """Where the connection stands; ENDED also if there never was one."""
        return self._attempt.state if self._attempt is not None else State.ENDED

    @property
    def nick(self) -> str:
        """The nick that this client has on the server, or would like to have."""
        attempt = self._attempt
        return attempt.wire.own_nick if attempt is not None and attempt.welcomed else self.user.nick

    @property
    def has_room(self) -> bool:
        """Whether a line would leave at once, or nearly so."""
        return self._attempt is not None and self._attempt.has_room

    @property
    def waiting(self) -> int:
        """Lines that were said and have not left yet."""
        return 0 if self._attempt is None else self._attempt.waiting

    def connect(self) -> None:
        """Begin to connect. Raises RuntimeError if that has happened already and has not ended."""
        if self._attempt is not None:
            raise RuntimeError(f"there is a connection to {self.server} already")
        self._attempt = _Attempt(self)

    def say(self, line: str) -> bool:
        """Send a line, now or soon. False if that cannot be: it will not be sent then.

        A line is refused while there is no connection, when too many wait already, and if it is none.
        """
        return self._attempt is not None and self._attempt.say(line)

    def wake(self) -> None:
        """`more` has lines again."""
        if self._attempt is not None:
            self._attempt.drain()

    def leave(self, reason: str) -> None:
        """Be off IRC, or stop connecting, before this returns: see `Wire.abort`. The reason goes with QUIT."""
        if self._attempt is not None:
            self._attempt.leave(reason)

    def ended(self) -> None:
        """The attempt is over. For the attempt itself to call."""
        self._attempt = None


class _Attempt:
    """From one `connect` to its end."""

    def __init__(self, connection: IrcConnection) -> None:
        self.connection = connection
        self.times = connection.times
        self.state = State.CONNECTING
        self.loop = asyncio.get_running_loop()
        self.wire = Wire(self)
        self.channels = Channels(connection.user.channels)
        self._rng = Random()
        self._nicks = other_nicks(connection.user.nick, self._rng)
        self._pace = Pace(self.times.burst, self.times.interval)
        self._queue: deque[str] = deque()
        self._drain_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._join_timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._heard = self._ping_at = clock.now()
        self._task = self.loop.create_task(self._connect())

    @property
    def welcomed(self) -> bool:
        """Whether this client is on the network."""
        return self.state in (State.JOINING, State.READY)

    async def _connect(self) -> None:
        server = self.connection.server
        try:
            async with asyncio.timeout(self.times.connect):
                await self.wire.register(server, self.connection.user)
        except TimeoutError:
            self.lose(f"{server} does not answer for {self.times.connect:g} s")
        except (OSError, ValueError) as error:
            self.lose(f"{server} cannot be reached: {error}")
        else:
            self._begin()

    def _begin(self) -> None:
        """The server is connected, and was told who this is."""
        if self.state is not State.CONNECTING:
            return
        self.state = State.REGISTERING
        self._heard = clock.now()
        self._ping_at = self._heard + self.times.ping
        seconds = self.times.register
        self._deadline = self.loop.call_later(
            seconds, self.lose, f"{self.connection.server} has not welcomed this client for {seconds:g} s"
        )
        self._watch()

    # What comes.

    def line(self, line: str) -> None:
        """See `wire.Owner`."""
        self._heard = clock.now()
        self.connection.on_line(line)

    def too_long(self) -> None:
        """See `wire.Owner`."""
        self.lose(f"{self.connection.server} sends a line of more than {MAX_LINE} bytes")

    def ended(self, error: Exception | None) -> None:
        """See `wire.Owner`."""
        server = self.connection.server
        self.lose(f"the connection to {server} was lost: {error}" if error else f"{server} has closed the connection")

    def writable(self) -> None:
        """See `wire.Owner`."""
        self.drain()

    def event(self, event: Event) -> None:
        """See `wire.Owner`."""
        match event.type:
            case "ping":
                self._pong(event)
            case "error":
                self.lose(f"{self.connection.server} closes the connection: {words(event)}")
            case "welcome" if self.state is State.REGISTERING:
                self._welcome()
            case "join" | "part" | "kick":
                self._moved(event)
            case _ if is_refusal(event):
                self._refused(event)
        if self.connection.on_event is not None and self.welcomed:
            self.connection.on_event(event)

    def _pong(self, event: Event) -> None:
        """Answer out of turn."""
        if self._may_send():
            self._pace.spend(clock.now())
            self.wire.send_raw(f"PONG :{event.target}")

    def _welcome(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.state = State.JOINING
        self._join()
        self._settle()

    def _refused(self, event: Event) -> None:
        if self.state is State.REGISTERING:
            self._registration_refused(event)
        elif (channel := self.channels.refused([event.target or "", *event.arguments])) is not None:
            logger.warning("%s does not let us into %s: %s", self.connection.server, channel, words(event))
            self._settle()

    def _registration_refused(self, event: Event) -> None:
        match event.type:
            case "nicknameinuse" | "nickcollision" | "unavailresource" if self.connection.user.other_nicks:
                nick = next(self._nicks, None)
                if nick is None:
                    self.lose(f"all nicks like {self.connection.user.nick} are in use on {self.connection.server}")
                else:
                    self.wire.take_nick(nick)
            case "nicknameinuse" | "nickcollision" | "unavailresource":
                self.lose(f"the nick {self.connection.user.nick} is in use on {self.connection.server}")
            case "erroneusnickname" | "nonicknamegiven" | "passwdmismatch" | "yourebannedcreep" | "nopermforhost":
                self.lose(f"{self.connection.server} refuses this client: {words(event)}")

    # Channels.

    def _join(self) -> None:
        self._queue.extendleft(reversed(self.channels.ask()))
        self._join_timer = self.loop.call_later(self.times.join, self._join_again)
        self.drain()

    def _join_again(self) -> None:
        for name in self.channels.give_up():
            logger.warning("%s does not answer JOIN %s", self.connection.server, name)
        self._settle()
        if self.welcomed:
            self._join()

    def _settle(self) -> None:
        if self.state is State.JOINING and self.channels.settled():
            self.state = State.READY
            self.connection.on_connected()

    def _moved(self, event: Event) -> None:
        own = fold(self.wire.own_nick)
        by = fold(getattr(event.source, "nick", ""))
        if event.type == "join" and by == own:
            self.channels.joined(event.target)
            self._settle()
        elif event.type == "part" and by == own:
            self.channels.left(event.target)
        elif event.type == "kick" and event.arguments and fold(event.arguments[0]) == own:
            logger.warning("kicked out of %s on %s: %s", event.target, self.connection.server, words(event))
            self.channels.removed(event.target)

    # What goes.

    def say(self, line: str) -> bool:
        """See `IrcConnection.say`."""
        if self.state is not State.READY or any(each in line for each in "\r\n\0"):
            return False
        if len(self._queue) >= self.times.queue:
            return False
        if len(line.encode(errors="replace")) > MAX_IRC and not line.startswith("@"):
            logger.warning("%s may cut a line of more than %d bytes", self.connection.server, MAX_IRC)
        self._queue.append(line)
        self.drain()
        return True

    def drain(self) -> None:
        """Send what may be sent now."""
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
        """See `IrcConnection.has_room`."""
        if self.state is not State.READY or self._queue or not self._may_send():
            return False
        return self._pace.wait(clock.now()) <= SOON

    @property
    def waiting(self) -> int:
        """See `IrcConnection.waiting`."""
        return len(self._queue) + self.wire.choked

    def _may_send(self) -> bool:
        """Not to a server that does not read: only the kernel may hold what was sent, and not much of it."""
        return not self.wire.choked and self.connection.may_speak()

    def _next(self) -> str | None:
        if self._queue:
            return self._queue.popleft()
        more = self.connection.more
        return more() if more is not None and self.state is State.READY else None

    # Time.

    def _watch(self) -> None:
        """Look whether the server lives."""
        now = clock.now()
        if now >= self._heard + self.times.silence:
            self.lose(f"{self.connection.server} says nothing for {self.times.silence:g} s")
            return
        if now >= self._ping_at:
            self._ping_at = now + self.times.ping
            if self.welcomed and self._may_send():
                self.wire.send_raw("PING :hydra")
        self._watch_timer = clock.call_at(self.loop, min(self._ping_at, self._heard + self.times.silence), self._watch)

    # The end.

    def lose(self, reason: str) -> None:
        """The connection is of no use any more."""
        if self.state is not State.ENDED:
            self._end(None)
            self.connection.on_lost(reason)

    def leave(self, reason: str) -> None:
        """See `IrcConnection.leave`."""
        self._end(f"QUIT :{_one_line(reason)}" if self.welcomed else None)

    def _end(self, farewell: str | None) -> None:
        self.state = State.ENDED
        self._queue.clear()
        for timer in (self._drain_timer, self._watch_timer, self._join_timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self.wire.abort(farewell)
        if self._task is not asyncio.current_task(self.loop):
            self._task.cancel()
        self.connection.ended()


def is_refusal(event: Event) -> bool:
    """Whether an event is one of the numerics that refuse something."""
    code = getattr(event.type, "code", "")
    return len(code) == 3 and code.isdigit() and code[0] in "45"


def words(event: Event) -> str:
    """What the server says, for people."""
    return " ".join(event.arguments) or event.target or "no reason given"


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:200]
