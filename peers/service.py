"""The shared part of the peerbus connections of one process: the engine, which the first one starts, and counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import psycopg
from django.conf import settings

from queues.engine.api import Broker, Engine, EngineError, EngineOptions, StoreUnavailable
from queues.engine.api import options_from_settings as engine_options
from queues.log_throttle import FAULTS, LogThrottle
from queues.permissions.key_sessions import KeySessions
from queues.permissions.throttle import FailureThrottle

logger = logging.getLogger(__name__)

#: Seconds that an orderly stop has to write pending items.
STOP_TIMEOUT = 5.0


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Times are seconds, sizes bytes."""

    window_bytes: int = 2 << 20
    handshake_timeout: float = 10.0
    slow_timeout: float = 15.0
    max_connections: int = 10_000
    connections_per_key: int = 2000
    secret: str = ""


class ServedPeer(Protocol):
    """A connection, as the service calls it: `peers.session.PeerSession`."""

    def saturate(self, saturated: bool) -> None:
        """Too much of the process waits for the database, or no longer."""

    def revoke(self) -> None:
        """The connection's API key was changed or revoked."""


def options_from_settings() -> tuple[EngineOptions, PeerOptions]:
    """Read the options from Django's settings."""
    return engine_options("peerbus"), PeerOptions(
        window_bytes=settings.BROKER_PEERBUS_WINDOW_BYTES,
        handshake_timeout=settings.BROKER_PEERBUS_HANDSHAKE_TIMEOUT,
        slow_timeout=settings.BROKER_PEERBUS_SLOW_TIMEOUT,
        max_connections=settings.BROKER_MAX_CONNECTIONS,
        connections_per_key=settings.BROKER_MAX_CONNECTIONS_PER_KEY,
        secret=settings.PEERBUS_HMAC_SECRET,
    )


class PeerbusService:
    """One process's part of peerbus. `make_options` is called when the first connection comes."""

    def __init__(self, make_options: Callable[[], tuple[EngineOptions, PeerOptions]]) -> None:
        self._make_options = make_options
        self.options = PeerOptions()
        self.sessions: set[ServedPeer] = set()
        self.throttle = FailureThrottle()
        #: The number of times that each quota of a client was met.
        self.over_quota: Counter[str] = Counter()
        self._by_key = KeySessions[ServedPeer](self.over_quota)
        #: Frames that were dropped, by reason.
        self.ignored: Counter[str] = Counter()
        #: Connections that were closed, by reason.
        self.closed: Counter[str] = Counter()
        #: Exceptions that cost one connection.
        self.failures = 0
        self._faults = LogThrottle(*FAULTS)
        self.engine_now: Broker | None = None
        self._starting: asyncio.Task[Broker] | None = None

    async def engine(self) -> Broker:
        """The process's engine, started if need be. Raises StoreUnavailable, or another EngineError."""
        if self.engine_now is None:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start(), name="peerbus engine")
            await asyncio.shield(self._starting)
        assert self.engine_now is not None
        if not self.engine_now.available:
            raise StoreUnavailable()
        return self.engine_now

    async def _start(self) -> Broker:
        engine_options, _ = self._make_options()
        engine = Engine(replace(engine_options, mailboxes=True))
        try:
            await engine.start()
        except (EngineError, psycopg.Error, OSError) as error:
            logger.error("peerbus cannot start: %s", str(error).strip().split("\n")[0])
            raise error if isinstance(error, EngineError) else StoreUnavailable(str(error)) from error
        finally:
            self._starting = None
        engine.on_saturation.append(partial(self._saturate, engine.health.guard))
        engine.on_key_change.append(partial(self._key_changed, engine.health.guard))
        self.engine_now = engine
        return engine

    def session_failed(self, where: str) -> bool:
        """A session raised what nothing foresaw: count that. Returns whether the log is to have it."""
        self.failures += 1
        return self._faults.admit(where, time.monotonic()) > 0

    def admit(self, session: ServedPeer) -> bool:
        """A connection has come; False when there are too many."""
        if not self.sessions:
            _, self.options = self._make_options()
        if len(self.sessions) >= self.options.max_connections:
            return False
        self.sessions.add(session)
        return True

    def admit_key(self, key: int, session: ServedPeer) -> bool:
        """A connection has shown its API key; False when the key has too many."""
        return self._by_key.admit(key, session, self.options.connections_per_key)

    def forget(self, session: ServedPeer, key: int | None) -> None:
        """A connection has ended; `key` is the API key that it was admitted with."""
        self.sessions.discard(session)
        if key is not None:
            self._by_key.forget(key, session)

    async def stop(self) -> None:
        """Write pending items, hand back leased messages, and leave."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        engine, self.engine_now = self.engine_now, None
        if engine is not None:
            await engine.stop(STOP_TIMEOUT)

    def _saturate(self, guard: Callable[..., bool], saturated: bool) -> None:
        for session in tuple(self.sessions):
            guard("session", session, session.saturate, saturated)

    def _key_changed(self, guard: Callable[..., bool], key: int) -> None:
        for session in tuple(self._by_key.of(key)):
            guard("session", session, session.revoke)
