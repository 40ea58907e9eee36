"""Links over TCP, UDP, named pipes and private messages on IRC (docs/protocols/hydra.md, "Transports").

`base` defines links, their handlers and listeners. Here an address' kind selects the module.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.transports.access import check_access
from hydra.transports.address import FifoAddress, IrcAddress, NodeAddress, TcpAddress, UdpAddress
from hydra.transports.base import Accept, LinkListener, TransportOptions
from hydra.transports.fifo import FifoListener, dial_fifo
from hydra.transports.tcp import dial_tcp, listen_tcp
from hydra.transports.udp import dial_udp, listen_udp

__all__ = ["check", "dial", "listen"]


def check(address: NodeAddress, options: TransportOptions) -> None:
    """Raise TransportError for an address that these options forbid to dial. `dial` checks it itself."""
    if isinstance(address, UdpAddress):
        check_access(address, options)


async def dial(
    address: NodeAddress, options: TransportOptions, opened: Accept, *, listeners: Sequence[LinkListener] = ()
) -> None:
    """Open a link; `opened` is called with it once it is ready and the other side has proved the secret.

    Links over UDP share the socket of a UDP listener among the node's `listeners`, and so come from its known port.
    Raises TransportError.
    """
    check(address, options)
    match address:
        case TcpAddress():
            await dial_tcp(address, options, opened)
        case UdpAddress():
            await dial_udp(address, options, opened, listeners=listeners)
        case FifoAddress():
            await dial_fifo(address, options, opened)
        case IrcAddress():
            # Only nodes with such a link need the IRC library.
            from hydra.transports.irc import dial_irc

            await dial_irc(address, options, opened)


async def listen(address: NodeAddress, options: TransportOptions, accept: Accept) -> LinkListener:
    """Listen; `accept` is called with each open link. Raises TransportError."""
    check_access(address, options)
    match address:
        case TcpAddress():
            return await listen_tcp(address, options, accept)
        case UdpAddress():
            return await listen_udp(address, options, accept)
        case FifoAddress():
            return FifoListener(address, options, accept)
        case IrcAddress():
            from hydra.transports.irc import listen_irc

            return await listen_irc(address, options, accept)
