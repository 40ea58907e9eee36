"""A client's connection over its whole life, however often it has to be made again: blocking, and for asyncio.

A link drives a `ResumableProtocol` over one driver after the other. Operations are given as functions that begin them,
since one that may be repeated begins again on the next connection. What such a function raises by itself is the
operation's result, and no end of the connection.
"""

import asyncio
import contextlib
import functools
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol

from wire.client.drivers import AsyncClientDriver, ClientDriver
from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, TlsFailed, again
from wire.client.protocol import ClientProtocol, Steps, T, over_tls
from wire.client.reconnecting import OnEvent, Reconnect, Reconnecting, passes

#: Bytes that are sent without waiting for what else is sent in this turn of the event loop.
SEND_AT: Final = 64 * 1024


class ResumableProtocol(ClientProtocol, Protocol):
    """A protocol's client side, over any number of connections."""

    def handshake(self) -> Steps[int]:
        """Greet on a new connection and resume what the one before had; the messages that are sent once more."""

    def lost(self, error: ClientError, final: bool) -> None:
        """The connection has ended, or was not made. Forget what belongs to it; `final`: there will be no other."""


class Link:
    """A blocking connection, for one thread at a time. It is made again by the call that next needs it."""

    def __init__(
        self,
        core: ResumableProtocol,
        host: str,
        port: int,
        *,
        timeout: float,
        tls: ssl.SSLContext | None,
        server_hostname: str | None,
        reconnect: Reconnect,
        on_event: OnEvent | None,
    ) -> None:
        """Nothing happens yet: `connect`. Raises ValueError for a name without TLS."""
        self._core = core
        self._address = host, port
        self._timeout = timeout
        self._secured = functools.partial(over_tls, core, tls, host, server_hostname)
        self._secured()
        self._life = Reconnecting(reconnect, on_event)
        self._driver: ClientDriver | None = None
        self._next_attempt = 0.0
        self._error: Exception | None = ConnectionLost("not connected")

    def connect(self) -> None:
        """Connect for the first time; raises what went wrong."""
        self._open()

    @property
    def closed(self) -> bool:
        """Whether there is no connection, and will be none."""
        return self._error is not None

    def ready(self, timeout: float | None = None) -> bool:
        """Return whether there is a connection in time. Raises the error that ended the link for good."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._error is not None:
                raise _copy(self._error)
            if self._driver is not None:
                return True
            pause = max(self._next_attempt - time.monotonic(), 0.0)
            if deadline is not None and (left := deadline - time.monotonic()) < pause:
                time.sleep(max(left, 0.0))
                return False
            time.sleep(pause)
            self._reopen()

    def run(self, operation: Callable[[], Steps[T]], *, repeat: bool = False) -> T:
        """Carry an operation out, once more after a lost connection if it may be repeated.

        Raises ConnectionLost or ReplyTimeout if it may not; TlsFailed and ProtocolViolation in any case.
        """
        while True:
            self.ready()
            steps = operation()
            try:
                return self._carry_out(steps)
            except (ConnectionLost, ReplyTimeout) as error:
                if not repeat or self.closed or isinstance(error, TlsFailed):
                    raise

    def run_for(self, timeout: float | None, operation: Callable[[float | None], Steps[T]]) -> T | None:
        """Carry an operation out as often as it takes, giving it the seconds left; None if there is no connection."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.ready(_left(deadline)):
            steps = operation(_left(deadline))
            try:
                return self._carry_out(steps)
            except (ConnectionLost, ReplyTimeout) as error:
                if self.closed or isinstance(error, TlsFailed):
                    raise
        return None

    def send(self, put: Callable[[], T]) -> T:
        """Have something put into `outgoing`, and send it. A connection that is lost meanwhile is told to the core."""
        self.ready()
        try:
            return put()
        finally:
            self._send()

    def close(self) -> None:
        """Send the rest, and end the stream; raises TlsFailed if the broker refuses the connection only now."""
        driver, self._driver = self._driver, None
        self._finish(ConnectionLost("the connection is closed"))
        if driver is not None:
            driver.close()

    def abort(self) -> None:
        """Close at once."""
        driver, self._driver = self._driver, None
        self._finish(ConnectionLost("the connection is closed"))
        if driver is not None:
            driver.abort()

    def _send(self) -> None:
        assert self._driver is not None
        try:
            self._driver.send()
        except (ConnectionLost, ReplyTimeout, ProtocolViolation) as error:
            self._lose(error)
            if self.closed:
                raise

    def _carry_out(self, steps: Steps[T]) -> T:
        assert self._driver is not None
        try:
            return self._driver.run(steps)
        except (ConnectionLost, ReplyTimeout, ProtocolViolation) as error:
            self._lose(error)
            raise

    def _open(self) -> None:
        driver = ClientDriver(self._secured(), self._timeout)
        try:
            resent = driver.connect(*self._address, self._core.handshake())
        except BaseException as error:
            self._core.lost(_as_client_error(error), False)
            raise
        self._driver, self._error = driver, None
        self._life.connected(resent or 0)

    def _reopen(self) -> None:
        try:
            self._open()
        except Exception as error:
            if not passes(error):
                self._finish(error)
                raise
            self._next_attempt = time.monotonic() + self._life.delay_after(error)

    def _lose(self, error: ClientError) -> None:
        self._driver = None
        if self._life.goes_on(error):
            self._core.lost(error, False)
            self._life.disconnected(error)
            self._next_attempt = time.monotonic() + self._life.delay_after(error)
        else:
            self._error = error
            self._core.lost(error, True)
            self._life.disconnected(error)
            self._life.closed()

    def _finish(self, error: Exception) -> None:
        if not self.closed:
            self._error = error
            self._core.lost(_as_client_error(error), True)
            self._life.closed()


