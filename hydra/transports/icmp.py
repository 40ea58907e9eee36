"""The addresses that have refused a datagram, as ICMP reports them for an unconnected socket.

Linux reports them on request (ip(7), IP_RECVERR). On other systems none is reported, and links to addresses without a
listener end by their silence.
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
#: The beginning of struct sock_extended_err.
_ERRNO: Final = struct.Struct("=I")
_ANCILLARY_SIZE: Final = 512


def ask_for_refusals(sock: socket.socket) -> None:
    """Queue refusals for `take_refusals`; the socket raises ConnectionRefusedError once for each."""
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)  # over an IPv6 socket, too, there may be IPv4
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)


def take_refusals(sock: socket.socket) -> list[Any]:
    """Return, once, the addresses that have refused datagrams, as the socket gives them."""
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
