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

It registers, joins the channels, answers PING, and sends lines in order, at the pace that the server bears. Lines that
wait when the connection ends are discarded.

A line with a `settle` callback is followed by a PING, and nothing more is sent until its PONG: what the server refuses
in between is that line. A server answers in order, so that the PONG shows that it has taken the line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from irc.client import Event  # type: ignore[import-untyped]

from hydra import clock
from hydra.irc.casemapping import fold
from hydra.irc.channels import Channels, ChannelState
from hydra.irc.events import MAX_TEXT, code_of, event_text, is_refusal, refusal_text
from hydra.irc.fates import SENT, Fate, FateKind, Settle
from hydra.irc.fitting import DoesNotFitError, OwnPrefix, fit
from hydra.irc.nicks import other_nicks
from hydra.irc.pace import Pace
from hydra.irc.sasl import Login, LoginFailed
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser
from hydra.irc.wire import MAX_LINE, Wire
from hydra.protocol.lines import MAX_IRC, command, targets
from queues.backoff import Backoff
from queues.log_throttle import LogThrottle

logger = logging.getLogger("hydra.irc")

#: Seconds within which a line counts as sent at once.
SOON: Final = 0.25
#: Seconds, and lines in them, about one thing that the server does.
WARNINGS: Final = 60.0, 10
#: What this client's PINGs ask to be repeated.
PING: Final = "hydra"
#: The numeric that tells a client its new host.
HIDDEN_HOST: Final = "396"


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
    on_joined: Callable[[], None] = lambda: None
    """The server has let this client into a channel."""
    may_speak: Callable[[], bool] = lambda: True
    """Asked before each line is sent; a line that may not be sent waits."""
    more: Callable[[], str | None] | None = None
    """Asked for a line whenever one could be sent and none waits. After None it must `drain` the connection."""


