"""Addresses that need a secret or certificates (docs/protocols/hydra.md, "Rejected links"). No I/O.

A client that reaches a node without them can join, send lines to IRC and stand for election. So such a node listens on
its own machine only, unless `--insecure` is given.
"""

from __future__ import annotations

from hydra.transports.address import FifoAddress, NodeAddress, TcpAddress, UdpAddress
from hydra.transports.base import TransportError, TransportOptions


def check_access(address: NodeAddress, options: TransportOptions) -> None:
    """Raise TransportError if a secret cannot protect this address, or unauthenticated clients could reach it."""
    if isinstance(address, UdpAddress) and options.secret:
        raise TransportError(
            f"{address}: a shared secret cannot protect datagrams, whose sender can be forged: use TCP"
        )
    if options.insecure or options.secret or isinstance(address, FifoAddress) or address.is_loopback:
        return
    if isinstance(address, TcpAddress):
        if options.server_tls is None:
            raise TransportError(
                f"{address}: any client that reaches it could join, speak on IRC and lead. Set BROKER_HYDRA_SECRET, or "
                "BROKER_HYDRA_TLS_CERT, _KEY and _CA, or say --insecure if only nodes can reach it"
            )
        return
    raise TransportError(
        f"{address}: no secret or certificate protects it: any client that reaches it could join, speak on IRC and "
        "lead. Use TCP with BROKER_HYDRA_SECRET or BROKER_HYDRA_TLS_CERT, or say --insecure if only nodes can reach it"
    )
