"""Which addresses have refused a datagram: what ICMP reports for a socket that is not connected.

Linux tells it, to those who ask for it (ip(7), IP_RECVERR). Elsewhere nobody is ever reported, and links to addresses
where nobody listens end by their silence.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from typing import Any, Final

_IP_RECVERR: Final = 11
_IPV6_RECVERR: Final = 25
_MSG_ERRQUEUE: Final = 0x2000
_ERRNO: Final = struct.Struct("=I")
"""How struct sock_extended_err begins."""
_ANCILLARY_SIZE: Final = 512


def ask_for_refusals(sock: socket.socket) -> None:
    """From now on refusals are queued for `take_refusals`; the socket raises ConnectionRefusedError once for each."""
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)  # over an IPv6 socket, too, there may be IPv4
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)


def take_refusals(sock: socket.socket) -> list[Any]:
    """Return the addresses that have refused datagrams, as the socket gives them, and forget them."""
    refused: list[Any] = []
    while sys.platform == "linux":
        try:
            _, ancillary, _, remote = sock.recvmsg(0, _ANCILLARY_SIZE, _MSG_ERRQUEUE)
        except OSError:
            break  # there are no more
        for _, _, data in ancillary:
            if len(data) >= _ERRNO.size and _ERRNO.unpack_from(data)[0] == errno.ECONNREFUSED:
                refused.append(remote)
    return refused
