"""What the sessions of all protocols have in common: their replies, requests that block, handing over, and the end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from queues.engine.api import Broker
from queues.permissions.rules import Protocol
from wire.framing import FrameReader
from wire.net.connection import Connection, contained
from wire.net.limits import Closure
from wire.net.process_group import ProcessGroup, State
from wire.replies import Replies

BLOCKED: Final = "session"
#: Seconds between two looks whether a session that is to end has come to its end.
LOOK: Final = 0.005


class WireSession(ABC):
    """The server's side of one connection.

    A request that cannot be answered at once blocks the session: it reads nothing, keeps the messages behind, and goes
    on from there. A session that drains closes its connection when nothing is under way and all replies are out.
    """

    _decoder: FrameReader[Any]

    def __init__(self, connection: Connection, engine: Broker, protocol: Protocol) -> None:
        self.connection = connection
        self._engine = engine
        self._replies = Replies(engine, connection)
        self._loop = asyncio.get_running_loop()
        #: Messages behind the one that blocks, and the bytes of the reads that these came in.
        self._behind: list[Any] = []
        self._behind_bytes = 0
        self._blocked = False
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self._closer: asyncio.TimerHandle | None = None
        self.client = engine.clients.add(protocol, connection.address, self)

    def _run(self, received: list[Any]) -> None:
        """Handle messages; of a protocol that has requests that block."""
        raise NotImplementedError

    @abstractmethod
    def _at_work(self) -> bool:
        """Whether something is under way that is not to be cut off by the end."""

    def _is_waiting(self) -> bool:
        """Whether a request that blocks has left something to be waited for."""
        return False

    @abstractmethod
    def holds(self) -> tuple[int, int]:
        """Messages that the client has not acknowledged, and the bytes that the connection keeps."""

    @abstractmethod
    def consumes(self) -> dict[int, int]:
        """The queues that the client consumes from, and its unacknowledged messages of each."""

    @contained
    def disconnect(self) -> None:
        """An operator ends the connection."""
        self.connection.abort(Closure.OPERATOR)

    @contained
    def revoke(self) -> None:
        """The API key that has opened it was revoked or changed: end the connection at once."""
        self.connection.abort()

    # Blocking.

    def _block(self, work: Coroutine[Any, Any, None]) -> None:
        """Handle nothing and read nothing until this is done."""
        self._start_blocking()
        self._task = self._loop.create_task(self._do(work))

    def _start_blocking(self) -> None:
        self._blocked = True
        self.connection.pause_reading(BLOCKED)

    async def _do(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.connection.failed("a request")
            return
        self._task = None
        if not self._is_waiting():
            self._unblock()

    @contained
    def _unblock(self) -> None:
        """Go on with the messages behind."""
        if self.connection.is_closing:
            return
        self._blocked = False
        behind, self._behind = self._behind, []
        self._run(behind)
        if not self._blocked:
            self.connection.resume_reading(BLOCKED)

    async def _hand_over(
        self, group: ProcessGroup, owner: int, state: State, unhandled: Callable[[], Iterable[bytes]]
    ) -> bool:
        """Let another process go on with the connection, if it takes it; `unhandled` gives the messages behind."""
        connection, decoder = self.connection, self._decoder
        self._replies.flush()
        if self._replies.waiting or self._draining or decoder.error or not await connection.is_portable():
            return False

        def unread() -> bytes:
            return b"".join((*unhandled(), decoder.rest))

        moved = await group.give(owner, connection.fileno(), connection.listener.name, state, unread)
        if moved:
            connection.let_go()
        return moved

    # The end.

    @contained
    def _close_when_done(self) -> None:
        """Close if the session drains, once nothing is under way."""
        if self._closer is not None:
            self._closer.cancel()
        if self._draining and (self._at_work() or self._replies.waiting):
            self._closer = self._loop.call_later(LOOK, self._close_when_done)
        elif self._draining:
            self.connection.close()

    def _leave(self) -> None:
        """The connection is gone."""
        self._draining = False
        self._behind = []
        if self._task is not None:
            self._task.cancel()
        self._replies.discard()
        self._engine.clients.remove(self.client)
