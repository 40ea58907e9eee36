"""Where a node may be reached by strangers (docs/protocols/hydra.md, "Rejected links"). No I/O.

A client that reaches a node without a secret or certificates can join, say lines on IRC and stand for election. So such
a node keeps to its own machine, unless it is told otherwise.
"""

from __future__ import annotations

from ipaddress import ip_address

from hydra.transports.address import Address, FifoAddress, TcpAddress
from hydra.transports.base import TransportError, TransportOptions


def check_access(address: Address, options: TransportOptions) -> None:
    """Raise TransportError if strangers could reach this node at, or from, an address."""
    if options.insecure or options.secret or isinstance(address, FifoAddress) or is_loopback(address.host):
        return
    if isinstance(address, TcpAddress):
        if options.server_tls is None:
            raise TransportError(
                f"{address}: anybody who reaches it could join, speak on IRC and lead. Set BROKER_HYDRA_SECRET, or "
                "BROKER_HYDRA_TLS_CERT, _KEY and _CA, or say --insecure if only nodes can reach it"
            )
        return
    raise TransportError(
        f"{address}: no secret or certificate protects it, and anybody who reaches it could join, speak on IRC and "
        "lead. Use TCP with BROKER_HYDRA_SECRET or BROKER_HYDRA_TLS_CERT, or say --insecure if only nodes can reach it"
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone, by its address or as `localhost`; any other name may be everywhere."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
