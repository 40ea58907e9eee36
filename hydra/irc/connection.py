"""The leader's connection to IRC (docs/protocols/hydra.md, "The bridge").

    handlers = IrcHandlers(on_connected=..., on_line=..., on_lost=...)
    connection = IrcConnection(IrcServer("irc.example.net", 6667), IrcUser("hydra", ["#status"]), handlers)
    connection.connect()
    connection.say("PRIVMSG #status :hello")
    connection.leave("no majority has answered in time")

All methods are synchronous and for the event loop's thread. Each `connect` begins one attempt, which ends once: by
`on_lost`, or by `leave`, after which nothing is sent and no handler is called. It does not reconnect by itself.

Lines are sent unchanged and in order, at the pace that the server bears. Lines that wait when the connection ends are
discarded.
"""

from __future__ import annotations

from hydra.irc.attempt import Attempt, AttemptState, IrcHandlers
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser


class IrcConnection:
    """One client's connection to one server."""

    def __init__(self, server: IrcServer, user: IrcUser, handlers: IrcHandlers, times: IrcTimes | None = None) -> None:
        self.server = server
        self.user = user
        self.times = times or IrcTimes()
        self._handlers = handlers
        self._attempt: Attempt | None = None

    @property
    def state(self) -> AttemptState:
        """The state of the present attempt; ENDED if there is none."""
        return self._attempt.state if self._attempt is not None else AttemptState.ENDED

    @property
    def nick(self) -> str:
        """The client's nick on the server, or before its welcome the wanted one."""
        attempt = self._attempt
        return attempt.wire.own_nick if attempt is not None and attempt.welcomed else self.user.nick

    @property
    def has_room(self) -> bool:
        """Whether a line would be sent at once, or nearly so."""
        return self._attempt is not None and self._attempt.has_room

    @property
    def waiting(self) -> int:
        """Lines that wait to be sent."""
        return 0 if self._attempt is None else self._attempt.waiting

    def connect(self) -> None:
        """Begin to connect. Raises RuntimeError while an attempt lasts."""
        if self._attempt is not None:
            raise RuntimeError(f"there is a connection to {self.server} already")
        self._attempt = Attempt(self.server, self.user, self.times, self._handlers, self._ended)

    def say(self, line: str) -> bool:
        """Send a line, now or soon. False if it is refused: not connected, too many lines wait, or it is no line."""
        return self._attempt is not None and self._attempt.say(line)

    def wake(self) -> None:
        """`IrcHandlers.more` has lines again."""
        if self._attempt is not None:
            self._attempt.drain()

    def leave(self, reason: str) -> None:
        """Leave IRC, or stop connecting, before this returns (see `Wire.abort`). The reason goes with QUIT."""
        if self._attempt is not None:
            self._attempt.leave(reason)

    def _ended(self) -> None:
        self._attempt = None
