"""One process's engine and its listeners, started and stopped together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from queues.engine.api import Broker
from queues.permissions.key_sessions import KeySessions
from queues.permissions.throttle import FailureThrottle
from wire.net.listener import Listener
from wire.net.process_group import ProcessGroup, State
from wire.session import WireSession
from wire.unconfirmed import UnconfirmedByClient

SATURATED = "engine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quotas:
    """Limits for one client: connections of an API key, bytes that are published and not durable."""

    connections_per_key: int = 2000
    pending_bytes: int = 16 << 20


async def ensure_queue(engine: Broker, name: str) -> None:
    """Make a queue with the engine's defaults if there is none of this name. Raises StoreUnavailable."""
    if await engine.look_up("queue_id", name=name):
        return
    defaults = {each: getattr(engine.options, each) for each in ("max_attempts", "retry_backoff", "ack_timeout")}
    await engine.request("ensure_queue", name=name, **defaults)


class Server:
    """State that the sessions of one process share."""

    def __init__(self, engine: Broker, quotas: Quotas | None = None) -> None:
        self.engine = engine
        self.quotas = quotas or Quotas()
        #: The number of times that each quota was met.
        self.over_quota: Counter[str] = Counter()
        self.unconfirmed = UnconfirmedByClient(engine, self.quotas.pending_bytes, self.over_quota)
        self.throttle = FailureThrottle()
        self.listeners: list[Listener] = []
        #: The other processes of this `runwire`, if there are any.
        self.process_group: ProcessGroup | None = None
        #: Messages that a protocol without answers could not keep, by reason.
        self.lost_publishes: Counter[str] = Counter()
        self.by_key = KeySessions[WireSession](self.over_quota)
        engine.on_saturation.append(self._saturate)
        engine.on_key_change.append(self._key_changed)

    def admit(self, key: int, session: WireSession) -> bool:
        """Remember which key opened a session; False, and nothing is remembered, when it has opened too many."""
        return self.by_key.admit(key, session, self.quotas.connections_per_key)

    def has_room(self, state: State) -> bool:
        """Whether the key of a BlipMQ connection that is handed over may open one more session."""
        return len(self.by_key.of(state["grant"])) < self.quotas.connections_per_key

    def _key_changed(self, key: int) -> None:
        for session in tuple(self.by_key.of(key)):
            self.engine.health.guard("session", session, session.revoke)

    def _saturate(self, saturated: bool) -> None:
        for listener in self.listeners:
            act: Callable[[str], None] = listener.pause_all if saturated else listener.resume_all
            act(SATURATED)

    async def stop(self, timeout: float) -> None:
        """Drain every connection, then the engine; at most about `timeout` seconds."""
        await asyncio.gather(*(listener.stop(timeout * 0.5) for listener in self.listeners))
        await self.engine.stop(timeout * 0.5)
