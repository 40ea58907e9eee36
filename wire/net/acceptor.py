"""Accepting connections on listening sockets: a few at a time, and after a rest when the process can have no more."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from wire.net.address import ip_address

logger = logging.getLogger(__name__)

#: Connections accepted in one go, so that a storm of them does not starve those that are being served.
ACCEPT_BATCH = 64
#: Seconds to wait when the process or the machine has no file descriptors left.
ACCEPT_RETRY = 1.0
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Hands over each accepted socket, with the IP address and the port of its other side, until it is closed."""

    def __init__(
        self, name: str, sockets: list[socket.socket], admit: Callable[[socket.socket, str, int], None]
    ) -> None:
        self._name = name
        self._sockets = sockets
        self._admit = admit
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        for sock in sockets:
            self._loop.add_reader(sock, self.accept, sock)

    @property
    def port(self) -> int:
        """The port of the first socket."""
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept nothing more."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()

    def accept(self, server: socket.socket) -> None:
        """Accept what waits on one of the sockets."""
        for _ in range(ACCEPT_BATCH):
            try:
                sock, peer = server.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self._rest(server, error)
                    return
                continue  # this one client is gone already
            self._admit(sock, str(ip_address(peer[0])), peer[1])

    def _rest(self, server: socket.socket, error: OSError) -> None:
        logger.error("%s accepts nothing for %g s: %s", self._name, ACCEPT_RETRY, error.strerror)
        self._loop.remove_reader(server)
        self._retries[server] = self._loop.call_later(ACCEPT_RETRY, self._wake, server)

    def _wake(self, server: socket.socket) -> None:
        del self._retries[server]
        self._loop.add_reader(server, self.accept, server)
