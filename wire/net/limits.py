"""A listener's limits and counters. No I/O."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from wire.net.address import Network, ip_address

MIB = 1024 * 1024


class Refusal(StrEnum):
    """The reason for turning a connection away before its session began."""

    NOT_ALLOWED = "not_allowed"
    MAX_CONNECTIONS = "max_connections"
    MAX_CONNECTIONS_PER_ADDRESS = "max_connections_per_address"
    TLS_HANDSHAKE = "tls_handshake"
    STOPPING = "stopping"


class Closure(StrEnum):
    """The reason for the end of a connection that had a session."""

    PEER = "peer"
    RESET = "reset"
    SESSION = "session"
    #: The client's bytes are not the protocol's, or out of turn.
    PROTOCOL = "protocol"
    #: A message was not stored, and the protocol has no other answer.
    UNSTORED = "unstored"
    SESSION_ERROR = "session_error"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    MAX_UNAUTHENTICATED = "max_unauthenticated"
    PARTIAL_BYTES = "partial_bytes"
    IDLE_TIMEOUT = "idle_timeout"
    WRITE_TIMEOUT = "write_timeout"
    STOPPED = "stopped"
    STOP_TIMEOUT = "stop_timeout"
    OPERATOR = "operator"
    #: Another process of the same `runwire` goes on with it.
    HANDED_OVER = "handed_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """The limits of one listener. Times are in seconds; 0 switches a limit off.

    ``allow`` lists the networks that may connect; empty means all. ``idle_timeout`` closes a connection
    on which nothing moved in either direction, unless its session allows silence. ``write_timeout`` aborts
    a client that takes nothing of a full write buffer (``write_high_water`` bytes). The first four are of all
    listeners that share a ``ConnectionLimits``.
    """

    max_connections: int = 10_000
    max_connections_per_address: int = 0
    max_unauthenticated: int = 0
    partial_bytes: int = 0
    handshake_timeout: float = 10.0
    idle_timeout: float = 0.0
    write_timeout: float = 60.0
    write_high_water: int = MIB
    allow: tuple[Network, ...] = ()
    tls: ssl.SSLContext | None = None

    def sweep_interval(self) -> float:
        """Seconds between two looks at the connections: a quarter of the shortest limit, 10 ms to 1 s."""
        limits = [t for t in (self.handshake_timeout, self.idle_timeout, self.write_timeout) if t]
        return max(0.01, min([1.0, *(t / 4 for t in limits)]))


@dataclass(slots=True)
class ListenerStats:
    """The counters of one listener since it was made. ``current`` is a gauge; ``failures`` counts exceptions of
    sessions that nothing foresaw."""

    accepted: int = 0
    failures: int = 0
    current: int = 0
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    closed: dict[Closure, int] = field(default_factory=lambda: dict.fromkeys(Closure, 0))


class LimitedConnection(Protocol):
    """A connection as the limits see it."""

    @property
    def is_stranger(self) -> bool:
        """Whether its handshake is not complete."""

    def evict(self, closure: Closure) -> None:
        """End the connection, which is over a limit."""


#: A stranger that holds fewer bytes goes no sooner than others.
FEW_BYTES = 1024


@dataclass(eq=False)
class ConnectionLimits:
    """The limits of open connections, altogether and from one address, and of the bytes that they may hold.

    One object is shared by all listeners of a process. An IPv6 client counts by its /64 network, which is
    what one site gets and can choose addresses from freely. 0 means no limit.
    """

    max_connections: int = 0
    max_connections_per_address: int = 0
    max_unauthenticated: int = 0
    partial_bytes: int = 0
    #: Open connections, and the bytes that they hold.
    total: int = 0
    held: int = 0
    _by_client: dict[str | int, int] = field(default_factory=dict)
    _strangers: dict[LimitedConnection, None] = field(default_factory=dict)
    _held_by: dict[LimitedConnection, int] = field(default_factory=dict)

    @classmethod
    def of(cls, options: ListenerOptions) -> ConnectionLimits:
        """Return the limits that ``options`` give."""
        return cls(
            options.max_connections, options.max_connections_per_address, options.max_unauthenticated,
            options.partial_bytes,
        )  # fmt: skip

    def hold(self, client: LimitedConnection, count: int) -> None:
        """``client`` holds ``count`` bytes from now on: of frames not complete yet, or not handled yet.

        Over the limit those with most are evicted, strangers before others, until a sixteenth of it is free.
        """
        limit = self.partial_bytes
        self.held += count - self._held_by.pop(client, 0)
        if count:
            self._held_by[client] = count
        if not limit or self.held <= limit:
            return
        for hungry in sorted(self._held_by, key=self._hunger, reverse=True):
            if self.held <= limit - limit // 16:
                return
            self.held -= self._held_by.pop(hungry)
            hungry.evict(Closure.PARTIAL_BYTES)

    def _hunger(self, client: LimitedConnection) -> tuple[bool, int]:
        count = self._held_by[client]
        return client.is_stranger and count >= FEW_BYTES, count

    @property
    def unauthenticated(self) -> int:
        """Connections whose handshake is not complete."""
        return len(self._strangers)

    def meet(self, client: LimitedConnection) -> None:
        """A connection begins its handshake; if too many do, the one that has been at it longest is evicted.

        The caller must call :meth:`know` when the handshake is complete or the connection gone.
        """
        self._strangers[client] = None
        if self.max_unauthenticated and len(self._strangers) > self.max_unauthenticated:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.evict(Closure.MAX_UNAUTHENTICATED)

    def know(self, client: LimitedConnection) -> None:
        """A connection is no stranger any more, or gone."""
        self._strangers.pop(client, None)

    def acquire(self, ip: str) -> Refusal | None:
        """Count a connection from ``ip`` in; if a limit forbids it, count nothing and return which one.

        After None the caller must call :meth:`release` once when the connection is gone.
        """
        if self.max_connections and self.total >= self.max_connections:
            return Refusal.MAX_CONNECTIONS
        client = _client_key(ip)
        count = self._by_client.get(client, 0)
        if self.max_connections_per_address and count >= self.max_connections_per_address:
            return Refusal.MAX_CONNECTIONS_PER_ADDRESS
        self._by_client[client] = count + 1
        self.total += 1
        return None

    def release(self, ip: str) -> None:
        """Count out a connection that :meth:`acquire` let in."""
        client = _client_key(ip)
        count = self._by_client[client] - 1
        if count:
            self._by_client[client] = count
        else:
            del self._by_client[client]
        self.total -= 1


def _client_key(ip: str) -> str | int:
    return ip if ":" not in ip else int(ip_address(ip)) >> 64