@dataclass(eq=False, slots=True)
class _Line:
    """A line to be sent, perhaps in parts, and what is known of its fate."""

    parts: deque[str]
    settle: Settle | None = None
    sent: int = 0
    """Parts that were written."""
    token: str = ""
    """The PING behind the last part."""
    refusal: str = ""

    def end(self, fate: Fate) -> None:
        """Tell what became of it."""
        if self.settle is not None:
            self.settle(fate)


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
        self._queue: deque[_Line] = deque()
        self._throttle = LogThrottle(*WARNINGS)
        #: The pauses before further attempts while the server refuses this client, and the next one.
        self._pauses = self._new_pauses()
        self._pause = 0.0

    def connect(self) -> None:
        """Begin to connect. Raises RuntimeError while an attempt lasts."""
        if self.state is not ConnectionState.ENDED:
            raise RuntimeError(f"there is a connection to {self._server} already")
        self.state = ConnectionState.CONNECTING
        self.wire = Wire(self)
        self.channels = Channels(self.user.channels)
        self._nicks = other_nicks(self.user.nick, self._rng)
        self._login = None if self.user.account is None else Login(self.user.account)
        self._prefix = OwnPrefix(f"~{self.user.username}")
        #: The line of which the server's answer is awaited.
        self._under_way: _Line | None = None
        #: PINGs that are not answered yet.
        self._pings: deque[str] = deque()
        self._barriers = 0
        self._pace = Pace(self.times.burst, self.times.interval)
        self._drain_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._join_timer: asyncio.TimerHandle | None = None
        self._barrier_timer: asyncio.TimerHandle | None = None
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
            await asyncio.sleep(self._pause)
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
        if self._login is not None and self.state is ConnectionState.REGISTERING and not self._log_in(event):
            return
        match event.type:
            case "ping":
                self._pong(event)
            case "pong":
                self._answered(event.arguments[-1] if event.arguments else event.target or "")
            case "error" if self.welcomed:
                self.lose(f"{self._server} closes the connection: {event_text(event)}")
            case "error":
                self._turned_away(f"{self._server} closes the connection: {event_text(event)}")
            case "welcome" if self.state is ConnectionState.REGISTERING:
                self._welcome()
            case "join" | "part" | "kick":
                self._moved(event)
            case "invite" if self.welcomed and self.channels.awaited(event.arguments):
                self._join_soon(0)
            case _ if is_refusal(event):
                self._refused(event)
            case _ if code_of(event) == HIDDEN_HOST and event.arguments:
                self._prefix.hidden(event.arguments[0])
        if event.source is not None and fold(getattr(event.source, "nick", "")) == fold(self.wire.own_nick):
            self._prefix.learn(event.source.user, event.source.host)
        if self._handlers.on_event is not None and self.welcomed:
            self._handlers.on_event(event)

    def _pong(self, event: Event) -> None:
        """Answer PING out of turn."""
        if self._may_send():
            self._pace.spend(clock.now())
            self.wire.send_raw(f"PONG :{event.target}")

    def _log_in(self, event: Event) -> bool:
        """Go on with the login; False if it has failed, and the connection is over."""
        assert self._login is not None
        try:
            for line in self._login.take(event):
                self.wire.send_raw(line)
        except LoginFailed as error:
            self._turned_away(f"{self._server}: no login: {error}")
            return False
        return True

    def _new_pauses(self) -> Iterator[float]:
        return Backoff(self.times.refused, self.times.refused_most).delays()

    def _turned_away(self, reason: str) -> None:
        """The server does not let this client in: the next attempts have longer and longer pauses."""
        self._pause = next(self._pauses)
        reason = f"{reason}; the next attempt is not before {self._pause:.0f} s"
        logger.error("%s", reason)
        self.lose(reason)

    def _welcome(self) -> None:
        self._pauses, self._pause = self._new_pauses(), 0.0
        if self._deadline is not None:
            self._deadline.cancel()
        self.state = ConnectionState.JOINING
        self._join()
        self._settle()

    def _refused(self, event: Event) -> None:
        if self.state is ConnectionState.REGISTERING:
            self._registration_refused(event)
            return
        words = [event.target or "", *event.arguments]
        if (channel := self.channels.refused(words, refusal_text(event))) is not None:
            self._warn("refuses JOIN", channel, event_text(event))
            self._settle()
        elif self._under_way is not None:
            self._under_way.refusal = self._under_way.refusal or refusal_text(event)

    def _registration_refused(self, event: Event) -> None:
        match event.type:
            case "nicknameinuse" | "nickcollision" | "unavailresource" if self.user.other_nicks:
                nick = next(self._nicks, None)
                if nick is None:
                    self._turned_away(f"all nicks like {self.user.nick} are in use on {self._server}")
                else:
                    self.wire.take_nick(nick)
            case "nicknameinuse" | "nickcollision" | "unavailresource":
                self._turned_away(f"the nick {self.user.nick} is in use on {self._server}")
            case "erroneusnickname" | "nonicknamegiven" | "passwdmismatch" | "yourebannedcreep" | "nopermforhost":
                self._turned_away(f"{self._server} refuses this client: {event_text(event)}")

    # Channels.

    def _warn(self, does: str, what: str, why: str = "") -> None:
        """Log what the server does, which it may do as often as it likes and in its own words."""
        if count := self._throttle.admit(does, clock.now()):
            times = f" ({count} times since the last line)" if count > 1 else ""
            logger.warning("%s %s %s%s%s", self._server, does, what, times, why and f": {why}")

    def _join(self) -> None:
        self._queue.extendleft(_Line(deque([each])) for each in reversed(self.channels.ask()))
        self._join_soon(self.times.join)
        self.drain()

    def _join_soon(self, seconds: float) -> None:
        """Ask for the channels that this client is not in earlier than otherwise."""
        if self._join_timer is not None:
            self._join_timer.cancel()
        self._join_timer = self.loop.call_later(seconds, self._join_again)

    def _join_again(self) -> None:
        for name in self.channels.give_up():
            self._warn("does not answer JOIN", name)
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
            self._handlers.on_joined()
        elif event.type == "part" and by == own:
            self.channels.change(event.target, ChannelState.LEFT)
        elif event.type == "kick" and event.arguments and fold(event.arguments[0]) == own:
            self._warn("has kicked this client out of", event.target, event_text(event))
            self.channels.change(event.target, ChannelState.REFUSED, f"kicked: {event_text(event)}"[:MAX_TEXT])
            self._join_soon(min(self.times.rejoin, self.times.join))

    def awaits(self, line: str) -> str | None:
        """Why a line has to wait: it is for a wanted channel that this client is not in at the moment."""
        if self.state is not ConnectionState.READY or command(line) == "JOIN":
            return None
        return self.channels.awaited(targets(line))

    # To the server.

    def say(self, line: str, settle: Settle | None = None) -> bool:
        """Send a line, now or soon. False if it is refused: not connected, too many lines wait, or it is no line.

        With `settle` the server's answer is awaited. It is called once with the line's fate, also of a line that does
        not fit, and text that is too long for one line is sent in several. Without it the line is sent as it is.
        """
        if self.state is not ConnectionState.READY or any(each in line for each in "\r\n\0"):
            return False
        if len(self._queue) >= self.times.queue:
            return False
        parts = [line]
        if settle is not None:
            try:
                parts = fit(line, self._prefix.size(self.nick), self.wire.features)
            except DoesNotFitError as error:
                settle(Fate(FateKind.REFUSED, str(error)))
                return True
        elif len(line.encode(errors="replace")) > MAX_IRC and not line.startswith("@"):
            self._warn("may cut lines of more than", f"{MAX_IRC} bytes")
        self._queue.append(_Line(deque(parts), settle))
        self.drain()
        return True

    def drain(self) -> None:
        """Send the lines that may be sent now."""
        if self._drain_timer is not None:
            return
        while self.welcomed and not self.wire.choked and self._under_way is None:
            now = clock.now()
            wait = self._pace.wait(now) if self._may_send() else SOON
            if wait > 0:
                self._drain_timer = self.loop.call_later(wait, self._drain_on)
                return
            line = self._next()
            if line is None:
                return
            self._pace.spend(now)
            self._send(line)

    def _send(self, line: _Line) -> None:
        """Write the next part of a line, and the PING behind it if its fate is asked for."""
        text = line.parts.popleft()
        line.sent += 1
        if line.settle is None:
            self.wire.send_raw(text)
            return
        self._barriers += 1
        line.token = f"{PING}-{self._barriers}"
        self._pings.append(line.token)
        self._under_way = line
        seconds = self.times.silence
        self._barrier_timer = self.loop.call_later(
            seconds, self.lose, f"{self._server} has not answered a PING for {seconds:g} s"
        )
        self.wire.send_raw(f"{text}\r\nPING :{line.token}")

    def _answered(self, token: str) -> None:
        """A PONG has come. Some servers do not repeat the token: the oldest PING is meant then."""
        if token in self._pings:
            while self._pings.popleft() != token:
                pass
        elif self._pings:
            self._pings.popleft()
        line = self._under_way
        if line is None or line.token in self._pings:
            return
        self._under_way = None
        if self._barrier_timer is not None:
            self._barrier_timer.cancel()
        if line.refusal:
            line.end(Fate(FateKind.REFUSED, line.refusal))
        elif line.parts:
            self._queue.appendleft(line)
        else:
            line.end(SENT)
        self.drain()

    def _drain_on(self) -> None:
        self._drain_timer = None
        self.drain()

    @property
    def has_room(self) -> bool:
        """Whether a line would be sent at once, or nearly so."""
        if self.state is not ConnectionState.READY or self._queue or self._under_way or not self._may_send():
            return False
        return self._pace.wait(clock.now()) <= SOON

    @property
    def waiting(self) -> int:
        """Lines that wait to be sent, or for the server's answer."""
        if self.state is ConnectionState.ENDED:
            return 0
        return len(self._queue) + self.wire.choked + (self._under_way is not None)

    def _may_send(self) -> bool:
        """Never to a server that does not read: only the kernel may hold sent lines, and few of them."""
        return not self.wire.choked and self._handlers.may_speak()

    def _next(self) -> _Line | None:
        if self._queue:
            return self._queue.popleft()
        more = self._handlers.more
        text = more() if more is not None and self.state is ConnectionState.READY else None
        return None if text is None else _Line(deque([text]))

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
                self._pings.append(PING)
                self.wire.send_raw(f"PING :{PING}")
        self._watch_timer = clock.call_at(self.loop, min(self._ping_at, self._heard + self.times.silence), self._watch)

    # The end.

    def lose(self, reason: str) -> None:
        """End the connection, and report why."""
        if self.state is not ConnectionState.ENDED:
            self._end(None, reason)
            self._handlers.on_lost(reason)

    def leave(self, reason: str) -> None:
        """Leave IRC, or stop connecting, before this returns (see `Wire.abort`). The reason goes with QUIT."""
        if self.state is not ConnectionState.ENDED:
            self._end(f"QUIT :{_one_line(reason)}" if self.welcomed else None, reason)

    def _end(self, farewell: str | None, reason: str) -> None:
        self.state = ConnectionState.ENDED
        lines = [*([self._under_way] if self._under_way else []), *self._queue]
        self._queue.clear()
        self._under_way = None
        for timer in (self._drain_timer, self._watch_timer, self._join_timer, self._deadline, self._barrier_timer):
            if timer is not None:
                timer.cancel()
        self.wire.abort(farewell)
        for line in lines:
            line.end(_unanswered(line, reason))
        if self._task is not asyncio.current_task(self.loop):
            self._task.cancel()


def _unanswered(line: _Line, reason: str) -> Fate:
    """The fate of a line for which no PONG has come."""
    if line.refusal:
        return Fate(FateKind.REFUSED, line.refusal)
    return Fate(FateKind.UNKNOWN if line.sent else FateKind.UNSENT, reason)


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:200]
