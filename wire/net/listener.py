"""The shared TCP listener: accepts connections for one wire protocol, within limits, and stops in order.

Connections are accepted here and not by asyncio's server, so that one that is over a limit or not allowed
costs one system call, and so that those still in their TLS handshake are counted too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from queues.log_throttle import FAULTS, LogThrottle
from wire.net.acceptor import Acceptor
from wire.net.address import HostPort, ip_address, is_allowed
from wire.net.connection import Connection, Session
from wire.net.limits import Closure, ConnectionLimits, ListenerOptions, ListenerStats, Refusal
from wire.net.process_group import Reservation, State
from wire.net.sockets import open_sockets

SessionFactory = Callable[[Connection], Session]

logger = logging.getLogger("wire.net.listener")

TLS_SHUTDOWN_TIMEOUT = 10.0
#: Seconds between two looks at the connections while stopping.
DRAIN_SWEEP = 0.1
#: Seconds between two lines about connections of one address that are closed for the same reason.
BLAMES = 60.0
#: Characters of what a client has done wrong.
MAX_WHY = 300
#: Seconds that a stop waits at most for the loop to report the end of aborted connections.
ABORT_GRACE = 1.0


class Listener:
    """Serves one wire protocol on one address.

    ``session_factory`` makes the session of each new connection. Listeners of one process share one
    ``limits``; without it the listener has its own, from ``options``. With ``reuse_port`` several processes
    may listen on the same port and the kernel spreads the connections; ``has_room`` tells whether a connection with
    this state may be taken over from another one of them. ``connections`` holds those that are open.
    """

    def __init__(
        self,
        name: str,
        address: HostPort,
        session_factory: SessionFactory,
        options: ListenerOptions,
        reuse_port: bool = False,
        limits: ConnectionLimits | None = None,
        has_room: Callable[[State], bool] = lambda state: True,
    ) -> None:
        self.name = name
        self.address = address
        self.session_factory = session_factory
        self.options = options
        self.reuse_port = reuse_port
        self.limits = limits or ConnectionLimits.of(options)
        self.has_room = has_room
        self.connections: set[Connection] = set()
        self.pause_reasons: set[str] = set()
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.stats = ListenerStats()
        self._acceptor: Acceptor
        self._admitted: set[Connection] = set()  # holds a place in the limits, perhaps still in its handshake
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._throttle = LogThrottle()
        self._blames = LogThrottle(BLAMES)
        self._faults = LogThrottle(*FAULTS)

    async def start(self) -> HostPort:
        """Listen, and return the address with the port that was bound. Raises :exc:`ListenError`."""
        self.loop = asyncio.get_running_loop()
        sockets = await open_sockets(self.name, self.address, self.reuse_port)
        self._acceptor = Acceptor(self.name, sockets, self._admit)
        self._schedule_sweep()
        return HostPort(self.address.host, self._acceptor.port)

    async def stop(self, drain_timeout: float) -> int:
        """Stop accepting, drain every session, abort those still there after ``drain_timeout`` seconds.

        Returns how many had to be aborted.
        """
        self.stopping = True
        if self._sweeper is None:  # never started
            return 0
        self._stop_accepting()
        self._schedule_sweep(min(DRAIN_SWEEP, self.options.sweep_interval()))
        for connection in list(self.connections):
            connection.drain()
        before = self.stats.closed[Closure.STOP_TIMEOUT]
        try:
            await self._all_gone(drain_timeout)
        finally:
            for connection in list(self.connections):
                connection.give_up()
            await self._all_gone(ABORT_GRACE)
            self._sweeper.cancel()
        return self.stats.closed[Closure.STOP_TIMEOUT] - before

    def use_certificates(self, tls: ssl.SSLContext | None) -> None:
        """Speak TLS as `tls` says from the next handshake on; connections that are open stay."""
        self.options = replace(self.options, tls=tls)

    def pause_all(self, reason: str) -> None:
        """Read from no connection, nor from new ones, until :meth:`resume_all` with the same reason."""
        self.pause_reasons.add(reason)
        for connection in self.connections:
            connection.pause_reading(reason)

    def resume_all(self, reason: str) -> None:
        """Take back a reason given to :meth:`pause_all`."""
        self.pause_reasons.discard(reason)
        for connection in self.connections:
            connection.resume_reading(reason)

    # Called by connections

    def connection_made(self, connection: Connection) -> bool:
        """Take a connection in; False if it came too late."""
        if self.stopping:
            return False  # its handshake has been cancelled, and is counted there
        self.stats.accepted += 1
        self.stats.current += 1
        self.connections.add(connection)
        return True

    def connection_lost(self, connection: Connection, closure: Closure) -> None:
        """Forget a connection."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.stats.current -= 1
            self.stats.closed[closure] += 1
        self._release(connection)

    def session_failed(self, where: str) -> bool:
        """A session raised what nothing foresaw: count that. Returns whether the log is to have it, which a client that
        knows how to cause it must not fill."""
        self.stats.failures += 1
        return self._faults.admit(where, self.loop.time()) > 0

    def report(self, closure: Closure, ip: str) -> None:
        """Log that a connection is ended for a limit that it shares with others; a second's together."""
        if count := self._throttle.admit(closure, self.loop.time()):
            logger.warning(
                "%s closed %d connection(s), the last from %s (%s)", self.name, count, ip, closure,
                extra={"listener": self.name, "address": ip, "reason": str(closure), "count": count},
            )  # fmt: skip

    def blame(self, closure: Closure, ip: str, why: str) -> None:
        """Log that a connection is ended for what its client did or left undone; those of a minute together."""
        if count := self._blames.admit(f"{closure} {ip}", self.loop.time()):
            logger.warning(
                "%s closed %d connection(s) from %s (%s): %s", self.name, count, ip, closure, why[:MAX_WHY],
                extra={"listener": self.name, "address": ip, "reason": str(closure), "count": count},
            )  # fmt: skip

    # Accepting

    def _admit(self, sock: socket.socket, ip: str, port: int) -> None:
        refusal = None if is_allowed(ip, self.options.allow) else Refusal.NOT_ALLOWED
        refusal = refusal or self.limits.acquire(ip)
        if refusal:
            sock.close()
            self._refuse(refusal, ip)
            return
        connection = Connection(self, (ip, port))
        self._admitted.add(connection)
        self._begin(sock, connection)

    def _begin(self, sock: socket.socket, connection: Connection) -> None:
        task = self.loop.create_task(self._adopt(sock, connection))
        self._handshakes[connection] = task
        task.add_done_callback(functools.partial(self._adopted, sock, connection))

    def reserve(self, sock: socket.socket, state: State) -> Reservation | None:
        """Count in a connection that another process offers; None if there is no room for it here."""
        try:
            host, port, *_ = sock.getpeername()
        except OSError:  # the client has gone meanwhile
            return None
        ip = str(ip_address(host))
        if self.stopping or not self.has_room(state) or self.limits.acquire(ip):
            return None
        connection = Connection(self, (ip, port))
        self._admitted.add(connection)
        return Reservation(
            functools.partial(self._begin_reserved, sock, connection),
            functools.partial(self._cancel_reserved, sock, connection),
        )

    def _begin_reserved(self, sock: socket.socket, connection: Connection, state: State, unread: bytes) -> None:
        sock.setblocking(False)
        connection.resume(state, unread)
        self._begin(sock, connection)

    def _cancel_reserved(self, sock: socket.socket, connection: Connection) -> None:
        sock.close()
        self._release(connection)

    async def _adopt(self, sock: socket.socket, connection: Connection) -> None:
        """Give the socket to the event loop; with TLS this takes as long as the handshake."""
        tls: dict[str, Any] = {}
        if self.options.tls is not None:
            tls = {"ssl": self.options.tls, "ssl_shutdown_timeout": TLS_SHUTDOWN_TIMEOUT}
            tls["ssl_handshake_timeout"] = self.options.handshake_timeout or None
        await self.loop.connect_accepted_socket(lambda: connection, sock, **tls)

    def _adopted(self, sock: socket.socket, connection: Connection, task: asyncio.Task[None]) -> None:
        del self._handshakes[connection]
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        sock.close()
        if connection not in self.connections:
            self._release(connection)
        if error is None:
            self.stats.refused[Refusal.STOPPING] += 1
        elif isinstance(error, OSError):
            self._refuse(Refusal.TLS_HANDSHAKE, connection.peer[0], str(error))
        else:
            logger.error(
                "%s: the connection could not be set up", connection.name, exc_info=error, extra=connection.log_fields
            )

    def _release(self, connection: Connection) -> None:
        if connection in self._admitted:
            self._admitted.remove(connection)
            self.limits.release(connection.peer[0])
        if not self._admitted:
            self._gone.set()

    def _refuse(self, refusal: Refusal, ip: str, detail: str = "") -> None:
        self.stats.refused[refusal] += 1
        count = self._throttle.admit(refusal, self.loop.time())
        if count:
            why = f"{refusal}: {detail}" if detail else refusal
            logger.warning(
                "%s refused %d connection(s), the last from %s (%s)", self.name, count, ip, why,
                extra={"listener": self.name, "address": ip, "reason": str(refusal), "count": count},
            )  # fmt: skip

    # Time and the end

    def _schedule_sweep(self, interval: float | None = None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        interval = interval or self.options.sweep_interval()
        self._sweeper = self.loop.call_later(interval, self._sweep, interval)

    def _sweep(self, interval: float) -> None:
        self._schedule_sweep(interval)
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check(now)

    def _stop_accepting(self) -> None:
        self._acceptor.close()
        for connection, task in self._handshakes.items():
            if connection not in self.connections:  # uvloop would drop an open one without connection_lost
                task.cancel()

    async def _all_gone(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._admitted:
                    self._gone.clear()
                    await self._gone.wait()
