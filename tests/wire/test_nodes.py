"""Several listener processes on one database: what is said to one holds for all, and any of them may die."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import wait_until
from tests.wire.broker import NO_RECEIVE, Address, Blip, Broker, Database, Sspq, message, nack, put
from wire.blipmq import codec as blipmq
from wire.sspq.codec import DEAD_RECEIVE_PACKET, RECEIVE_PACKET


@pytest.fixture(scope="module")
def brokers(store: Database) -> Iterator[tuple[Broker, Broker]]:
    with Broker(store) as first, Broker(store) as second:
        yield first, second


@pytest.fixture
def here(brokers: tuple[Broker, Broker]) -> Iterator[Blip]:
    with Blip(brokers[0].blipmq) as connection:
        yield connection


@pytest.fixture
def there(brokers: tuple[Broker, Broker]) -> Iterator[Blip]:
    with Blip(brokers[1].blipmq) as connection:
        yield connection


def in_parallel(*jobs: Callable[[], None]) -> None:
    """Run jobs in threads, and raise what one of them raised."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_processes_share_a_queue_every_message_once_and_both_busy(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    received: list[list[bytes]] = [[], []]

    def consume(address: Address, into: list[bytes]) -> None:
        with Sspq(address) as consumer:
            consumer.send(RECEIVE_PACKET)
            ready.wait()
            while (packet := consumer.read()) != message(b"end", 3):
                into.append(packet.payload)
                consumer.confirm()
                consumer.send(RECEIVE_PACKET)
            consumer.confirm()
            consumer.hang_up()

    ready = threading.Barrier(3)

    def produce() -> None:
        ready.wait()
        for start in range(0, 1000, 20):
            put(brokers[start // 20 % 2].sspq, *(b"%d" % n for n in range(start, start + 20)))
        wait_until(lambda: sum(map(len, received)) >= 1000)
        for _ in brokers:
            put(brokers[0].sspq, b"end")

    in_parallel(lambda: consume(brokers[0].sspq, received[0]), lambda: consume(brokers[1].sspq, received[1]), produce)
    assert sorted(received[0] + received[1]) == sorted(b"%d" % n for n in range(1000))
    assert min(map(len, received)) > 100
    store.wait_for_states(store.queue("sspq"))


def test_two_processes_share_a_subscription_every_message_once(here: Blip, there: Blip, store: Database) -> None:
    subscription = here.subscribe(b"shared")
    here.publish(b"shared", *(b"%d" % n for n in range(500)))
    bodies: list[bytes] = []

    def took_all() -> bool:
        for connection in (here, there):
            frames = connection.ask(*[blipmq.encode_poll(5, subscription)] * 10)
            connection.send(*(blipmq.encode_ack(frame.cid, subscription) for frame in frames))
            bodies.extend(frame.body for frame in frames)
        return not store.states(store.queue_of(subscription))

    wait_until(took_all)
    assert sorted(bodies) == sorted(b"%d" % n for n in range(500))


def test_a_message_polled_on_one_process_may_be_acknowledged_on_another(
    here: Blip, there: Blip, store: Database
) -> None:
    subscription = here.subscribe(b"ack elsewhere")
    store.change_queue(store.queue_of(subscription), max_attempts=2)
    assert there.poll(subscription) is None
    here.publish(b"ack elsewhere", b"x")
    delivery = here.next(subscription)
    assert there.ask(blipmq.encode_ack(delivery.cid, subscription)) == []
    store.wait_for_states(store.queue_of(subscription))
    assert here.poll(subscription) is None


def test_delivery_tags_of_two_processes_never_collide(here: Blip, there: Blip) -> None:
    subscription = here.subscribe(b"collide")
    here.publish(b"collide", b"a", b"b")
    one, two = here.next(subscription), there.poll(subscription)
    two = two or there.next(subscription)
    assert one.cid == 1 or two.cid == 1
    assert one.cid != two.cid or one.body == two.body


def test_a_subscribe_acknowledged_on_one_process_is_seen_by_publishes_on_the_other(here: Blip, there: Blip) -> None:
    for n in range(50):
        topic = b"seen %d" % (n % 10)
        there.publish(topic, b"perhaps unheard")
        subscription = here.subscribe(topic)
        there.publish(topic, b"%d" % n)
        assert here.next(subscription).body == b"%d" % n


def test_a_subscriber_on_another_process_is_woken(here: Blip, there: Blip) -> None:
    subscription = here.subscribe(b"woken")
    assert here.poll(subscription) is None
    for n in range(20):
        there.publish(b"woken", b"%d" % n)
        delivery = here.next(subscription)
        assert delivery.body == b"%d" % n
        here.ack(delivery.cid, subscription)


def test_a_waiting_receive_gets_what_is_sent_to_another_process(brokers: tuple[Broker, Broker]) -> None:
    with Sspq(brokers[0].sspq) as consumer:
        for n in range(20):
            consumer.send(RECEIVE_PACKET)
            put(brokers[1].sspq, b"%d" % n)
            assert consumer.read() == message(b"%d" % n, 3)
            consumer.confirm()
        consumer.hang_up()


def test_messages_prefetched_by_a_process_without_consumers_go_to_the_others_soon(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    with Sspq(brokers[1].sspq) as waiting, Sspq(brokers[0].sspq) as leaving:
        put(brokers[0].sspq, *(b"%d" % n for n in range(10)))
        taken = {leaving.receive().payload}
        leaving.confirm()
        leaving.hang_up()
        waiting.socket.settimeout(4.5)  # less than the 5 s after which what no other consumer wants goes back
        for _ in range(9):
            taken.add(waiting.receive().payload)
            waiting.confirm()
        assert taken == {b"%d" % n for n in range(10)}
        waiting.hang_up()
    store.wait_for_states(store.queue("sspq"))


def test_a_qos_0_message_reaches_a_subscriber_on_another_process(here: Blip, there: Blip, store: Database) -> None:
    subscription = here.subscribe(b"fleeting", 0)
    queue = store.queue_of(subscription)
    here.poll(subscription)
    wait_until(lambda: store.rows("select 1 from queues_interest where queue_id = %s", queue))
    here.poll(subscription)

    def arrived() -> bool:
        there.publish(b"fleeting", b"x", qos=0)
        delivery = here.poll(subscription)
        return delivery is not None and delivery.body == b"x"

    wait_until(arrived)


def test_a_dead_letter_made_on_one_process_wakes_a_reader_on_the_other(brokers: tuple[Broker, Broker]) -> None:
    with Sspq(brokers[1].sspq) as reader:
        reader.send(DEAD_RECEIVE_PACKET)
        assert reader.is_silent(0.05)
        put(brokers[0].sspq, b"x", retries=0)
        with Sspq(brokers[0].sspq) as consumer:
            assert consumer.receive() == message(b"x", 0)
            consumer.hang_up()
        assert reader.read() == message(b"x", 0)
        reader.confirm()
        reader.hang_up()


def test_a_concurrency_limit_holds_over_all_processes(brokers: tuple[Broker, Broker], store: Database) -> None:
    queue = store.queue("sspq")
    store.change_queue(queue, concurrency_limit=1)
    store.wait_until_obeyed(*brokers)
    with Sspq(brokers[0].sspq) as first, Sspq(brokers[1].sspq) as second:
        put(brokers[0].sspq, b"a", b"b")
        assert first.receive() == message(b"a", 3)
        second.send(RECEIVE_PACKET)
        assert second.is_silent(0.3)
        first.confirm()
        assert second.read() == message(b"b", 3)
        second.confirm()
        first.hang_up()
        second.hang_up()
    store.change_queue(queue, concurrency_limit=None)
    store.wait_for_states(queue)


def test_a_pause_and_a_revoked_key_are_heard_by_every_process(brokers: tuple[Broker, Broker], store: Database) -> None:
    store.add_key("everywhere")
    queue = store.queue("sspq")
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Blip(broker.blipmq, "everywhere")) for broker in brokers]
        consumers = [stack.enter_context(Sspq(broker.sspq)) for broker in brokers]
        for consumer in consumers:
            consumer.send(RECEIVE_PACKET)
            assert consumer.is_silent(0.05)
        store.change_queue(queue, paused=True, refuse_when_paused=True)
        store.execute("update queues_apikey set revoked_at = now() where name = 'everywhere'")
        for consumer in consumers:
            assert consumer.read() == NO_RECEIVE
        for connection in connections:
            assert connection.rest() == b""
    store.wait_until_obeyed(*brokers)  # which ends the pause


def test_an_ack_of_an_unknown_delivery_is_404_when_one_process_serves_the_queue(here: Blip) -> None:
    subscription = here.subscribe(b"alone")
    assert here.poll(subscription) is None
    answer = nack(99, 404, "unknown subscription or delivery tag")
    assert here.ask(blipmq.encode_ack(99, subscription)) == [answer]


def test_leases_of_a_killed_process_come_back_at_once(brokers: tuple[Broker, Broker], store: Database) -> None:
    survivor = brokers[0]
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(Broker(store))
        held = stack.enter_context(Sspq(victim.sspq))
        put(victim.sspq, *(b"%d" % n for n in range(50)))
        assert held.receive() == message(b"0", 3)
        blip = stack.enter_context(Blip(victim.blipmq))
        subscription = blip.subscribe(b"killed")
        blip.publish(b"killed", b"x")
        assert blip.next(subscription).body == b"x"
        node = store.value("select max(id) from queues_node")
        assert victim.stop(signal.SIGKILL) == -signal.SIGKILL
    received = set()
    with Sspq(survivor.sspq) as consumer, Blip(survivor.blipmq) as poller:
        for _ in range(50):
            received.add(consumer.receive())
            consumer.confirm()
        assert received == {message(b"%d" % n, 3) for n in range(50)}
        assert poller.consume(subscription, 1) == [b"x"]
        consumer.hang_up()
    assert store.rows("select 1 from queues_node where id = %s", node) == []


def test_a_process_that_is_stopped_and_continued_gives_out_nothing_that_others_have_and_comes_back_as_a_new_node(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    """It takes the 10 s after which other nodes end the session of a node that is silent."""
    survivor, queue = brokers[0], store.queue("sspq")
    names = {b"%d" % n for n in range(50)}
    with Broker(store) as frozen, Sspq(frozen.sspq) as holder, Sspq(frozen.sspq) as waiter:
        node = store.value("select max(id) from queues_node")
        put(frozen.sspq, *names)
        held = holder.receive().payload
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            waiter.send(RECEIVE_PACKET)  # it is read after the process goes on, whatever else has happened
            wait_until(lambda: not store.rows("select 1 from queues_node where id = %s", node), "the node's death")
            received = []
            with Sspq(survivor.sspq) as consumer:
                for _ in names:
                    received.append(consumer.receive().payload)
                    consumer.confirm()
                consumer.hang_up()
            assert Counter(received) == Counter(names), "what was held is given out once more, and nothing else"
            assert held in received
            store.wait_for_states(queue)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        wait_until(lambda: store.rows("select 1 from queues_node where id > %s", node), "the new node")
        put(survivor.sspq, b"new")
        assert waiter.read() == message(b"new", 3), "of what it had in memory nothing is given out"
        waiter.confirm()
        waiter.hang_up()
        holder.confirm()  # too late: the message is another's, and done
        holder.hang_up()
        store.wait_for_states(queue)


def test_a_frozen_process_that_had_the_active_consumer_is_followed_in_order_and_settles_and_delivers_nothing_more(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    """It takes the 10 s after which other nodes end the session of a node that is silent."""
    bodies = [b"%d" % n for n in range(9)]
    with Broker(store) as frozen, Blip(frozen.blipmq) as active, Blip(brokers[0].blipmq) as follower:
        node = store.value("select max(id) from queues_node")
        subscription = active.subscribe(b"frozen active")
        queue = store.queue_of(subscription)
        store.change_queue(queue, single_active_consumer=True)
        active.publish(b"frozen active", *bodies)
        held = [active.next(subscription) for _ in range(3)]
        assert [frame.body for frame in held] == bodies[:3]
        assert follower.poll(subscription) is None
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            acks = [blipmq.encode_ack(frame.cid, subscription) for frame in held]
            active.send(*acks, *[blipmq.encode_poll(9, subscription)] * 9)  # read when the process goes on
            assert follower.consume(subscription, len(bodies)) == bodies, "in order, from the first not acknowledged on"
            store.wait_for_states(queue)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        assert blipmq.PUBLISH not in [frame.kind for frame in active.ask()], "of what it had in memory nothing comes"
        wait_until(lambda: store.rows("select 1 from queues_node where id > %s", node), "the new node")
        settled = "select count(*) from queues_archive where queue_id = %s"
        assert store.value(settled, queue) == len(bodies), "once each"
        follower.publish(b"frozen active", b"new")
        assert active.poll(subscription) is None, "it stands in line behind the one that followed it"
        assert follower.consume(subscription, 1) == [b"new"]
        store.wait_for_states(queue)
        assert store.value(settled, queue) == len(bodies) + 1
