"""The machine's consumers: they ask, settle, fail, reject and leave."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.queues.model.comparison import picked
from tests.queues.model.consumers import CeleryConsumer, Consumer, Poller, Receiver, Recipient, Worker
from tests.queues.model.publishing import PublishingMachine
from tests.queues.model.reference import READY

CREDITS = st.sampled_from([1, 2, 3, 20, 200])
#: Of the messages that a consumer has, those that it settles together.
PARTS = {"all": slice(None), "first half": slice(0, None, 2), "last": slice(-1, None), "first": slice(0, 1)}
NODE = st.integers(0, 1)
#: Which one of those that there are: nothing else may be drawn, for who has got what is not the same in each run.
PICK = st.integers(0, 999)


class ConsumingMachine(PublishingMachine):
    """Messages are delivered and settled."""

    @rule(n=st.integers(0, 1), credits=CREDITS, graves=st.booleans(), node=NODE)
    def grant(self, n: int, credits: int, graves: bool, node: int = 0) -> None:
        self._worker(node, n).grant((self.graves if graves else self.main).name, credits)
        self._check()

    @rule(node=NODE)
    def receive(self, node: int = 0) -> None:
        """Over SSPQ."""
        receivers = [one for one in self._at(Receiver, node) if one.is_idle]
        receiver: Receiver = (
            receivers[0] if receivers else self._add(Receiver(self.brokers.at(node), self.main.name))
        )
        receiver.receive()
        self._check()

    @rule(count=CREDITS, node=NODE)
    def poll(self, count: int = 1, node: int = 0) -> None:
        """Over BlipMQ."""
        if not self.copies.deliverable(1):
            return
        pollers = self._at(Poller, node)
        poller = (
            pollers[0] if pollers else self._add(Poller(self.brokers.at(node), self.copies.name, self.subscription))
        )
        poller.poll(self.copies.deliverable(count))
        self._check()

    @precondition(lambda self: self.celery)
    @rule(prefetch=CREDITS)
    def consume_from_celery(self, prefetch: int) -> None:
        self._add(CeleryConsumer(self.brokers.celery_url, self.main.name, prefetch))
        self._check()

    @rule(node=NODE)
    def take_mailbox(self, node: int = 0) -> None:
        """The peer connects, perhaps to another node: what its earlier connection has goes over to this one."""
        earlier = self._of(Recipient)
        new = Recipient(self.brokers.at(node), self.peer, self.letters.name, self.key)
        for consumer in earlier:
            self._drop(consumer)
            for label in consumer.held:
                self.letters.hand_back(label)
        self._add(new)
        self._check()

    def _settle(self, consumer: Consumer, label: str) -> None:
        name, handle = consumer.held.pop(label)
        assert consumer.settle(handle), label
        self.queues[name].settle(label)
        self._works(consumer)

    @rule(pick=PICK)
    def settle_one(self, pick: int) -> None:
        for consumer, label in picked(self._held(Consumer), pick):
            self._settle(consumer, label)
            self._check()

    def settle(self, label: str) -> None:
        """A message of `main`."""
        [consumer] = [one for one, held in self._held(Worker, Receiver, CeleryConsumer) if held == label]
        self._settle(consumer, label)
        self._check()

    @rule(pick=PICK, part=st.sampled_from([*PARTS]))
    def settle_some(self, pick: int, part: str) -> None:
        consumers = [one for one in self.consumers if not isinstance(one, Receiver) and one.held]
        for consumer in picked(consumers, pick):
            self._settle_part(consumer, list(consumer.held)[PARTS[part]])
            self._check()

    def _settle_part(self, consumer: Consumer, labels: Sequence[str]) -> None:
        """Settle several messages at once."""
        taken = [(label, *consumer.held.pop(label)) for label in labels]
        consumer.settle_many([handle for _, _, handle in taken])
        for label, name, _ in taken:
            self.queues[name].settle(label)
        self._works(consumer)

    def _works(self, consumer: Consumer) -> None:
        """A consumer has settled messages. One of Celery's is given some ahead for a moment, which others overtake."""
        if isinstance(consumer, CeleryConsumer):
            for message in self.main.of(READY):
                message.nodes.add(CeleryConsumer)

    @rule(pick=PICK, delay=st.sampled_from([0.0, 0.0, 0.02]))
    def fail_one(self, pick: int, delay: float) -> None:
        for _, label in picked(self._held(Worker, CeleryConsumer), pick):
            self.fail(label, delay)

    def fail(self, label: str, delay: float = 0.0) -> None:
        [consumer] = [one for one, held in self._held(Worker, CeleryConsumer) if held == label]
        name, handle = consumer.held.pop(label)
        consumer.fail(handle, delay)
        queue = self.queues[name]
        if not queue.gives_up(label):
            self._await_promotion(queue, label)
        queue.fail(label)
        self._works(consumer)
        self._check()

    @precondition(lambda self: self.celery)
    @rule(pick=PICK)
    def reject(self, pick: int) -> None:
        """Celery: the message is a dead letter."""
        for consumer, label in picked(self._held(CeleryConsumer), pick):
            name, handle = consumer.held.pop(label)
            consumer.reject(handle)
            self.queues[name].fail(label, gives_up=True)
            self._works(consumer)
            self._check()

    @rule(pick=PICK)
    def settle_late(self, pick: int) -> None:
        """Settle a delivery made before the leases were lost: valid if its message is stored and ready. What another
        node has by now in its memory may come again all the same."""
        self._stored_of(self.main)
        self._stored_of(self.graves)
        late = [
            (one, label) for one in self._of(Worker) for label, (name, _) in one.stale.items()
            if (message := self.queues[name].messages.get(label)) is not None and message.state == READY
            and not message.is_elsewhere(one.broker)
        ]  # fmt: skip
        for consumer, label in picked(late, pick):
            name, handle = consumer.stale.pop(label)
            if consumer.settle(handle):
                self.queues[name].settle(label)
            self._check()

    @rule(pick=PICK, polite=st.booleans())
    def disconnect_one(self, pick: int, polite: bool) -> None:
        for consumer in picked(self.consumers, pick):
            self.disconnect(consumer, polite)

    def disconnect(self, consumer: Consumer, polite: bool) -> None:
        """A worker that ends without GOODBYE, and a receiver, have failed; BlipMQ's deliveries stay out."""
        if isinstance(consumer, Poller):
            return
        self._drop(consumer)
        if isinstance(consumer, CeleryConsumer | Recipient) or (isinstance(consumer, Worker) and polite):
            consumer.goodbye() if isinstance(consumer, Worker) else consumer.close()
            for label, (name, _) in consumer.held.items():
                self.queues[name].hand_back(label)
        else:
            consumer.close()
            for label, (name, _) in consumer.held.items():
                self.queues[name].fail(label, in_place=self.queues[name].line is not None)
        self._check()
