"""What every transport offers: links that carry bytes, opened by dialling or by listening.

A node does not know which transport a link has (docs/protocols/hydra.md, "Transports"). Bytes arrive in any pieces, and
lines are found by the node's decoder; a transport of datagrams hands over whole lines.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from hydra.irc.settings import IrcTimes

MAX_QUEUED: Final = 1024 * 1024
"""Bytes that may wait for a neighbour that does not read; then the link is closed."""


class TransportError(Exception):
    """A link could not be opened, or nothing can listen there. The message says why, and what was tried."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """What is the same for all links of a node."""

    secret: bytes = b""
    """Shared by all nodes; empty: none is asked for."""
    server_tls: ssl.SSLContext | None = None
    """For TCP links that are accepted."""
    client_tls: ssl.SSLContext | None = None
    """For TCP links that are dialled."""
    insecure: bool = False
    """Whether strangers may reach this node: without a secret or TLS, beyond loopback."""
    connect_timeout: float = 5.0
    """Seconds."""
    proof_timeout: float = 5.0
    """Seconds in which the other side has to prove that it knows the secret."""
    idle: float = 30.0
    """Seconds of silence after which a link without a connection (UDP, IRC) is over."""
    irc: IrcTimes = field(default_factory=IrcTimes)
    """How fast private messages may be sent."""


class Handler(Protocol):
    """What is done with what comes over a link. Called in the event loop, never after `closed`."""

    def received(self, data: bytes) -> None:
        """Bytes have come."""

    def closed(self, reason: str) -> None:
        """The link is over. Not called when `Link.close` was."""


class Link(Protocol):
    """An open link."""

    @property
    def origin(self) -> str:
        """Whence it was accepted, or where it leads to: an IP address without a port, or what there is instead."""

    def write(self, data: bytes) -> None:
        """Send whole lines; never waits. What cannot be queued closes the link, which is told to the handler later."""

    def close(self) -> None:
        """End it. What was written is still sent if that takes no waiting."""


Accept = Callable[[Link], Handler | None]
"""A link was opened: return who handles it, or None to refuse it (it is closed then)."""


class Listener(Protocol):
    """Something that accepts links."""

    @property
    def address(self) -> str:
        """Where it listens, in the form that others dial, with the real port."""

    async def close(self) -> None:
        """Accept nothing more. Links that are open go on."""
