"""Consumers of each protocol, as the model test drives them: credits, deliveries, ends of deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.message import Message
from kombu.messaging import Consumer as Consuming

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from tests.queues.engine.mailbox.test_service import Peer
from tests.queues.model.broker import LiveBroker
from tests.waiting import wait_until
from tests.wire.broker import KEY
from wire.blipmq.client import Client as BlipClient
from wire.blipmq.client import Message as BlipMessage
from wire.overhop import requests
from wire.overhop.client import Client as OverhopClient
from wire.overhop.client import JobNotFound
from wire.sspq.client import Client as SspqClient

LABEL = re.compile(rb"m\d+")


def label_in(payload: Any) -> str:
    """The label in a payload, whatever the protocol has made of it."""
    found = LABEL.search(payload if isinstance(payload, bytes) else str(payload).encode())
    assert found is not None, payload
    return found[0].decode()


class Delivered(NamedTuple):
    queue: str
    label: str
    #: The number of the attempt, if the protocol tells it.
    attempt: int | None


class Consumer(ABC):
    """One connection. `held` is what it was given and has not finished; `stale` what it had when leases were lost."""

    def __init__(self, broker: LiveBroker | None) -> None:
        #: None: a node of its own.
        self.broker = broker
        #: By queue: messages that may be pushed.
        self.credits: dict[str, int] = {}
        #: By label: the queue, and what the protocol names the delivery by.
        self.held: dict[str, tuple[str, Any]] = {}
        self.stale: dict[str, tuple[str, Any]] = {}
        #: Deliveries of other queues that came while those of one were awaited.
        self.early: list[Delivered] = []

    def take(self, patience: float) -> Delivered | None:
        """The next delivery that comes within so many seconds."""
        found = self._take(patience)
        if found is None:
            return None
        delivered, handle = found
        self.credits[delivered.queue] -= 1
        self.stale.pop(delivered.label, None)
        self.held[delivered.label] = delivered.queue, handle
        return delivered

    def lose_leases(self) -> None:
        """The broker has lost its leases; the connection stays."""
        self.stale |= self.held
        self.held = {}

    @abstractmethod
    def _take(self, patience: float) -> tuple[Delivered, Any] | None: ...

    @abstractmethod
    def settle(self, handle: Any) -> bool:
        """Acknowledge; False when the broker answers that it is too late."""

    @abstractmethod
    def settle_many(self, handles: Sequence[Any]) -> None:
        """Acknowledge together, and do not wait for the broker."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""


class Worker(Consumer):
    """An Overhop worker, of any number of queues."""

    def __init__(self, broker: LiveBroker) -> None:
        super().__init__(broker)
        self.client = OverhopClient(broker.overhop.host, broker.overhop.port, reconnect=False)
        self._subscriptions: dict[str, str] = {}

    def grant(self, queue: str, credits: int) -> None:
        if queue not in self._subscriptions:
            self._subscriptions[queue] = self.client.subscribe(queue)
        self.client.grant(self._subscriptions[queue], credits)
        self.credits[queue] = self.credits.get(queue, 0) + credits

    def _take(self, patience: float) -> tuple[Delivered, Any] | None:
        quest = self.client.next_quest(patience)
        if quest is None:
            return None
        return Delivered(quest.queue, label_in(quest.payload), quest.attempt), quest.jid

    def settle(self, handle: Any) -> bool:
        try:
            self.client.done(handle)
        except JobNotFound:
            return False
        return True

    def settle_many(self, handles: Sequence[Any]) -> None:
        core = self.client._core
        self.client._link.send(
            lambda: core.submit_all([core.prepare(requests.done(handle, None)) for handle in handles])
        )

    def fail(self, handle: Any, delay: float) -> None:
        """The job is to be tried again after so many seconds."""
        self.client.fail(handle, "on purpose", retry_in=delay)

    def goodbye(self) -> None:
        """Hand jobs back, and end."""
        self.client.goodbye()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.client.close()


