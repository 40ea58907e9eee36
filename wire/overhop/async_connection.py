"""A connection to an Overhop broker on the running event loop, shared by any number of tasks.

An answer wakes only the task that waits for it, so that no task keeps another waiting. `AsyncClient` and the workers
use it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, again
from wire.client.links import AsyncLink
from wire.client.reconnecting import OnEvent, Reconnect
from wire.overhop.client_core import ClientCore, Reply
from wire.overhop.errors import OverhopError
from wire.overhop.requests import Quest, Request

T = TypeVar("T")


class AsyncConnection:
    """Requests of several tasks at once, answered in any order as far as they can tell."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float,
        max_envelope: int,
        tls: ssl.SSLContext | None,
        server_hostname: str | None,
        reconnect: Reconnect = False,
        resend: bool = False,
        on_event: OnEvent | None = None,
    ) -> None:
        """Nothing happens yet: `connect`."""
        self.core = ClientCore(timeout, max_envelope, resend)
        self.core.on_quest = self._keep
        self.core.on_lost = self._lost
        #: Set when there is no connection any more, and will be none; `error` says why.
        self.ended = asyncio.Event()
        self.error: ClientError = ConnectionLost("not connected")
        self._link = AsyncLink(
            self.core, host, port,
            timeout=timeout, tls=tls, server_hostname=server_hostname, reconnect=reconnect, on_event=on_event,
        )  # fmt: skip
        #: Set when a QUEST has come, or the connection has ended; then another takes its place.
        self._news = asyncio.Event()

    async def connect(self) -> None:
        """Connect and register, or raise OSError, OverhopError or ProtocolViolation."""
        await self._link.connect()

    async def ask(self, request: Request[T]) -> T:
        """Send a request and return its answer; a caller that is cancelled never learns it.

        Raises OverhopError if it is refused, ConnectionLost, ReplyTimeout or ProtocolViolation if the connection
        is over, Unencodable or MessageTooLarge if it was not sent at all.
        """
        await self._link.ready()
        reply = self.core.prepare(request)
        await self.settle([reply])
        try:
            return reply.result()
        except ProtocolViolation as violation:
            self._link.lose(violation)
            raise

    async def settle(self, replies: Sequence[Reply[Any]]) -> None:
        """Send prepared requests and wait for all answers, refusals too; raises if the connection is over."""
        await self._link.send(lambda: self.core.submit_all(replies))
        for reply in reversed(replies):  # when the last is answered, all are
            await self._until_done(reply)
            if reply.error is not None and not isinstance(reply.error, OverhopError):
                raise reply.error

    def post(self, request: Request[T]) -> Reply[T]:
        """Send a request without waiting: soon, together with others. Raises as `ask` if that cannot be."""
        self._check()
        reply = self.core.begin(request)
        self._link.send_soon()
        return reply

    async def send(self) -> None:
        """Send all of `outgoing`, and wait while the broker takes no more."""
        await self._link.send(lambda: None)

    async def next_quest(self, timeout: float | None) -> Quest | None:
        """Return the next QUEST, or None when the time is over."""
        quests = self.core.quests
        try:
            async with asyncio.timeout(timeout) as scope:
                while not quests:
                    self._check()
                    await self._news.wait()
        except TimeoutError:
            if not scope.expired():
                raise  # the broker was silent before, and the connection is over
        return quests.popleft() if quests else None

    async def close(self) -> None:
        """Disconnect when the broker has taken everything sent."""
        await self._link.close()

    def abort(self) -> None:
        """Close at once."""
        self._link.abort()

    def lose(self, error: ClientError) -> None:
        """End the connection because of an error."""
        self._link.lose(error)

    def _check(self) -> None:
        if self.ended.is_set():
            raise again(self.error)

    async def _until_done(self, reply: Reply[Any]) -> None:
        if reply.done:
            return
        done = asyncio.Event()
        reply.wake = done.set
        timeout, answered = self.core.timeout, -1
        while not reply.done:
            if answered == self.core.answered:
                self._link.lose(ReplyTimeout(f"no answer for {timeout} s"))  # which is this one's answer, or it goes on
            answered = self.core.answered
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await done.wait()

    def _keep(self, quest: Quest) -> None:
        self.core.quests.append(quest)
        self._tell()

    def _tell(self) -> None:
        """Wake all tasks in `next_quest`; the one that has waited longest looks first."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _lost(self, error: ClientError, final: bool) -> None:
        if final and not self.ended.is_set():
            self.error = error
            self.ended.set()
        self._tell()

