"""A connection to IRC under test: what was called is kept, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from hydra.irc.connection import IrcConnection, IrcHandlers
from hydra.irc.settings import IrcAccount, IrcServer, IrcTimes, IrcUser
from hydra.transports.base import log_fault
from tests.waiting import PATIENCE, Changes

FAST = IrcTimes(interval=0)
"""As the defaults, but as fast as the server reads."""


class Client:
    """One connection and what it has told."""

    made: ClassVar[list[Client]] = []
    """All of this test."""

    def __init__(
        self, server: Any, nick: str = "alpha", *channels: str, times: IrcTimes = FAST,
        on_line: Callable[[str], None] | None = None, may_speak: Callable[[], bool] = lambda: True,
        password: str = "", tls: Any = None, account: IrcAccount | None = None, **changed: Any,
    ) -> None:  # fmt: skip
        self.made.append(self)
        self.lines: list[str] = []
        self.losses: list[str] = []
        self.connections = 0
        self._on_line = on_line
        self._changed = Changes()
        self.connection = IrcConnection(
            IrcServer(server.host, server.port, tls, password),
            IrcUser(nick, channels, account=account),
            IrcHandlers(
                on_connected=self._connected, on_line=self._line, on_lost=self._lost, may_speak=may_speak,
                on_fault=log_fault,
            ),
            replace(times, **changed),
        )

    def _connected(self) -> None:
        self.connections += 1
        self._changed.notify()

    def _line(self, line: str) -> None:
        self.lines.append(line)
        self._changed.notify()
        if self._on_line is not None:
            self._on_line(line)

    def _lost(self, reason: str) -> None:
        self.losses.append(reason)
        self._changed.notify()

    async def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is so; return what the condition gives then."""
        return await self._changed.until(condition)

    async def connected(self) -> Client:
        """Connect, and wait until lines can be said."""
        before = self.connections
        self.connection.connect()
        await self.wait_for(lambda: self.losses or self.connections > before)
        assert not self.losses
        return self

    async def lost(self) -> str:
        """The reason why the connection was lost."""
        await self.wait_for(lambda: self.losses)
        (reason,) = self.losses
        return reason

    async def line(self, *parts: str) -> str:
        """The first line that has all of these in it."""
        return str(await self.wait_for(lambda: next((x for x in self.lines if all(p in x for p in parts)), None)))

    def say(self, *lines: str) -> None:
        """Say lines, which the connection takes."""
        for line in lines:
            assert self.connection.say(line), line

    async def settled(self, to: Client) -> None:
        """Wait until all that was said before has come to another client: a mark follows it."""
        mark = f"mark-{len(to.lines)}"
        self.say(f"PRIVMSG {to.connection.nick} :{mark}")
        await to.line(f":{mark}")

    async def sees_gone(self, nick: str) -> None:
        """Wait until the server says that a nick is free."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self.lines.clear()
                self.say(f"ISON {nick}")
                if (await self.line(" 303 ")).endswith(" :"):
                    return

    async def acknowledged(self) -> None:
        """Wait until the server's kernel has confirmed all that was sent."""
        async with asyncio.timeout(PATIENCE):
            while self.connection.wire.unsent:
                await asyncio.sleep(0.005)

    @property
    def descriptor(self) -> int:
        """That of the socket."""
        assert self.connection.wire.transport is not None
        return int(self.connection.wire.transport.get_extra_info("socket").fileno())

    @property
    def told(self) -> tuple[int, int, int]:
        """Counts of the callbacks made: lines, losses, connections."""
        return len(self.lines), len(self.losses), self.connections
