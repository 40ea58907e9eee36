"""How links are made: TCP, UDP, named pipes and private messages on IRC (docs/protocols/hydra.md, "Transports").

What a link is, and who is told what comes over it, is in `base`. Here an address' kind chooses the module.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.transports.access import check_access
from hydra.transports.address import Address, FifoAddress, IrcAddress, TcpAddress, UdpAddress
from hydra.transports.base import Accept, Listener, TransportOptions
from hydra.transports.fifo import dial_fifo, listen_fifo
from hydra.transports.tcp import dial_tcp, listen_tcp
from hydra.transports.udp import check_udp, dial_udp, listen_udp

__all__ = ["check", "dial", "listen"]


def check(address: Address, options: TransportOptions) -> None:
    """Raise TransportError for an address that can never be listened on or dialled with these options.

    `dial` and `listen` look at it themselves. This is for whoever wants to know it before they are called.
    """
    if isinstance(address, UdpAddress):
        check_udp(address, options)
        check_access(address, options)


async def dial(
    address: Address, options: TransportOptions, opened: Accept, *, listeners: Sequence[Listener] = ()
) -> None:
    """Open a link; `opened` is called with it, once it may be used and the other side has proved the secret.

    If one of the node's own `listeners` is for UDP, links over UDP share its socket, and so come from the port that
    others know. Raises TransportError when no link could be opened.
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
            # Only a node with such a link needs a library for IRC.
            from hydra.transports.irc import dial_irc

            await dial_irc(address, options, opened)


async def listen(address: Address, options: TransportOptions, accept: Accept) -> Listener:
    """Listen; `accept` is called with each link that is opened. Raises TransportError."""
    check_access(address, options)
    match address:
        case TcpAddress():
            return await listen_tcp(address, options, accept)
        case UdpAddress():
            return await listen_udp(address, options, accept)
        case FifoAddress():
            return await listen_fifo(address, options, accept)
        case IrcAddress():
            from hydra.transports.irc import listen_irc

            return await listen_irc(address, options, accept)
