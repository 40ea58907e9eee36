"""A queue with a single active consumer, over each protocol and two listener processes: one of all consumers is given
messages; when it ends, or its process is killed, the next one goes on in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from itertools import count

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Blip, Broker, Database, Sspq, message, put
from wire.blipmq import codec as blipmq
from wire.overhop.client import Client as Overhop
from wire.overhop.client import Quest
from wire.sspq.codec import RECEIVE_PACKET

_numbers = count(1)


@pytest.fixture(scope="module")
def brokers(store: Database) -> Iterator[tuple[Broker, Broker]]:
    with Broker(store) as first, Broker(store) as second:
        yield first, second


@pytest.fixture
def queue(store: Database) -> Iterator[str]:
    """The name of a queue with a single active consumer."""
    name = f"turns-{next(_numbers)}"
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout, single_active_consumer)"
        " values (%s, gen_random_uuid(), 5, '0 s', null, true)", name,
    )  # fmt: skip
    yield name
    store.execute("delete from queues_queue where name = %s", name)


@pytest.fixture
def sspq(store: Database, brokers: tuple[Broker, Broker]) -> Iterator[int]:
    """The queue of the SSPQ listeners, with a single active consumer."""
    id = store.queue("sspq")
    store.change_queue(id, single_active_consumer=True)
    store.wait_until_obeyed(*brokers)
    yield id
    store.change_queue(id, single_active_consumer=False)
    store.wait_until_obeyed(*brokers)


def wait_for_line(store: Database, queue: int, length: int) -> None:
    """Wait until so many consumers stand in line, the first of them active."""
    sql = "select array_agg(active order by id) from queues_consumer where queue_id = %s"
    wanted = [n == 0 for n in range(length)] or None
    wait_until(lambda: store.value(sql, queue) == wanted, lambda: f"{length} in line (now {store.value(sql, queue)})")


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def quests(worker: Overhop, count: int) -> list[Quest]:
    found = [worker.next_quest(PATIENCE) for _ in range(count)]
    assert None not in found, found
    return [quest for quest in found if quest is not None]


def is_idle(worker: Overhop) -> bool:
    """Whether a worker is given nothing: what is pushed to it comes before the answer to a later PING."""
    worker.ping()
    return worker.next_quest(0.05) is None


# One process.


def test_overhop_workers_have_their_turns_in_the_order_in_which_they_subscribed(
    brokers: tuple[Broker, Broker], store: Database, queue: str
) -> None:
    id = store.queue(queue)
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(Overhop(*brokers[0].overhop)) for _ in range(3))
        for n, worker in enumerate((first, second, third)):
            worker.subscribe(queue, 3)
            wait_for_line(store, id, n + 1)
        for n in range(1, 7):
            first.enqueue(queue, n)
        taken = quests(first, 3)
        assert [quest.payload for quest in taken] == [1, 2, 3]
        first.done(taken[0].jid)
        assert is_idle(second)
        first.close()
        taken = quests(second, 3)
        assert [(quest.payload, quest.attempt) for quest in taken] == [(2, 2), (3, 2), (4, 1)]
        assert is_idle(third)
        second.goodbye()  # without an attempt more
        taken = quests(third, 3)
        assert [(quest.payload, quest.attempt) for quest in taken] == [(2, 2), (3, 2), (4, 1)]
        third.goodbye()
    wait_for_line(store, id, 0)


def test_an_overhop_worker_that_unsubscribes_may_finish_its_jobs_before_the_next_goes_on(
    brokers: tuple[Broker, Broker], store: Database, queue: str
) -> None:
    id = store.queue(queue)
    with Overhop(*brokers[0].overhop) as first, Overhop(*brokers[1].overhop) as second:
        sid = first.subscribe(queue, 2)
        wait_for_line(store, id, 1)
        second.subscribe(queue, 2)
        wait_for_line(store, id, 2)
        for n in range(1, 5):
            second.enqueue(queue, n)
        taken = quests(first, 2)
        first.unsubscribe(sid)
        assert is_idle(second)
        for quest in taken:
            first.done(quest.jid)
        assert [quest.payload for quest in quests(second, 2)] == [3, 4]
        wait_for_line(store, id, 1)


def test_an_sspq_consumer_is_followed_when_it_disconnects_with_the_message_that_it_had(
    brokers: tuple[Broker, Broker], store: Database, sspq: int
) -> None:
    put(brokers[0].sspq, b"1", b"2", b"3")
    with Sspq(brokers[0].sspq) as first, Sspq(brokers[0].sspq) as second, Sspq(brokers[1].sspq) as third:
        assert first.receive_message() == message(b"1", 3)
        first.confirm()
        for n, waiting in enumerate((second, third)):
            waiting.send(RECEIVE_PACKET)
            wait_for_line(store, sspq, n + 2)
        assert first.receive() == message(b"2", 3)
        assert second.is_silent()
        first.hang_up()
        assert second.read() == message(b"2", 2)
        second.confirm()
        assert third.is_silent()
        second.hang_up()
        assert third.read() == message(b"3", 3)
        third.confirm()
        third.hang_up()
    store.wait_for_states(sspq)


def blip_take(consumer: Blip, subscription: int, count: int) -> list[tuple[bytes, int]]:
    """POLL until so many have come: bodies and tags."""
    taken: list[tuple[bytes, int]] = []

    def complete() -> bool:
        polls = [blipmq.encode_poll(5, subscription)] * (count - len(taken))
        taken.extend((frame.body, frame.cid) for frame in consumer.ask(*polls))
        return len(taken) >= count

    wait_until(complete, lambda: f"{count} deliveries (now {taken})")
    return taken


def test_what_a_blipmq_connection_has_not_acknowledged_goes_to_the_next_one_at_once_and_in_order(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    first, second = Blip(brokers[0].blipmq), Blip(brokers[1].blipmq)
    subscription = first.subscribe(b"turns")
    id = store.queue_of(subscription)
    store.change_queue(id, single_active_consumer=True, max_attempts=5)
    wait_until(lambda: first.poll(subscription) is None and store.rows("select 1 from queues_consumer"), "the line")
    wait_for_line(store, id, 1)
    assert second.poll(subscription) is None
    wait_for_line(store, id, 2)
    second.publish(b"turns", *bodies(1, 9))
    taken = blip_take(first, subscription, 5)
    assert [body for body, _ in taken] == bodies(1, 5)
    first.ack(taken[0][1], subscription)
    assert second.ask(*[blipmq.encode_poll(5, subscription)] * 3) == []
    first.reset()
    again = blip_take(second, subscription, 2)
    assert [body for body, _ in again] == bodies(2, 3)
    # Acknowledged late, over another connection: one that is out again, and one that is not.
    with Blip(brokers[0].blipmq) as late:
        tags = [tag for body, tag in taken if body in (b"2", b"4")]
        assert late.ask(*(blipmq.encode_ack(tag, subscription) for tag in tags)) == []
    wait_until(lambda: sorted(store.payloads(id)) == [b"3", *bodies(5, 9)], "the late acknowledgements")
    rest = blip_take(second, subscription, 5)
    assert [body for body, _ in rest if body != b"4"] == bodies(5, 9)
    second.ask(*(blipmq.encode_ack(tag, subscription) for _, tag in (*again, *rest)))
    second.close()
    store.wait_for_states(id)


# A killed process.


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
def test_the_worker_of_another_process_goes_on_in_order_when_the_active_ones_process_is_killed(
    brokers: tuple[Broker, Broker], store: Database, queue: str, audited: bool
) -> None:
    id, prefetch = store.queue(queue), 20
    store.change_queue(id, audited=audited)
    done: list[int] = []
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(Broker(store))
        first = Overhop(*victim.overhop)
        first.subscribe(queue, prefetch)
        wait_for_line(store, id, 1)
        second = stack.enter_context(Overhop(*brokers[1].overhop))
        sid = second.subscribe(queue, prefetch)
        wait_for_line(store, id, 2)
        producer = stack.enter_context(Overhop(*brokers[0].overhop))
        for n in range(100):
            producer.enqueue(queue, n)
        for quest in quests(first, prefetch)[:7]:
            assert isinstance(quest.payload, int)
            first.done(quest.jid)
            done.append(quest.payload)
        assert is_idle(second)
        assert victim.stop(signal.SIGKILL) == -signal.SIGKILL
        for n in range(100, 120):
            producer.enqueue(queue, n)
        after: list[int] = []
        while len(after) < 113:
            [quest] = quests(second, 1)
            assert isinstance(quest.payload, int)
            after.append(quest.payload)
            second.done(quest.jid)
            second.grant(sid, 1)
        with contextlib.suppress(OSError):
            first.close()
    assert done == list(range(7))
    assert after == list(range(7, 120))
    store.wait_for_states(id)


def test_a_killed_blipmq_process_repeats_what_was_not_acknowledged_and_nothing_else(
    brokers: tuple[Broker, Broker], store: Database
) -> None:
    survivor = Blip(brokers[0].blipmq)
    subscription = survivor.subscribe(b"killed turns")
    id = store.queue_of(subscription)
    store.change_queue(id, single_active_consumer=True, max_attempts=5)
    with Broker(store) as victim:
        first = Blip(victim.blipmq)
        assert first.poll(subscription) is None
        wait_for_line(store, id, 1)
        assert survivor.poll(subscription) is None
        wait_until(lambda: survivor.poll(subscription) is None and store.value(
            "select count(*) from queues_consumer where queue_id = %s", id) == 2, "two in line")  # fmt: skip
        survivor.publish(b"killed turns", *bodies(1, 50))
        taken = blip_take(first, subscription, 10)
        assert first.ask(*(blipmq.encode_ack(tag, subscription) for _, tag in taken[:4])) == []
        wait_until(lambda: len(store.payloads(id)) == 46, "the acknowledgements")
        assert victim.stop(signal.SIGKILL) == -signal.SIGKILL
        first.close()
    assert [body for body, _ in taken] == bodies(1, 10)
    after = blip_take(survivor, subscription, 46)
    assert [body for body, _ in after] == bodies(5, 50)
    survivor.close()
