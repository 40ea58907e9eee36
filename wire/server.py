"""One process's engine and its listeners, started and stopped together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from queues.engine import Engine
from queues.throttle import FailureThrottle
from wire.listener import Listener

SATURATED = "engine"


class Revocable(Protocol):
    """A session that an API key has opened."""

    def revoke(self) -> None:
        """The key was revoked or changed: end the connection."""


class Server:
    """What the sessions of one process share."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.throttle = FailureThrottle()
        self.listeners: list[Listener] = []
        #: Messages that a protocol without answers could not keep, by reason.
        self.lost_publishes: Counter[str] = Counter()
        self._by_key: dict[int, set[Revocable]] = {}
        engine.on_saturation.append(self._saturate)
        engine.on_key_change.append(self._key_changed)

    def admit(self, key: int, session: Revocable) -> None:
        """Remember which key opened a session."""
        self._by_key.setdefault(key, set()).add(session)

    def forget(self, key: int, session: Revocable) -> None:
        """The session has ended."""
        sessions = self._by_key.get(key, set())
        sessions.discard(session)
        if not sessions:
            self._by_key.pop(key, None)

    def _key_changed(self, key: int) -> None:
        for session in tuple(self._by_key.get(key, ())):
            session.revoke()

    def _saturate(self, saturated: bool) -> None:
        for listener in self.listeners:
            act: Callable[[str], None] = listener.pause_all if saturated else listener.resume_all
            act(SATURATED)

    async def start(self, listeners: Iterable[Listener]) -> None:
        """Start listening; the engine runs already. Raises wire.listener.ListenError."""
        for listener in listeners:
            await listener.start()
            self.listeners.append(listener)

    async def stop(self, timeout: float) -> None:
        """Drain every connection, then the engine; at most about `timeout` seconds."""
        await asyncio.gather(*(listener.stop(timeout * 0.5) for listener in self.listeners))
        await self.engine.stop(timeout * 0.5)
