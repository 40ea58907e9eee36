"""Clients under load: each a thread with a history of its own that connects again whenever its connection ends.

No client publishes anything twice: what a lost connection left unconfirmed stays so, and whatever comes twice is the
broker's doing.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from brokersite.rigs.process import HOST
from brokersite.rigs.torture.database import KEY
from brokersite.rigs.torture.history import Delivery, MessageId, Publish, RecordedConnection, make_body, parse_body
from brokersite.rigs.torture.listeners import ListenerProcess
from wire.blipmq import client as blipmq
from wire.client.errors import ClientError, ProtocolViolation, ReplyTimeout
from wire.sspq import client as sspq

#: Seconds between attempts to connect.
RETRY = 0.02
#: Seconds of silence from the broker, with the database restarted at once after every kill, that are too many.
SILENCE = 60.0
#: Seconds a consumer waits for a message before it looks whether the run is over.
TIMEOUT = 0.2
POLLS = 40
MAX_BURST = 60


@dataclass(slots=True)
class SharedLoad:
    """Shared by all clients of a run. Producers go on while `publishing` is set, consumers until `closed` is."""

    listeners: Sequence[ListenerProcess]
    publishing: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)


class LoadClient(ABC):
    """One client: `session` is what it does on one connection."""

    def __init__(self, name: str, stage: SharedLoad, seed: int) -> None:
        self.name = name
        self.stage = stage
        self.random = random.Random(f"{seed}/{name}")
        self.publishes: list[Publish] = []
        self.deliveries: list[Delivery] = []
        self.troubles: list[str] = []
        self.confirmed = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for its end; one that does not come is a trouble of its own."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.troubles.append(f"{self.name} hangs")

    @property
    def working(self) -> bool:
        """Whether it has anything left to do."""
        return not self.stage.closed.is_set()

    @abstractmethod
    def session(self, connection: RecordedConnection, listener: ListenerProcess) -> None:
        """Work on one connection until there is nothing to do, or an exception ends it."""

    def _run(self) -> None:
        while self.working:
            listener = self.random.choice(self.stage.listeners)
            try:
                self.session(RecordedConnection(self.name, listener.number, monotonic()), listener)
            except (ProtocolViolation, ReplyTimeout) as error:
                self.troubles.append(f"{self.name}: {type(error).__name__}: {error}")
            except (ClientError, OSError):
                pass  # killed, stopping, or not there yet
            except Exception as error:
                self.troubles.append(f"{self.name} failed: {error!r}")
                raise
            self.stage.closed.wait(RETRY)

    def next_message(self, connection: RecordedConnection) -> tuple[Publish, bytes]:
        """A message that is about to be published."""
        publish = Publish(MessageId(self.name, len(self.publishes)), monotonic(), connection=connection)
        self.publishes.append(publish)
        return publish, make_body(publish.message)

    def confirm(self, publishes: Sequence[Publish]) -> None:
        """The broker's barrier came behind these."""
        now = monotonic()
        for publish in publishes:
            publish.confirmed = now
        self.confirmed += len(publishes)


class TopicProducer(LoadClient):
    """Publishes bursts to a topic, each confirmed by a PONG."""

    def __init__(self, name: str, stage: SharedLoad, seed: int, topic: str, rate: float) -> None:
        """`rate`: messages a second, at most."""
        super().__init__(name, stage, seed)
        self._topic = topic
        self._rate = rate

    @property
    def working(self) -> bool:
        return self.stage.publishing.is_set()

    def session(self, connection: RecordedConnection, listener: ListenerProcess) -> None:
        with blipmq.Client(HOST, listener.blipmq, KEY, timeout=SILENCE, reconnect=False) as client:
            while self.working:
                size = self.random.randint(1, MAX_BURST)
                self._burst(client, connection, size)
                self.stage.closed.wait(size / self._rate)

    def _burst(self, client: blipmq.Client, connection: RecordedConnection, size: int) -> None:
        publishes, bodies = zip(*(self.next_message(connection) for _ in range(size)), strict=True)
        sent = dict(zip(client.publish_many(self._topic, bodies), publishes, strict=True))
        try:
            client.flush()
        except blipmq.NackError as refused:
            for error in (refused, *refused.others):
                sent.pop(error.correlation_id, None)
        self.confirm(list(sent.values()))


