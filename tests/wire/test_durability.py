"""Durability over restarts, kills, and a database that goes away under traffic."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from tests.wire.broker import LEASED, NO_RECEIVE, Blip, Broker, Database, Sspq, message, nack, put
from wire.blipmq import codec as blipmq
from wire.sspq.codec import CONFIRM_PACKET, RECEIVE_PACKET, encode_send


class Restartable:
    """A broker that a test may stop, kill and start again."""

    def __init__(self, store: Database) -> None:
        self.store = store
        self.now: Broker
        self.start()

    def restart(self) -> None:
        """Stop in order, and start again."""
        self.now = self.now.restarted()

    def kill(self) -> None:
        """Kill -9, and start again."""
        assert self.now.stop(signal.SIGKILL) == -signal.SIGKILL
        self.start()

    def start(self, drain_timeout: int = 80) -> None:
        """Start a broker that has ended. Of the time that it has to stop it leaves a twentieth for its last commit."""
        self.now = Broker(self.store, BROKER_DRAIN_TIMEOUT=drain_timeout).wait_ready()


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Restartable]:
    restartable = Restartable(store)
    yield restartable
    restartable.now.stop()


def test_subscriptions_messages_and_dead_letters_survive_a_restart(broker: Restartable, store: Database) -> None:
    with Blip(broker.now.blipmq) as client:
        subscription = client.subscribe("überlebt".encode())
        client.publish("überlebt".encode(), *(b"%d" % n for n in range(20)))
        tag = client.next(subscription).cid
    put(broker.now.sspq, b"dead", retries=0)
    with Sspq(broker.now.sspq) as consumer:
        assert consumer.receive() == message(b"dead", 0)
        consumer.hang_up()
    put(broker.now.sspq, b"alive", retries=7)
    broker.restart()
    with Blip(broker.now.blipmq) as client, Sspq(broker.now.sspq) as consumer:
        # The one that was out when the broker stopped is there too, wherever in the queue.
        bodies = client.consume(subscription, 20)
        assert sorted(bodies, key=int) == [b"%d" % n for n in range(20)]
        assert client.poll(subscription) is None
        client.publish("überlebt".encode(), b"after")
        assert client.next(subscription).cid > tag
        assert consumer.receive() == message(b"alive", 7)
        consumer.confirm()
        assert consumer.dead_receive() == message(b"dead", 0)
        consumer.confirm()
        consumer.hang_up()
    store.wait_for_states(store.queue("sspq"))


def test_an_acknowledged_message_stays_away_after_a_restart(broker: Restartable) -> None:
    with Blip(broker.now.blipmq) as client:
        subscription = client.subscribe(b"settled")
        client.publish(b"settled", b"a", b"b")
        client.ack(client.next(subscription).cid, subscription)
    broker.restart()
    with Blip(broker.now.blipmq) as client:
        assert client.consume(subscription, 1) == [b"b"]
        assert client.poll(subscription) is None


def test_everything_confirmed_before_a_kill_is_there_after_it(broker: Restartable) -> None:
    with Blip(broker.now.blipmq) as client:
        subscription = client.subscribe(b"killed")
        confirmed = [b"%d" % n for n in range(200)]
        for body in confirmed:
            client.publish(b"killed", body)
        client.send(*(blipmq.encode_publish(5, 1, b"killed", b"unconfirmed") for _ in range(50)))
        broker.kill()
    with Blip(broker.now.blipmq) as client:
        bodies = client.consume(subscription, 200)
        assert bodies == confirmed
        while (delivery := client.poll(subscription)) is not None:
            assert delivery.body == b"unconfirmed"
            client.ack(delivery.cid, subscription)


def test_a_message_held_when_the_broker_is_killed_is_delivered_again(broker: Restartable) -> None:
    with Sspq(broker.now.sspq) as consumer:
        consumer.send(encode_send(b"x", 3), RECEIVE_PACKET)
        assert consumer.read() == message(b"x", 3)
        broker.kill()
    with Sspq(broker.now.sspq) as consumer:
        assert consumer.receive() == message(b"x", 3)
        consumer.confirm()
        consumer.hang_up()


# An orderly stop.


def test_a_stop_answers_waiting_clients_accepts_confirms_and_keeps_sent_messages(
    broker: Restartable, store: Database
) -> None:
    with Sspq(broker.now.sspq) as waiting, Sspq(broker.now.sspq) as holding, Blip(broker.now.blipmq) as client:
        subscription = client.subscribe(b"drain")
        holding.send(encode_send(b"held", 3), RECEIVE_PACKET)
        assert holding.read() == message(b"held", 3)
        waiting.send(RECEIVE_PACKET)
        client.send(blipmq.encode_publish(5, 1, b"drain", b"x"), blipmq.encode_ping(6))
        assert client.read().cid == 6
        broker.now.process.send_signal(signal.SIGTERM)
        assert waiting.read() == NO_RECEIVE
        assert waiting.rest() == b""
        assert client.rest() == b""
        holding.send(CONFIRM_PACKET, RECEIVE_PACKET)
        assert holding.rest() in (b"", bytes.fromhex("55990e0000000000"))
    assert broker.now.wait() == 0
    assert store.states(store.queue("sspq")).total() == 0
    assert store.states(store.queue_of(subscription)) == {0: 1}
    assert store.rows("select 1 from queues_node") == []
    assert store.rows("select 1 from queues_openmessage where state in (1, 4)") == []
    broker.start()


def test_a_stop_ends_in_time_and_takes_back_what_is_not_confirmed_without_costing_a_retry(
    broker: Restartable, store: Database
) -> None:
    assert broker.now.stop() == 0
    broker.start(drain_timeout=12)
    with Sspq(broker.now.sspq) as holding, Blip(broker.now.blipmq) as poller:
        holding.send(encode_send(b"held", 3), RECEIVE_PACKET)
        assert holding.read() == message(b"held", 3)
        subscription = poller.subscribe(b"taken back")
        store.execute("update queues_queue set ack_timeout = '1 hour' where id = %s", store.queue_of(subscription))
        poller.publish(b"taken back", b"polled", b"prefetched")
        assert poller.next(subscription).body == b"polled"
        assert broker.now.stop() == 0  # although no consumer confirms
    assert store.states(store.queue("sspq")) == {0: 1}
    assert store.states(store.queue_of(subscription)) == {0: 2}
    broker.start()
    with Sspq(broker.now.sspq) as consumer, Blip(broker.now.blipmq) as poller:
        assert consumer.receive() == message(b"held", 3)
        consumer.confirm()
        consumer.hang_up()
        assert sorted(poller.consume(subscription, 2)) == [b"polled", b"prefetched"]


def test_ctrl_c_is_an_orderly_stop_too(broker: Restartable, store: Database) -> None:
    put(broker.now.sspq, b"x")
    assert broker.now.stop(signal.SIGINT) == 0
    assert "Traceback" not in broker.now.log
    assert store.states(store.queue("sspq")) == {0: 1}
    broker.start()
    with Sspq(broker.now.sspq) as consumer:
        assert consumer.receive() == message(b"x", 3)
        consumer.confirm()
        consumer.hang_up()


# The database away.


def terminate_engine(store: Database, *purposes: str) -> None:
    """End the engine's connections, all or those for some purposes."""
    names = [f"fivewire {purpose}" for purpose in purposes]
    store.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and application_name like 'fivewire %%' and (%s::text[] = '{}' or application_name = any(%s))",
        names,
        names,
    )


