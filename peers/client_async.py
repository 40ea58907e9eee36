"""The peerbus client. `peers.client` has the blocking one and the one for asyncio, with the same methods.

    async with AsyncPeerClient("ws://127.0.0.1:8000/ws/peerbus", "token", "alice", secret=secret) as peer:
        await peer.send("bob", {"text": "hello"}, confirm=True)  # it is stored
        async for message in peer.messages():
            print(message.sender, message.body)  # acknowledged when the next one is asked for

A lost connection is made again under the same name; `wire.client.reconnecting` says what a program is told about it.
Messages that were sent and not confirmed are then sent again, since the broker takes an id once; those that were
delivered and not acknowledged come again, but the host gets no message twice that it has consumed.
"""

import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

# sync: from collections.abc import Generator
from typing import Any, Final, Self, TypeAlias

from peers.async_connection import AsyncConnection

# sync: from peers.client_async import AsyncPeerClient
from peers.client_core import Answer, ClientCore, Message
from peers.codec.envelope import BROADCAST
from peers.dedupe import DEFAULT_SIZE
from peers.errors import NoAnswer
from wire.client.reconnecting import OnEvent, Reconnect, Reconnecting

__all__ = ["AsyncPeerClient", "Message"]  # async only
# sync: __all__ = ["AsyncPeerClient", "Message", "PeerClient"]

#: The provenance tag of envelopes, unless another is given.
SOURCE: Final = "peer-bus"

Messages: TypeAlias = AsyncGenerator[Message, None]  # async only
Handler: TypeAlias = Callable[[Message], Awaitable[object]]  # async only
# sync: Messages: TypeAlias = Generator[Message, None, None]
# sync: Handler: TypeAlias = Callable[[Message], object]


class AsyncPeerClient:
    # sync: """A peer, for one thread at a time."""
    """A peer on the running event loop; any number of tasks may use it."""  # async only

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
        reconnect: Reconnect = True,
        on_event: OnEvent | None = None,
    ) -> None:
        """Make a client that is not connected yet: call `connect`, or use it as a context manager.

        `secret` is the one that all peers share, 32 bytes or more. With None envelopes are sent unsigned, and **all
        that arrive are taken unverified**. `timeout` in seconds is for connecting and for each answer; `dedupe_size`
        is the number of consumed ids that are remembered; `prefetch` is the number of frames that may wait here to be
        taken; `tls` checks the certificate behind a wss:// URL. `reconnect`: a `queues.backoff.Backoff` for other waits
        than 0.1 to 5 seconds with jitter; with False a lost connection is final, and every method raises
        ConnectionLost. `on_event` is called with each `wire.client.reconnecting.Event`. Raises WeakSecret, and
        ValueError for a bad URL.
        """
        self._core = ClientCore(token, name, secret, dedupe_size)
        self._timeout = timeout
        self._connection = AsyncConnection(
            self._core, url, timeout=timeout, prefetch=prefetch, tls=tls, life=Reconnecting(reconnect, on_event)
        )

    @property
    def name(self) -> str:
        """The name this peer is registered under."""
        return self._core.name

    @property
    def dropped(self) -> Mapping[str, int]:
        """Frames of the broker that were dropped and not acknowledged, by reason: forged ones, for example."""
        return self._core.dropped

    @property
    def unconfirmed(self) -> int:
        """Messages that were sent, or are to be, and are not known to be stored."""
        return self._core.unconfirmed

    async def connect(self) -> None:
        """Connect and register, once; call `close` in the end.

        Raises OSError, Rejected (InvalidToken, NameClaimed, UnsupportedVersion and others), ConnectionLost,
        ReplyTimeout, or ProtocolViolation if the server does not speak peerbus. A connection that is lost later is
        made again by the client.
        """
        await self._connection.connect()

    async def send(
        self, to: str, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False
    ) -> str:
        """Send a message to a peer and return its id; with `confirm` it is stored then.

        `body` is any value that JSON can express. A message that is sent again keeps its `id`: the broker takes it
        once. Without a connection it is sent when there is one again. Waits while too much is unconfirmed. Raises
        InvalidEnvelope, MessageTooLarge, NoAnswer when waiting took too long, TakenOver, Rejected.
        """
        envelope = self._core.write(to, body, id, source)
        self._connection.check()
        await self._until(lambda: not self._core.congested, self._timeout)
        self._core.send(envelope)
        await self._connection.push()
        if confirm:
            await self.flush()
        return envelope.id

    async def broadcast(self, body: Any, *, id: str | None = None, source: str = SOURCE, confirm: bool = False) -> str:
        """Send a message to all other peers that are connected now, as `send` does."""
        return await self.send(BROADCAST, body, id=id, source=source, confirm=confirm)

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent is stored. Raises NoAnswer if it is not in time, TakenOver, Rejected."""
        if self._core.unconfirmed:
            await self._ask(timeout)

    async def peers(self, timeout: float | None = None) -> list[str]:
        """Return the names of the connected peers, ours included. Everything sent before is stored then."""
        return (await self._ask(timeout)).names or []

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, to be acknowledged with `ack`, or None when `timeout` seconds are over.

        Raises TakenOver when this name was registered from elsewhere, Rejected when it cannot be registered again.
        """
        await self._connection.until(lambda: self._core.inbox, timeout)
        self._connection.check()
        if not self._core.inbox:
            return None
        message = self._core.inbox.popleft()
        self._connection.tell()  # async only
        return message

    async def ack(self, message: Message) -> None:
        """Report a message as consumed: it does not come again."""
        self._core.ack(message)
        await self._connection.push()

    def release(self, message: Message) -> None:
        """Report a message as not consumed: it comes again after the next reconnect."""
        self._core.release(message)

    async def messages(self, timeout: float | None = None) -> Messages:
        """Iterate over messages, each acknowledged when the next one is asked for.

        Ends when nothing has come for `timeout` seconds. A message whose loop body was left with an exception or
        `break` is not acknowledged, unless `ack` was called.
        """
        while (message := await self.receive(timeout)) is not None:
            try:
                yield message
            except GeneratorExit:
                self._core.release(message)
                raise
            await self.ack(message)

    async def run(self, handler: Handler, timeout: float | None = None) -> None:
        """Call `handler` with each message, which is acknowledged when it returns; ends as `messages` does.

        An exception of the handler is raised here, and its message is not acknowledged.
        """
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
        """Disconnect. Messages that were sent and are not confirmed may be stored or not."""
        await self._connection.close()

    async def _ask(self, timeout: float | None) -> Answer:
        self._connection.check()
        answer = self._core.ask()
        await self._connection.push()
        await self._until(lambda: answer.done, self._timeout if timeout is None else timeout)
        return answer

    async def _until(self, happened: Callable[[], object], timeout: float) -> None:
        if not await self._connection.until(happened, timeout):
            raise NoAnswer("the broker has not answered in time")

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()
