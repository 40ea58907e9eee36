"""The BlipMQ v1 client. `wire.blipmq.client` has the blocking one and the one for asyncio, with the same methods.

    async with AsyncClient("127.0.0.1", 5555, "dev-key") as client:
        subscription = await client.subscribe("demo")
        await client.publish("demo", b"hi")
        await client.flush()                                # returns once "hi" is durable
        message = await client.poll(subscription, timeout=1)
        await client.ack(message)                           # else it comes again after 100 ms

A subscription id outlives the connection: keep it, and poll it after a restart to get the messages since then.
"""

import ssl
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, Self

# sync: from wire.blipmq.client_async import AsyncClient
from wire.blipmq.client_core import PREFETCH, STALE, ClientCore, Message, NackError, Window
from wire.client.drivers import AsyncClientDriver
from wire.client.protocol import over_tls
from wire.client.shared_calls import SharedCall  # async only

__all__ = [
    # sync: "AsyncClient",
    "AsyncClient",
    "Message",
    "NackError",
]

#: Bytes of a batch of publishes that are sent together.
SEND_AT: Final = 64 * 1024


class AsyncClient:
    """A connection to a BlipMQ v1 broker. Use it in `async with`, or call `close`.

    Every method may raise ConnectionLost, ReplyTimeout or ProtocolViolation; the connection is closed then: make a
    new client and publish again what no `flush` has confirmed.

    `timeout`: seconds to connect, and of silence while an answer is due. `tls`: speak TLS, with a context such as
    `ssl.create_default_context()` makes; `server_hostname` is the name that the broker's certificate must have if it
    is not `host`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        *,
        timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        # sync: """Connect and authenticate. The client is for one thread at a time.
        # sync:
        # sync: Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust
        # sync: us, NackError 401 for a wrong key, 426 for a broker of another version.
        # sync: """
        """Make a client that is not connected yet: call `connect`, or enter the context.

        Several tasks may share it. One round trip answers all that `flush` at once; other calls are carried out one
        after the other: a task that polls with a timeout keeps the others waiting, so give it a connection of its own.
        A cancelled poll leaves its message to be redelivered.
        """  # async only
        self._address = host, port  # async only
        self._key = key  # async only
        self._core = ClientCore(timeout)
        self._driver = AsyncClientDriver(over_tls(self._core, tls, host, server_hostname), timeout)
        self._flushes = SharedCall(lambda: self._driver.run(self._core.flush()))  # async only
        # sync: self._driver.connect(host, port, self._core.handshake(key))

    async def connect(self) -> None:  # async only
        """Connect and authenticate; call `close` in the end.

        Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust us,
        NackError 401 for a wrong key, 426 for a broker of another version.
        """
        await self._driver.connect(*self._address, self._core.handshake(self._key))

    async def publish(self, topic: str | bytes, body: bytes, qos: int = 1) -> int:
        """Send a message at once. Call `flush` to know that it is durable.

        Returns the correlation id by which a NackError raised by `flush` names this message. Raises ValueError for a
        topic over 65535 bytes, FrameTooLarge for more than 16 MiB in all.
        """
        correlation_id = self._core.publish(topic, body, qos)
        await self._driver.send()
        return correlation_id

    async def publish_many(self, topic: str | bytes, bodies: Iterable[bytes], qos: int = 1) -> list[int]:
        """Send messages together, which costs less than one by one. Call `flush` to know that they are durable.

        Returns their correlation ids. Raises as `publish` does; the messages before the one that raises are sent.
        """
        ids: list[int] = []
        try:
            for body in bodies:
                ids.append(self._core.publish(topic, body, qos))
                if len(self._core.outgoing) >= SEND_AT:
                    await self._driver.send()
        finally:
            await self._driver.send()
        return ids

    async def flush(self) -> None:
        """Return once everything published before with QoS 1 is durable.

        Raises NackError if the broker refused any of it, or an `ack`: its `correlation_id` and those of its `others`
        name the refused frames; all else is durable.
        """
        # sync: self._driver.run(self._core.flush())
        await self._flushes.join()  # async only

    async def subscribe(self, topic: str | bytes, qos: int = 1) -> int:
        """Make a subscription and return its id; it gets later messages of the topic.

        Keep the id to `poll` with, also after reconnecting: every call makes a subscription of its own, and one that
        is never polled again goes on collecting messages. Raises NackError, 401 without the right.
        """
        return await self._driver.run(self._core.subscribe(topic, qos))

    async def poll(self, subscription: int, timeout: float | None = 0) -> Message | None:
        """Return the next message, or None when there has been none for `timeout` seconds (None: wait on).

        `ack` it when it is processed, within the queue's ack time (100 ms by default), or it comes again. An unknown
        subscription is the same as an empty one.
        """
        messages = await self._driver.run(self._core.poll(subscription, 1, timeout))
        return messages[0] if messages else None

    async def poll_many(self, subscription: int, limit: int, timeout: float | None = 0) -> list[Message]:
        """Return up to `limit` messages in one round trip, as `poll` does one; `ack` them all in time."""
        return await self._driver.run(self._core.poll(subscription, limit, timeout))

    async def messages(
        self, subscription: int, timeout: float | None = None, *, prefetch: int = PREFETCH
    ) -> AsyncIterator[Message]:
        """Iterate over messages until there has been none for `timeout` seconds; `ack` each of them.

        Fetches up to `prefetch` messages ahead, as many as the program processes in 20 ms. What was fetched and not
        reached within 50 ms comes again; what was left before is given to the next `poll`. Both times suit an
        acknowledgement time of 100 ms: with a shorter one take a `prefetch` of 1.
        """
        window = Window(prefetch)
        batch: list[Message] = []
        came = longest = 0.0
        try:
            while batch := await self.poll_many(subscription, window.size, timeout):
                count, came, longest = len(batch), time.monotonic(), 0.0
                batch.reverse()
                before = came
                while batch and (before - came < STALE or not batch[-1].qos):
                    yield batch.pop()
                    now = time.monotonic()
                    longest, before = max(longest, now - before), now
                window.processed(count - len(batch), before - came, longest)
        finally:
            self._core.leave(subscription, batch[::-1], came)

    async def ack(self, *messages: Message) -> None:
        """Tell the broker at once that these are processed; do not process them again should they come back.

        A message of QoS 0 needs none, and is left out. If it was settled already the next `flush` raises NackError
        404, with its tag as correlation id.
        """
        self._core.ack(messages)
        await self._driver.send()

    async def close(self) -> None:
        """Flush what was published, as `flush` does, and disconnect."""
        try:
            if self._core.unflushed:
                await self.flush()
        finally:
            await self._driver.close()

    async def __aenter__(self) -> Self:
        await self.connect()  # async only
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
        else:
            self._driver.abort()