class AsyncLink:
    """A connection on the running event loop, made again in the background. Operations take turns; `send` does not."""

    def __init__(
        self,
        core: ResumableProtocol,
        host: str,
        port: int,
        *,
        timeout: float,
        tls: ssl.SSLContext | None,
        server_hostname: str | None,
        reconnect: Reconnect,
        on_event: OnEvent | None,
    ) -> None:
        """Nothing happens yet: `connect`. Raises ValueError for a name without TLS."""
        self._core = core
        self._address = host, port
        self._timeout = timeout
        self._secured = functools.partial(over_tls, core, tls, host, server_hostname)
        self._secured()
        self._life = Reconnecting(reconnect, on_event)
        self._driver: AsyncClientDriver | None = None
        self._error: Exception | None = ConnectionLost("not connected")
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._scheduled = False

    async def connect(self) -> None:
        """Connect for the first time; raises what went wrong."""
        await self._open()

    @property
    def closed(self) -> bool:
        """Whether there is no connection, and will be none."""
        return self._error is not None

    async def ready(self, timeout: float | None = None) -> bool:
        """Return whether there is a connection in time. Raises the error that ended the link for good."""
        if self._driver is not None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._driver is None:
                    if self._error is not None:
                        break
                    await self._changed.wait()
        if self._error is not None:
            raise _copy(self._error)
        return self._driver is not None

    async def run(self, operation: Callable[[], Steps[T]], *, repeat: bool = False) -> T:
        """Carry an operation out, once more after a lost connection if it may be repeated.

        Raises ConnectionLost or ReplyTimeout if it may not; TlsFailed and ProtocolViolation in any case.
        """
        async with self._turn:
            while True:
                await self.ready()
                assert self._driver is not None
                steps = operation()
                try:
                    return await self._driver.run(steps)
                except (ConnectionLost, ReplyTimeout) as error:
                    if not repeat or self.closed or isinstance(error, TlsFailed):
                        raise

    async def run_for(self, timeout: float | None, operation: Callable[[float | None], Steps[T]]) -> T | None:
        """Carry an operation out as often as it takes, giving it the seconds left; None if there is no connection."""
        async with self._turn:
            deadline = None if timeout is None else time.monotonic() + timeout
            while await self.ready(_left(deadline)):
                assert self._driver is not None
                steps = operation(_left(deadline))
                try:
                    return await self._driver.run(steps)
                except (ConnectionLost, ReplyTimeout) as error:
                    if self.closed or isinstance(error, TlsFailed):
                        raise
            return None

    async def send(self, put: Callable[[], T]) -> T:
        """Have something put into `outgoing`, and send it: together with what else is sent in this turn of the loop.

        Waits while the broker takes no more. A connection that is lost meanwhile is told to the core.
        """
        await self.ready()
        try:
            result = put()
        finally:
            self.send_soon()
        if self._driver is not None and not self._driver.writable:
            try:
                await self._driver.send()
            except (ConnectionLost, ReplyTimeout, ProtocolViolation):
                if self.closed:
                    raise
        return result

    def send_soon(self) -> None:
        """Send what is in `outgoing` in this turn of the event loop."""
        if len(self._core.outgoing) >= SEND_AT:
            self._write()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    def lose(self, error: ClientError) -> None:
        """End this connection because of an error; the link goes on with another."""
        if self._driver is not None:
            self._driver.lose(error)

    async def close(self) -> None:
        """Send the rest, and end the stream; raises TlsFailed if the broker refuses the connection only now."""
        driver = self._leave()
        if driver is not None:
            await driver.close()

    def abort(self) -> None:
        """Close at once."""
        driver = self._leave()
        if driver is not None:
            driver.abort()

    def _leave(self) -> AsyncClientDriver | None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.write()
            driver.on_lost = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._finish(ConnectionLost("the connection is closed"))
        return driver

    def _write(self) -> None:
        self._scheduled = False
        if self._driver is not None:
            self._driver.write()

    async def _open(self) -> None:
        driver = AsyncClientDriver(self._secured(), self._timeout)
        try:
            resent = await driver.connect(*self._address, self._core.handshake())
        except BaseException as error:
            self._core.lost(_as_client_error(error), False)
            raise
        driver.on_lost = self._lost
        self._driver, self._error = driver, None
        self._life.connected(resent or 0)
        self._tell()

    def _lost(self, error: ClientError) -> None:
        self._driver = None
        goes_on = self._life.goes_on(error)
        if not goes_on:
            self._error = error
        self._core.lost(error, not goes_on)
        self._life.disconnected(error)
        if goes_on and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._reconnect(error))
        else:
            self._life.closed()
        self._tell()

    async def _reconnect(self, error: Exception) -> None:
        while True:
            await asyncio.sleep(self._life.delay_after(error))
            try:
                return await self._open()
            except Exception as failure:
                error = failure
                if not passes(failure):
                    return self._finish(failure)

    def _finish(self, error: Exception) -> None:
        if not self.closed:
            self._error = error
            self._core.lost(_as_client_error(error), True)
            self._life.closed()
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _copy(error: Exception) -> Exception:
    return again(error) if isinstance(error, ClientError) else error


def _as_client_error(error: BaseException) -> ClientError:
    if isinstance(error, ClientError):
        return error
    lost = ConnectionLost(str(error) or type(error).__name__)
    lost.__cause__ = error
    return lost
