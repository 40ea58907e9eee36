"""Clients of peerbus: `PeerClient` for threads, `AsyncPeerClient` for asyncio.

    with PeerClient("ws://127.0.0.1:8000/ws/peerbus", "token", "alice", secret=secret) as peer:
        peer.send("bob", {"text": "hello"}, confirm=True)  # it is stored
        for message in peer.messages():
            print(message.sender, message.body)  # acknowledged when the next one is asked for

A lost connection is made again by itself, under the same name. What was sent and is not confirmed is then sent again;
what had been delivered and was not acknowledged comes again, but the host gets nothing twice that it has consumed.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Self

from peers.async_connection import AsyncConnection
from peers.backoff import Backoff
from peers.client_core import Answer, ClientCore, Message
from peers.codec.envelope import BROADCAST
from peers.connection import Connection, deadline_in
from peers.dedupe import DEFAULT_SIZE
from peers.errors import NoAnswer

__all__ = ["AsyncPeerClient", "Message", "PeerClient"]

SOURCE = "peer-bus"
"""The provenance tag of envelopes, unless another is given."""


class _Common:
    """What both clients are made with."""

    _core: ClientCore

    @property
    def name(self) -> str:
        """The name this peer is registered under."""
        return self._core.name

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many frames of the broker were dropped and not acknowledged, by reason: forged ones, for example."""
        return self._core.dropped

    @property
    def unconfirmed(self) -> int:
        """How many messages were sent, or are to be, that are not known to be stored."""
        return self._core.unconfirmed