class Traffic:
    """A producer that counts what is confirmed, and a consumer of it, in threads of their own."""

    def __init__(self, broker: Broker, topic: bytes) -> None:
        self.broker, self.topic = broker, topic
        self.confirmed: list[int] = []
        self.received: list[int] = []
        self.producing = True
        self.failure: BaseException | None = None
        with Blip(broker.blipmq) as client:
            self.subscription = client.subscribe(topic)
        self.threads = [threading.Thread(target=self._guard, args=(job,)) for job in (self._produce, self._consume)]
        for thread in self.threads:
            thread.start()

    def _guard(self, job: object) -> None:
        try:
            assert callable(job)
            job()
        except BaseException as error:
            self.failure = error
            self.producing = False

    def _produce(self) -> None:
        with Blip(self.broker.blipmq) as client:
            number = 0
            while self.producing:
                numbers = range(number, number + 10)
                client.publish(self.topic, *(b"%d" % n for n in numbers))
                self.confirmed += numbers
                number += 10

    def _consume(self) -> None:
        with Blip(self.broker.blipmq) as client:
            poll = [blipmq.encode_poll(5, self.subscription)] * 20
            acks: list[bytes] = []
            while self.producing or not set(self.confirmed) <= set(self.received):
                frames = client.ask(*acks, *poll)
                deliveries = [frame for frame in frames if frame.kind == blipmq.PUBLISH]
                self.received += [int(frame.body) for frame in deliveries]
                acks = [blipmq.encode_ack(frame.cid, self.subscription) for frame in deliveries]
            client.ask(*acks)

    def wait_for(self, count: int) -> None:
        """Wait until so many messages are confirmed."""
        wait_until(lambda: len(self.confirmed) >= count or self.failure, f"{count} confirmed messages")

    def stop(self) -> None:
        """Stop producing; wait until all that was confirmed has been received."""
        self.producing = False
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), (len(self.confirmed), len(set(self.received)))
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("purposes", [(), ("writer",), ("settlements",), ("fetcher",), ("listener",), ("requests",)])
def test_nothing_confirmed_is_lost_when_the_databases_connections_are_cut(
    broker: Restartable, store: Database, purposes: tuple[str, ...]
) -> None:
    traffic = Traffic(broker.now, b"cut " + " ".join(purposes).encode())
    try:
        for _ in range(3):
            before = len(traffic.confirmed)
            traffic.wait_for(before + 50)
            terminate_engine(store, *purposes)
        traffic.wait_for(len(traffic.confirmed) + 50)
        with Blip(broker.now.blipmq) as client:
            assert client.subscribe(b"after the cut") > traffic.subscription
    finally:
        traffic.stop()
    queue = store.queue_of(traffic.subscription)

    def drained() -> bool:
        with Blip(broker.now.blipmq) as client:
            while (delivery := client.poll(traffic.subscription)) is not None:
                client.ask(blipmq.encode_ack(delivery.cid, traffic.subscription))
        return not store.states(queue)

    wait_until(drained)