class Receiver(Consumer):
    """An SSPQ connection to one queue."""

    def __init__(self, broker: LiveBroker, queue: str) -> None:
        super().__init__(broker)
        self.queue = queue
        address = broker.sspq(queue)
        self.client = SspqClient(address.host, address.port, reconnect=False)

    @property
    def is_idle(self) -> bool:
        return not (self.held or self.stale or any(self.credits.values()))

    def receive(self) -> None:
        """Ask for a message."""
        self.credits[self.queue] = 1

    def _take(self, patience: float) -> tuple[Delivered, Any] | None:
        if self.held or self.stale or not self.credits.get(self.queue):
            return None
        message = self.client.receive(patience)
        return None if message is None else (Delivered(self.queue, label_in(message.payload), None), message.retries)

    def settle(self, handle: Any) -> bool:
        self.client.confirm()
        return True

    def settle_many(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self.settle(handle)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.client.close()


class Poller(Consumer):
    """A BlipMQ connection that polls one subscription."""

    def __init__(self, broker: LiveBroker, queue: str, subscription: int) -> None:
        super().__init__(broker)
        self.queue = queue
        self.subscription = subscription
        self.client = BlipClient(broker.blipmq.host, broker.blipmq.port, KEY, reconnect=False)
        self._came: deque[BlipMessage] = deque()

    def poll(self, count: int) -> None:
        """Ask for messages, until there are so many."""
        self.credits[self.queue] = max(count, self.credits.get(self.queue, 0))

    def _take(self, patience: float) -> tuple[Delivered, Any] | None:
        if not self._came and (count := self.credits.get(self.queue)):
            self._came += self.client.poll_many(self.subscription, count, patience)
        if not self._came:
            return None
        message = self._came.popleft()
        return Delivered(self.queue, label_in(message.body), None), message

    def settle(self, handle: Any) -> bool:
        self.settle_many([handle])
        return True

    def settle_many(self, handles: Sequence[Any]) -> None:
        self.client.ack(*handles)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.client.close()


class Recipient(Consumer):
    """The connection of a peer, which letters come to as soon as there are some. Losses of the database do not end it:
    what it has is still its own."""

    def __init__(self, broker: LiveBroker, name: str, queue: str, key: int) -> None:
        super().__init__(broker)
        self.queue = queue
        self.credits[queue] = broker.engine.options.mailbox_window
        self._at = broker
        self._peer = broker.ask(peer_of(broker, name, key))
        self._seen = 0

    def lose_leases(self) -> None:
        """It keeps them."""

    def _take(self, patience: float) -> tuple[Delivered, Any] | None:
        letters = self._peer.letters
        if len(letters) == self._seen:
            self._at.ask(self._await_letter(patience))
        if len(letters) == self._seen:
            return None
        letter = letters[self._seen]
        self._seen += 1
        return Delivered(self.queue, label_in(letter.payload), None), letter.key

    async def _await_letter(self, patience: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._peer.until(lambda: len(self._peer.letters) > self._seen)

    def settle(self, handle: Any) -> bool:
        self.settle_many([handle])
        return True

    def settle_many(self, handles: Sequence[Any]) -> None:
        self._at.ask(self._acknowledge(handles))
        self.credits[self.queue] += len(handles)

    async def _acknowledge(self, keys: Sequence[str]) -> None:
        self._peer.ack(*keys)

    def close(self) -> None:
        """Leave the mailbox, unless the broker has ended."""
        if self._at.runs:
            self._at.ask(self._leave())

    async def _leave(self) -> None:
        self._peer.leave()


async def peer_of(broker: LiveBroker, name: str, key: int) -> Peer:
    """A peer that has its mailbox."""
    return await Peer(broker.engine, name, key).here()


class CeleryConsumer(Consumer):
    """A connection of Celery's with a consumer of one queue, which has at most `prefetch` messages at a time."""

    def __init__(self, url: str, queue: str, prefetch: int) -> None:
        super().__init__(None)
        self.queue = queue
        self.credits[queue] = prefetch
        self.connection = Connection(url, transport_options={"foreign_queues": [queue]})
        self._came: deque[Message] = deque()
        channel = self._channel = self.connection.channel()
        channel.basic_qos(0, prefetch)
        consumer = Consuming(
            channel, [Queue(queue, no_declare=True)], on_message=self._came.append, auto_declare=False
        )
        consumer.consume()

    def _take(self, patience: float) -> tuple[Delivered, Any] | None:
        if not self._came:
            with contextlib.suppress(TimeoutError):
                self.connection.drain_events(timeout=patience)
        if not self._came:
            return None
        message = self._came.popleft()
        return Delivered(self.queue, label_in(message.body), None), message

    def settle(self, handle: Any) -> bool:
        self.settle_many([handle])
        return True

    def settle_many(self, handles: Sequence[Any]) -> None:
        for message in handles:
            message.ack()
        self._settled(len(handles))

    def fail(self, handle: Any, delay: float) -> None:
        """The message goes to the tail at once."""
        handle.requeue()
        self._settled(1)

    def reject(self, handle: Any) -> None:
        """The message is a dead letter."""
        handle.reject()
        self._settled(1)

    def _settled(self, count: int) -> None:
        self.credits[self.queue] += count
        # One that works fast is given some ahead for a moment, which no other consumer gets meanwhile.
        channel = self._channel._channel_consumer
        wait_until(lambda: not channel.ahead and channel._pace is None, "the end of what it has ahead")

    def close(self) -> None:
        """End the connection; messages go back to their places."""
        with contextlib.suppress(OSError, *self.connection.connection_errors):
            self.connection.release()
