"""The interface of all transports: links that carry bytes, opened by dialling or by listening.

A node does not know a link's transport (docs/protocols/hydra.md, "Transports"). Bytes arrive in any pieces, which the
node's decoder splits into lines; a transport of datagrams hands over whole lines.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from hydra.irc.settings import IrcTimes
from queues.errors import BrokerError

logger = logging.getLogger(__name__)

#: Bytes that may wait for a neighbour that does not read; then the link is closed.
MAX_QUEUED: Final = 1024 * 1024


class TransportError(BrokerError):
    """A link or a listener could not be opened; the message says which, and why."""


class NothingSent(TransportError):
    """A client closed its connection without a byte, as health checks and port scans do."""


def log_fault(unit: str, error: Exception) -> None:
    """Log a unit of work that was given up for an unforeseen reason."""
    logger.error("%s was given up: %s", unit, error, exc_info=error)


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The options of all links of a node."""

    secret: bytes = b""
    """Shared by all nodes; empty: no proof is asked for."""
    server_tls: ssl.SSLContext | None = None
    """For accepted TCP links."""
    client_tls: ssl.SSLContext | None = None
    """For dialled TCP links."""
    insecure: bool = False
    """Whether the node may listen beyond loopback without a secret or TLS."""
    connect_timeout: float = 5.0
    """Seconds."""
    proof_timeout: float = 5.0
    """Seconds for the other side's proof of the secret."""
    idle: float = 30.0
    """Seconds of silence after which a link without a connection (UDP, IRC) ends."""
    irc: IrcTimes = field(default_factory=IrcTimes)
    """The pace of private messages."""
    fault: Callable[[str, Exception], None] = log_fault
    """Called for a unit of work that is given up for an unforeseen reason: its name, and the error."""


class Handler(NamedTuple):
    """What a link calls, in the event loop, and never after `closed`."""

    received: Callable[[bytes], None]
    """Bytes have come."""
    closed: Callable[[str], None]
    """The link has ended, not by `TransportLink.close`; the reason."""


class TransportLink(Protocol):
    """An open link."""

    @property
    def origin(self) -> str:
        """The remote address: an IP address without a port, or the transport's equivalent."""

    def write(self, data: bytes) -> None:
        """Send whole lines, without waiting. A full queue closes the link; the handler is called later."""

    def close(self) -> None:
        """End the link. Written bytes are still sent if that needs no waiting."""


#: Takes an open link; returns its handler, or None, which closes it.
Accept = Callable[[TransportLink], Handler | None]


class LinkListener(Protocol):
    """An acceptor of links."""

    address: str
    """What other nodes dial, with the real port."""

    async def close(self) -> None:
        """Accept no more links. Open links stay."""