def test_a_publish_while_the_database_is_away_is_confirmed_when_it_is_back(
    broker: Restartable, store: Database
) -> None:
    with Blip(broker.now.blipmq) as client:
        subscription = client.subscribe(b"away")
        with store.unreachable():
            terminate_engine(store)
            client.send(
                blipmq.encode_publish(5, 1, b"away", b"x"),
                blipmq.encode_ping(6),
                blipmq.encode_subscribe(7, b"made while away", 1),
                blipmq.encode_ack(8, 999_999_999),
            )
            assert client.is_silent(0.5)
        assert client.read() == (blipmq.PONG, 6, b"")
        assert client.read().subscription > subscription
        assert client.read() == nack(8, 404, "unknown subscription or delivery tag")
        assert store.payloads(store.queue_of(subscription)) == [b"x"]
        assert client.consume(subscription, 1) == [b"x"]


def test_a_message_polled_before_the_database_went_away_may_be_acknowledged_after(
    broker: Restartable, store: Database
) -> None:
    with Blip(broker.now.blipmq) as client:
        subscription = client.subscribe(b"ack after")
        queue = store.queue_of(subscription)
        store.execute("update queues_queue set ack_timeout = '1 hour' where id = %s", queue)
        client.publish(b"ack after", b"x")
        delivery = client.next(subscription)
        terminate_engine(store)
        wait_until(lambda: store.states(queue)[LEASED] == 0)
        client.ack(delivery.cid, subscription)
        store.wait_for_states(queue)
        assert client.poll(subscription) is None


def test_a_message_held_while_the_database_went_away_is_not_lost(broker: Restartable, store: Database) -> None:
    with Sspq(broker.now.sspq) as holding:
        holding.send(encode_send(b"x", 3), RECEIVE_PACKET)
        assert holding.read() == message(b"x", 3)
        terminate_engine(store)
        wait_until(lambda: store.states(store.queue("sspq"))[LEASED] == 0)
        holding.hang_up()
    with Sspq(broker.now.sspq) as consumer:
        assert consumer.receive().payload == b"x"
        consumer.confirm()
        consumer.hang_up()
    store.wait_for_states(store.queue("sspq"))


def test_a_publish_that_waits_too_long_for_the_database_is_refused_and_the_connection_goes_on(store: Database) -> None:
    with Broker(store, BROKER_PUBLISH_TIMEOUT=1) as impatient, Blip(impatient.blipmq) as client:
        subscription = client.subscribe(b"impatient")
        with store.unreachable():
            terminate_engine(store)
            client.send(
                blipmq.encode_publish(101, 1, b"impatient", b"x"),
                blipmq.encode_publish(102, 1, b"impatient", b"y"),
                blipmq.encode_subscribe(103, b"impatient", 1),
                blipmq.encode_ping(104),
            )
            refused = [client.read() for _ in range(3)]
            assert [(frame.kind, frame.cid) for frame in refused] == [(blipmq.NACK, cid) for cid in (101, 102, 103)]
            assert all(int.from_bytes(frame.payload[:2], "big") == 500 for frame in refused)
            assert refused[0].payload[4:].startswith(b"durable publish failed: The database is away: ")
            assert client.read() == (blipmq.PONG, 104, b"")
        wait_until(lambda: client.ask(blipmq.encode_publish(105, 1, b"impatient", b"z")) == [])
        assert client.consume(subscription, 1) == [b"z"]
        assert client.poll(subscription) is None