class PeerClient(_Common):
    """A peer, for one thread at a time."""

    def __init__(
        self,
        url: str,
        token: str,
        name: str,
        *,
        secret: str | bytes | None,
        timeout: float = 10.0,
        dedupe_size: int = DEFAULT_SIZE,
        prefetch: int = 10_000,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Nothing happens yet: `connect`, or use it in a `with`.

        `secret` is what all peers share, 32 bytes or more. With None envelopes are sent unsigned, and **whatever
        comes is taken unverified**. `timeout` in seconds is for connecting and for each answer; `dedupe_size` is how
        many consumed ids are remembered; `prefetch` is how many frames may wait here to be taken; `tls` checks the
        certificate behind a wss:// URL. Raises WeakSecret, ValueError for a URL that is none.
        """
        self._core = ClientCore(token, name, secret, dedupe_size)
        self._timeout = timeout
        self._connection = Connection(
            self._core, url, timeout=timeout, prefetch=prefetch, tls=tls, backoff=backoff or Backoff()
        )

    def connect(self) -> None:
        """Connect and register, once; call `close` in the end.

        Raises OSError, Rejected (InvalidToken, NameClaimed, UnsupportedVersion and others), ConnectionLost,
        ReplyTimeout, or ProtocolViolation if there is no peerbus. Later a lost connection is made again by itself.
        """
        self._connection.connect()

    def send(self, to: str, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False) -> str:
        """Send a message to a peer and return its id; with `confirm` it is stored then.

        `body` is anything JSON can say. Whoever sends a message again gives it the same `id`: the broker takes it
        once. Without a connection it is sent when there is one again. Waits while too much is unconfirmed. Raises
        InvalidEnvelope, MessageTooLarge, NoAnswer when waiting took too long, TakenOver, Rejected.
        """
        envelope = self._core.write(to, body, id, source)
        self._connection.check()
        deadline = deadline_in(self._timeout)
        while self._core.congested:
            self._connection.step_or_raise(deadline)
        self._core.send(envelope)
        self._connection.push()
        if confirm:
            self.flush()
        return envelope.id

    def broadcast(self, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False) -> str:
        """Send a message to everybody who is connected now, as `send` does."""
        return self.send(BROADCAST, body, id=id, source=source, confirm=confirm)

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent is stored. Raises NoAnswer if it is not in time, TakenOver, Rejected."""
        if self._core.unconfirmed:
            self._ask(timeout)

    def peers(self, timeout: float | None = None) -> list[str]:
        """Return the names of those who are connected, ours too. Everything sent before is stored then."""
        return self._ask(timeout).names or []

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, to be acknowledged with `ack`, or None when `timeout` seconds are over.

        Raises TakenOver when this name was registered from elsewhere, Rejected when it cannot be registered again.
        """
        deadline = deadline_in(timeout)
        self._connection.push()
        while not self._core.inbox:
            if not self._connection.step(deadline):
                return None
        return self._core.inbox.popleft()

    def ack(self, message: Message) -> None:
        """Say that a message is consumed: it does not come again."""
        self._core.ack(message)
        self._connection.push()

    def release(self, message: Message) -> None:
        """Say that a message is not consumed and will not be: it comes again after the next reconnect."""
        self._core.release(message)

    def messages(self, timeout: float | None = None) -> Generator[Message, None, None]:
        """Iterate over messages, each acknowledged when the next one is asked for.

        Ends when nothing has come for `timeout` seconds. A message whose loop body was left with an exception or
        `break` is not acknowledged, unless `ack` was called.
        """
        while (message := self.receive(timeout)) is not None:
            try:
                yield message
            except GeneratorExit:
                self._core.release(message)
                raise
            self._core.ack(message)  # leaves before the next one is waited for

    def run(self, handler: Callable[[Message], object], timeout: float | None = None) -> None:
        """Call `handler` with each message, which is acknowledged when it returns; ends as `messages` does.

        What it raises is raised here, and the message is not acknowledged.
        """
        with contextlib.closing(self.messages(timeout)) as messages:
            for message in messages:
                handler(message)

    def close(self) -> None:
        """Disconnect when everything sent is stored. Raises NoAnswer if that is not in time; disconnected anyway."""
        try:
            if self._core.unconfirmed or self._core.outgoing:
                self._connection.push()
                self.flush()
        finally:
            self._connection.close()

    def abort(self) -> None:
        """Disconnect. What was sent and is not confirmed may be stored or not."""
        self._connection.close()

    def _ask(self, timeout: float | None) -> Answer:
        self._connection.check()
        deadline = deadline_in(self._timeout if timeout is None else timeout)
        answer = self._core.ask()
        while not answer.done:
            self._connection.step_or_raise(deadline)
        return answer

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class AsyncPeerClient(_Common):
    """A peer on the running event loop; any number of tasks may use it."""

    def __init__(
        self,
        url: str,
        token: str,
        name: str,
        *,
        secret: str | bytes | None,
        timeout: float = 10.0,
        dedupe_size: int = DEFAULT_SIZE,
        prefetch: int = 10_000,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Nothing happens yet: `connect`, or use it in an `async with`. Arguments and errors as for `PeerClient`."""
        self._core = ClientCore(token, name, secret, dedupe_size)
        self._timeout = timeout
        self._connection = AsyncConnection(
            self._core, url, timeout=timeout, prefetch=prefetch, tls=tls, backoff=backoff or Backoff()
        )

    async def connect(self) -> None:
        """Connect and register, once; call `close` in the end. Raises as `PeerClient.connect` does."""
        await self._connection.connect()

    async def send(
        self, to: str, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False
    ) -> str:
        """Send a message to a peer and return its id; with `confirm` it is stored then (see `PeerClient.send`)."""
        envelope = self._core.write(to, body, id, source)
        self._connection.check()
        await self._within(self._timeout, lambda: not self._core.congested)
        self._core.send(envelope)
        await self._connection.push()
        if confirm:
            await self.flush()
        return envelope.id

    async def broadcast(self, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False) -> str:
        """Send a message to everybody who is connected now, as `send` does."""
        return await self.send(BROADCAST, body, id=id, source=source, confirm=confirm)

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent is stored. Raises NoAnswer if it is not in time, TakenOver, Rejected."""
        if self._core.unconfirmed:
            await self._ask(timeout)

    async def peers(self, timeout: float | None = None) -> list[str]:
        """Return the names of those who are connected, ours too. Everything sent before is stored then."""
        return (await self._ask(timeout)).names or []

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None when the time is over, as `PeerClient.receive` does."""
        with contextlib.suppress(NoAnswer):
            await self._within(timeout, lambda: self._core.inbox)
        self._connection.check()
        if not self._core.inbox:
            return None
        message = self._core.inbox.popleft()
        self._connection.tell()  # there is room for another
        return message

    async def ack(self, message: Message) -> None:
        """Say that a message is consumed: it does not come again."""
        self._core.ack(message)
        await self._connection.push()

    def release(self, message: Message) -> None:
        """Say that a message is not consumed and will not be: it comes again after the next reconnect."""
        self._core.release(message)

    async def messages(self, timeout: float | None = None) -> AsyncGenerator[Message, None]:
        """Iterate over messages, acknowledging each when the next is asked for, as `PeerClient.messages` does."""
        while (message := await self.receive(timeout)) is not None:
            try:
                yield message
            except GeneratorExit:
                self._core.release(message)
                raise
            await self.ack(message)

    async def run(self, handler: Callable[[Message], Awaitable[object]], timeout: float | None = None) -> None:
        """Await `handler` with each message, which is acknowledged when it returns (see `PeerClient.run`)."""
        async with contextlib.aclosing(self.messages(timeout)) as messages:
            async for message in messages:
                await handler(message)

    async def close(self) -> None:
        """Disconnect when everything sent is stored. Raises NoAnswer if that is not in time; disconnected anyway."""
        try:
            if self._core.unconfirmed or self._core.outgoing:
                await self._connection.push()
                await self.flush()
        finally:
            await self._connection.close()

    async def abort(self) -> None:
        """Disconnect. What was sent and is not confirmed may be stored or not."""
        await self._connection.close()

    async def _ask(self, timeout: float | None) -> Answer:
        self._connection.check()
        answer = self._core.ask()
        await self._connection.push()
        await self._within(self._timeout if timeout is None else timeout, lambda: answer.done)
        return answer

    async def _within(self, timeout: float | None, happened: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(timeout) as scope:
                await self._connection.until(happened)
        except TimeoutError:
            if not scope.expired():
                raise
            raise NoAnswer("the broker has not answered in time") from None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()
