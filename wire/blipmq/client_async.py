"""The BlipMQ v1 client. `wire.blipmq.client` has the blocking one and the one for asyncio, with the same methods.

    async with AsyncClient("127.0.0.1", 5555, "dev-key") as client:
        subscription = await client.subscribe("demo")
        await client.publish("demo", b"hi")
        await client.flush()                                # returns once "hi" is durable
        message = await client.poll(subscription, timeout=1)
        await client.ack(message)                           # else it comes again after 100 ms

A subscription id outlives the connection: keep it, and poll it after a restart to get the messages since then. A lost
connection is made again; `wire.client.reconnecting` says what a program is told about it.
"""

import ssl
import time
from collections.abc import AsyncIterator, Iterable
from typing import Self

# sync: from wire.blipmq.client_async import AsyncClient
from wire.blipmq.client_core import PREFETCH, STALE, ClientCore, Message, NackError, Window
from wire.client.errors import ConnectionLost, ReplyTimeout
from wire.client.links import AsyncLink
from wire.client.reconnecting import OnEvent, Reconnect
from wire.client.shared_calls import SharedCall  # async only

__all__ = [
    # sync: "AsyncClient",
    "AsyncClient",
    "Message",
    "NackError",
]

class AsyncClient:
    """A client of a BlipMQ v1 broker. Use it in `async with`, or call `close`.

    A lost connection is made again, after 0.1 to 5 seconds with jitter: the next call waits for it, and polls go on.
    `subscribe` raises ConnectionLost if it was under way, since it may have made a subscription, and `flush` if
    publishes were. Messages that were delivered and not acknowledged come again.

    `timeout`: seconds to connect, and of silence while an answer is due; the connection counts as lost then.
    `reconnect`: a `queues.backoff.Backoff` for other waits; with False a lost connection is final, and every method
    raises ConnectionLost, ReplyTimeout or ProtocolViolation. `on_event` is called with each
    `wire.client.reconnecting.Event`.

    `resend`: **publish once more what was not confirmed when the connection was lost.** Consumers may then get a
    message twice, since the broker may have stored it before. Without it `flush` raises ConnectionLost, and the program
    decides what to publish again. With it 65,536 publishes or 16 MiB may be unconfirmed; `publish` waits while there
    are more. Messages with QoS 0 are never sent again.

    `tls`: speak TLS, with a context such as `ssl.create_default_context()` makes; `server_hostname` is the name that
    the broker's certificate must have if it is not `host`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        *,
        timeout: float = 30.0,
        reconnect: Reconnect = True,
        resend: bool = False,
        on_event: OnEvent | None = None,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        # sync: """Connect and authenticate. The client is for one thread at a time, and connects again in a call.
        # sync:
        # sync: Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust
        # sync: us, NackError 401 for a wrong key, 426 for a broker of another version.
        # sync: """
        """Make a client that is not connected yet: call `connect`, or enter the context.

        Several tasks may share it. One round trip answers all that `flush` at once; other calls are carried out one
        after the other: a task that polls with a timeout keeps the others waiting, so give it a connection of its own.
        A cancelled poll leaves its message to be redelivered. It connects again in the background.
        """  # async only
        self._core = ClientCore(key, timeout, resend)
        self._link = AsyncLink(
            self._core, host, port,
            timeout=timeout, tls=tls, server_hostname=server_hostname, reconnect=reconnect, on_event=on_event,
        )  # fmt: skip
        self._flushes = SharedCall(self._flush)  # async only
        self._barriers = SharedCall(self._barrier)  # async only
        # sync: self._link.connect()

    async def connect(self) -> None:  # async only
        """Connect and authenticate, once; call `close` in the end.

        Raises OSError when the broker cannot be reached, TlsFailed when it is not trusted or does not trust us,
        NackError 401 for a wrong key, 426 for a broker of another version.
        """
        await self._link.connect()

    async def publish(self, topic: str | bytes, body: bytes, qos: int = 1, *, confirm: bool = False) -> int:
        """Send a message at once. Call `flush` to know that it is durable.

        With `confirm` this returns once the message is durable: after a round trip, which tasks that wait at once
        share. It raises the NackError that refused the message, or, unless with `resend`, ConnectionLost if the message
        may not be stored; `flush` does not raise these again.

        Returns the correlation id by which a NackError names this message. Raises ValueError for a topic over 65535
        bytes and for `confirm` with QoS 0, FrameTooLarge for more than 16 MiB in all.
        """
        if self._core.congested:
            await self._link.run(self._core.relieve, repeat=True)
        correlation_id = await self._link.send(lambda: self._core.publish(topic, body, qos, confirm))
        if confirm:
            try:
                # sync: self._barrier()
                await self._barriers.join()  # async only
                self._core.confirmed(correlation_id)
            finally:
                self._core.forget(correlation_id)
        return correlation_id

    async def _barrier(self) -> None:
        await self._link.run(self._core.barrier, repeat=self._core.resends)

    async def publish_many(self, topic: str | bytes, bodies: Iterable[bytes], qos: int = 1) -> list[int]:
        """Send messages together, which costs less than one by one. Call `flush` to know that they are durable.

        Returns their correlation ids. Raises as `publish` does; the messages before the one that raises are sent.
        """
        ids: list[int] = []
        remaining = iter(bodies)
        while batch := await self._link.send(lambda: self._core.publish_some(topic, remaining, qos)):
            ids += batch
            if self._core.congested:
                await self._link.run(self._core.relieve, repeat=True)
        return ids

    async def flush(self) -> None:
        """Return once everything published before with QoS 1 is durable.

        Raises NackError if the broker refused any of it, or an `ack`: its `correlation_id` and those of its `others`
        name the refused frames; all else is durable. Raises ConnectionLost if the connection was lost since the last
        flush, unless with `resend`: what was published since then may or may not be stored.
        """
        # sync: self._flush()
        await self._flushes.join()  # async only

    async def _flush(self) -> None:
        while True:
            self._core.check()
            try:
                return await self._link.run(self._core.flush)
            except (ConnectionLost, ReplyTimeout):
                if self._link.closed:
                    raise

    async def subscribe(self, topic: str | bytes, qos: int = 1) -> int:
        """Make a subscription and return its id; it gets later messages of the topic.

        Keep the id to `poll` with, also after reconnecting: every call makes a subscription of its own, and one that
        is never polled again goes on collecting messages. Raises NackError, 401 without the right.
        """
        return await self._link.run(lambda: self._core.subscribe(topic, qos))

    async def poll(self, subscription: int, timeout: float | None = 0) -> Message | None:
        """Return the next message, or None when there has been none for `timeout` seconds (None: wait on).

        `ack` it when it is processed, within the queue's ack time (100 ms by default), or it comes again. An unknown
        subscription is the same as an empty one.
        """
        messages = await self.poll_many(subscription, 1, timeout)
        return messages[0] if messages else None

    async def poll_many(self, subscription: int, limit: int, timeout: float | None = 0) -> list[Message]:
        """Return up to `limit` messages in one round trip, as `poll` does one; `ack` them all in time."""
        return await self._link.run_for(timeout, lambda left: self._core.poll(subscription, limit, left)) or []

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
                while batch and self._core.is_current(batch[-1]) and (before - came < STALE or not batch[-1].qos):
                    yield batch.pop()
                    now = time.monotonic()
                    longest, before = max(longest, now - before), now
                window.processed(count - len(batch), before - came, longest)
        finally:
            self._core.leave(subscription, batch[::-1], came)

    async def ack(self, *messages: Message) -> None:
        """Tell the broker at once that these are processed; do not process them again should they come back.

        A message of QoS 0 needs none, and is left out; so is one of a lost connection, which comes again. If it was
        settled already the next `flush` raises NackError 404, with its tag as correlation id.
        """
        await self._link.send(lambda: self._core.ack(messages))

    async def close(self) -> None:
        """Flush what was published, as `flush` does, and disconnect."""
        try:
            if self._core.needs_flush:
                await self.flush()
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        await self.connect()  # async only
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
        else:
            self._link.abort()