class SubscriptionConsumer(LoadClient):
    """Polls a subscription and acknowledges what it gets, or most of it when it is forgetful."""

    def __init__(
        self, name: str, stage: SharedLoad, seed: int, queue: str, subscription: int, forgetful: bool = False
    ) -> None:
        super().__init__(name, stage, seed)
        self._queue = queue
        self._subscription = subscription
        self._forgetful = forgetful

    def session(self, connection: RecordedConnection, listener: ListenerProcess) -> None:
        with blipmq.Client(HOST, listener.blipmq, KEY, timeout=SILENCE, reconnect=False) as client:
            acknowledged: list[Delivery] = []
            while self.working:
                messages = client.poll_many(self._subscription, POLLS, TIMEOUT)
                now = monotonic()
                for delivery in acknowledged:  # the PONG behind these POLLs came: the ACKs were read
                    delivery.taken = True
                got = [Delivery(self._queue, parse_body(message.body), connection, now) for message in messages]
                self.deliveries += got
                for delivery in got:
                    delivery.let_go = self._forgets(delivery.message)
                    delivery.acked = not delivery.let_go
                acknowledged = [delivery for delivery in got if delivery.acked]
                client.ack(*(m for m, delivery in zip(messages, got, strict=True) if delivery.acked))

    def _forgets(self, message: MessageId) -> bool:
        return self._forgetful and (message.sequence % 1000 == 11 or self.random.random() < 0.01)


def is_poison(message: MessageId) -> bool:
    """Whether no SSPQ client ever confirms this message."""
    return message.sequence % 60 == 7


class SspqPeer(LoadClient):
    """Receives and confirms; when it produces, too, each answer to a RECEIVE confirms what was sent before."""

    def __init__(self, name: str, stage: SharedLoad, seed: int, queue: str, produces: bool) -> None:
        super().__init__(name, stage, seed)
        self._queue = queue
        self._produces = produces

    def session(self, connection: RecordedConnection, listener: ListenerProcess) -> None:
        sent: list[Publish] = []
        covered = 0  # how many of them were sent before the RECEIVE that waits for its answer
        waiting = False
        before: Delivery | None = None
        with sspq.Client(HOST, listener.sspq, timeout=SILENCE, reconnect=False) as client:
            while self.working:
                if self._produces and self.stage.publishing.is_set() and self.random.random() < 0.3:
                    self._burst(client, connection, sent)
                if not waiting:
                    covered, waiting = len(sent), True
                try:
                    message = client.receive(TIMEOUT)
                    if message is None:
                        continue
                except sspq.Declined:
                    message = None  # an answer all the same
                waiting = False
                self.confirm(sent[:covered])
                del sent[:covered]
                if before is not None:  # the RECEIVE was behind its CONFIRM
                    before.taken = True
                if message is None:
                    return
                before = self._receive(client, connection, message)
                if before is None:
                    return

    def _burst(self, client: sspq.Client, connection: RecordedConnection, sent: list[Publish]) -> None:
        for _ in range(self.random.randint(1, 6)):
            publish, body = self.next_message(connection)
            sent.append(publish)
            client.send(body, retries=1 if is_poison(publish.message) else 3)

    def _receive(self, client: sspq.Client, connection: RecordedConnection, message: sspq.Message) -> Delivery | None:
        """Confirm a message; None for one that is to be returned by ending the connection."""
        delivery = Delivery(self._queue, parse_body(message.payload), connection, monotonic())
        self.deliveries.append(delivery)
        if is_poison(delivery.message):
            delivery.let_go = True
            return None
        delivery.acked = True
        client.confirm()
        return delivery
