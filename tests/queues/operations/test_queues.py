"""Operators' actions on queues and messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg.errors import DeadlockDetected

from queues.api import publish, publish_many
from queues.engine.api import Engine, options_from_settings
from queues.engine.errors import QueueFull, QueueNotFound
from queues.errors import Busy, OperationError
from queues.models import ArchivedMessage, Message, Outcome, Queue, QueueCount, QueueTally, State, Subscription
from queues.operations import messages
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.store.counts import queue_counts
from queues.store.queries import text
from tests.queues import moving
from tests.queues.store import (
    OneDelivery,
    another_connection,
    assert_counts_are_exact,
    listening,
    make_node,
    make_queue,
    store,
)
from tests.tables import LOCK_WAITS, LOCKS
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db

WAITING_OR_DEAD = (State.READY, State.DELAYED, State.DEAD)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH", 2)


# Queues.


def test_a_dead_letter_queue_whose_own_dead_letters_would_come_back_is_refused_with_the_way() -> None:
    first = queue_operations.create_queue("first")
    second = queue_operations.create_queue("second", dead_letter_queue=first)
    first.dead_letter_queue = second
    problems = queue_operations.policy_problems(first)
    assert problems == {"dead_letter_queue": ["Dead letters would come back: first → second → first."]}


def test_a_queue_is_made_with_the_policy_given_and_defaults_for_the_rest(settings: Any) -> None:
    queue = queue_operations.create_queue("orders", message_ttl=1.5, max_length=3, overflow="drop-oldest")
    assert queue.message_ttl == timedelta(seconds=1.5)
    assert (queue.max_length, queue.overflow) == (3, "drop-oldest")
    assert queue.max_attempts == settings.BROKER_DEFAULT_MAX_ATTEMPTS
    assert queue.created_at is not None
    assert_counts_are_exact(queue)


def test_a_queue_is_made_by_one_insert_and_is_known_as_the_store_has_it(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(4):  # a savepoint and its release, who does it, the insert
        queue = queue_operations.create_queue("orders", message_ttl=1.5, max_attempts="4", retention="none")
    stored = Queue.objects.get(pk=queue.pk)
    for field in Queue._meta.concrete_fields:
        known, kept = getattr(queue, field.attname), getattr(stored, field.attname)
        assert (known, str(known)) == (kept, str(kept)), field.name


def test_a_name_that_is_taken_is_refused() -> None:
    queue_operations.create_queue("orders")
    with pytest.raises(queue_operations.QueueExists, match="'orders'"):
        queue_operations.create_queue("orders")


@pytest.mark.parametrize(
    ("name", "policy", "field"),
    [
        ("", {}, "name"),
        ("x" * 256, {}, "name"),
        ("a\0b", {}, "name"),
        ("_mine", {}, "name"),
        ("orders", {"message_ttl": 0}, "message_ttl"),
        ("orders", {"ack_timeout": -1}, "ack_timeout"),
        ("orders", {"retry_backoff": -0.1}, "retry_backoff"),
        ("orders", {"message_ttl": 1e30}, "message_ttl"),
        ("orders", {"max_length": 0}, "__all__"),
        ("orders", {"overflow": "explode"}, "overflow"),
        ("orders", {"retention": "some"}, "retention"),
        ("orders", {"max_attempts": -1}, "max_attempts"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_the_name_of_its_field(
    name: str, policy: dict[str, Any], field: str
) -> None:
    with pytest.raises(queue_operations.InvalidQueue) as refused:
        queue_operations.create_queue(name, **policy)
    assert list(refused.value.problems) == [field]
    assert not Queue.objects.exists()


def test_pause_and_resume_do_as_they_say_and_may_be_repeated() -> None:
    make_queue()
    for paused, changes in [(True, True), (True, False), (False, True)]:
        assert queue_operations.set_paused("orders", paused) is changes
        assert Queue.objects.get().paused is paused


@pytest.mark.parametrize(
    "act",
    [
        lambda name: queue_operations.set_paused(name, True),
        lambda name: queue_operations.set_paused(name, False),
        queue_operations.delete_queue,
        message_operations.purge,
        moving.put_back,
        message_operations.peek,
        lambda name: message_operations.move(name, "orders"),
        lambda name: message_operations.move("orders", name),
        lambda name: message_operations.remove_messages(name, [1]),
    ],
)
def test_a_queue_that_does_not_exist_is_named(act: Any) -> None:
    make_queue()
    with pytest.raises(QueueNotFound, match="'gone'"):
        act("gone")


# Deleting.


@pytest.mark.parametrize("state", State)
def test_a_queue_that_holds_anything_is_not_deleted(state: State) -> None:
    queue = make_queue()
    store(queue, state)
    with pytest.raises(queue_operations.QueueNotEmpty, match="holds 1 messages"):
        queue_operations.delete_queue("orders")
    assert_counts_are_exact(queue)


def test_an_empty_queue_is_deleted_with_everything_of_it() -> None:
    queue = make_queue()
    other = make_queue("other", dead_letter_queue=queue)
    store(queue)
    message_operations.purge("orders")
    assert queue_operations.delete_queue("orders") == 0
    assert not Queue.objects.filter(name="orders").exists()
    assert not QueueCount.objects.filter(queue_id=queue.pk).exists()
    assert not QueueTally.objects.filter(queue_id=queue.pk).exists()
    other.refresh_from_db()
    assert other.dead_letter_queue is None


def test_a_queue_is_deleted_by_force_with_messages_in_every_state(small_batches: None) -> None:
    queue, other = make_queue(), make_queue("other")
    store(other, count=2)
    for state in State:
        store(queue, state, 3)
    seen: list[int] = []
    assert queue_operations.delete_queue("orders", force=True, progress=seen.append) == 15
    assert not Queue.objects.filter(name="orders").exists()
    assert Message.objects.count() == assert_counts_are_exact(other).ready == 2
    assert ArchivedMessage.objects.filter(queue_id=queue.pk, outcome=Outcome.PURGED).count() == 15
    assert seen == sorted(seen)
    assert len(seen) > 5
    assert seen[-1] == 15


def test_messages_that_arrive_between_emptying_and_deleting_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue()
    store(queue)
    empty, rounds = queue_operations._empty, []

    def then_more(*arguments: Any) -> int:
        assert Queue.objects.get().paused is True  # nodes take nothing more into memory
        gone = empty(*arguments)
        rounds.append(gone)
        store(queue, State.LEASED if len(rounds) == 1 else State.READY, 3)
        return gone

    monkeypatch.setattr(queue_operations, "_empty", then_more)
    assert queue_operations.delete_queue("orders", force=True) == 7
    assert len(rounds) == 2  # once more for what had been leased meanwhile
    assert not Message.objects.exists()


def test_a_queue_that_is_filled_faster_than_it_is_emptied_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue()
    monkeypatch.setattr(queue_operations, "LAST_BATCH", 1)
    monkeypatch.setattr(queue_operations, "_empty", lambda queue, done, *_: (store(queue, count=2), done)[1])
    with pytest.raises(queue_operations.QueueBusy, match="keep arriving"):
        queue_operations.delete_queue("orders", force=True)
    assert Queue.objects.get().paused is False
    assert_counts_are_exact(queue)


@pytest.mark.django_db(transaction=True)
def test_a_queue_with_an_open_transaction_that_published_to_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_operations, "LOCK_TIMEOUT", "50")
    queue = make_queue()
    with another_connection() as other:
        other.execute("select 1 from queues_queue for key share")  # as a publish does
        for force in (False, True):
            with pytest.raises(queue_operations.QueueBusy, match="still open"):
                queue_operations.delete_queue("orders", force=force)
    assert queue_operations.delete_queue("orders") == 0
    with connection.cursor() as cursor:
        cursor.execute("show lock_timeout")
        assert cursor.fetchone() == ("0",)
    assert not Message.objects.filter(queue_id=queue.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_queue_is_deleted_while_its_counts_take_long_to_be_added_up() -> None:
    queue = make_queue()
    with another_connection() as rotation, another_connection() as other:
        other.autocommit = rotation.autocommit = True
        other.execute("insert into queues_queuetally (slot, queue_id, ready) values (1, %s, 0)", [queue.pk])
        other.execute(SLOW_COUNTS)
        other.execute("select pg_advisory_lock(1)")
        with ThreadPoolExecutor() as beside:
            emptied = beside.submit(lambda: rotation.execute("select queues_rotate_tallies(1)").fetchone())
            try:
                lasts = f"{LOCKS} and relation = 'queues_queuetally_1'::regclass and mode = 'ShareLock'"
                wait_until(lambda: other.execute(lasts).fetchone(), "the lock of the rotation")
                deleted = beside.submit(_delete_after_a_look, queue)
                wait_until(lambda: other.execute(WAITS_LONG).fetchone(), "the deletion, which waits for it")
            finally:
                other.execute("select pg_advisory_unlock(1)")
            assert deleted.result(PATIENCE) == 0
            assert emptied.result(PATIENCE) == (False,), "the deletion uses its tables"
        other.execute("drop function wait_for_the_test() cascade")
        assert rotation.execute("select queues_rotate_tallies(1)").fetchone() == (True,)
    assert not Queue.objects.exists()


def _delete_after_a_look(queue: Queue) -> int:
    """Delete a queue in the transaction in which its counts were read."""
    try:
        with transaction.atomic():
            assert queue_counts(queue.pk).held == 0
            return queue_operations.delete_queue(queue.name)
    finally:
        connections.close_all()


#: A session that is about to look whether what it waits for is a deadlock.
WAITS_LONG = """
select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
    and now() - query_start > 0.93 * current_setting('deadlock_timeout')::interval
"""

#: Counts are not added to while a session has the advisory lock 1.
SLOW_COUNTS = """
create function wait_for_the_test() returns trigger language plpgsql as $$
begin
    while not pg_try_advisory_xact_lock_shared(1) loop
        perform pg_sleep(0.005);
    end loop;
    return null;
end $$;
create trigger slow before insert on queues_queuecount for each statement execute function wait_for_the_test();
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("times", [3, 4])
def test_a_deletion_that_a_deadlock_has_ended_is_done_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    queue = make_queue()
    store(queue, count=3)
    delete, tries = queue_operations._delete_rows, 0

    def deadlock(pk: int, using: str) -> None:
        nonlocal tries
        tries += 1
        if tries <= times:
            raise OperationalError("deadlock detected") from DeadlockDetected("deadlock detected")
        delete(pk, using)

    monkeypatch.setattr(queue_operations, "_empty", lambda queue, done, *_: done)
    monkeypatch.setattr(queue_operations, "_delete_rows", deadlock)
    if times == 3:
        assert queue_operations.delete_queue("orders", force=True) == 3
        assert not Queue.objects.exists()
    else:
        with pytest.raises(Busy, match="in the way each time"):
            queue_operations.delete_queue("orders", force=True)
        assert Queue.objects.get().paused is False
        assert_counts_are_exact(queue)
    assert tries == 4


@pytest.mark.django_db(transaction=True)
def test_a_publish_that_waits_for_the_deletion_finds_no_queue() -> None:
    queue = make_queue()
    failed: list[Exception] = []

    def publish_from_elsewhere() -> None:
        try:
            publish("orders", b"x")
        except QueueNotFound as error:
            failed.append(error)
        finally:
            connections.close_all()

    with another_connection() as other:
        other.execute("delete from queues_queue where id = %s", (queue.pk,))
        thread = threading.Thread(target=publish_from_elsewhere)
        thread.start()
        with another_connection() as watcher:
            watcher.autocommit = True
            while thread.is_alive() and watcher.execute(LOCK_WAITS).fetchone() is None:
                thread.join(0.01)
        other.commit()
        thread.join(20)
    assert not Message.objects.exists()
    assert len(failed) == 1


@pytest.mark.django_db(transaction=True)
async def test_a_queue_is_deleted_under_a_running_node_that_delivers_from_it_and_is_fed() -> None:
    engine = Engine(options_from_settings("test"))
    stop = threading.Event()

    def feed() -> None:
        with contextlib.suppress(QueueNotFound):
            while not stop.is_set():
                publish_many("orders", [b"x"] * 50)
        connections.close_all()

    def make_and_fill() -> int:
        queue = make_queue()
        publish_many("orders", [b"x"] * 5000)
        connections.close_all()
        return queue.pk

    def delete() -> None:
        queue_operations.delete_queue("orders", force=True)
        connections.close_all()

    queue = await asyncio.to_thread(make_and_fill)
    await engine.start()
    try:
        async with asyncio.timeout(60):
            buffer = await engine.queue("orders")
            waiter = OneDelivery()
            buffer.wait(waiter)
            await waiter.delivered
            assert buffer.ready  # in memory, and not delivered
            feeding = asyncio.create_task(asyncio.to_thread(feed))
            await asyncio.to_thread(delete)
            await feeding
            with pytest.raises(QueueNotFound):
                await engine.queue("orders")
        assert engine.available
        assert engine.counts.reconnects == 0
    finally:
        stop.set()
        await engine.stop()
    assert await asyncio.to_thread(_held_of, queue) == 0


def _held_of(queue: int) -> int:
    """Rows of a queue, whether or not it exists."""
    count = Message.objects.filter(queue_id=queue).count()
    connections.close_all()
    return count


def test_a_subscription_is_deleted_with_its_queue_and_backlog() -> None:
    queue = make_queue("_subscription/1", kind="subscription")
    subscription = Subscription.objects.create(topic=b"prices", qos=1, queue=queue)
    store(queue, count=2)
    assert queue_operations.delete_subscription(subscription.pk) == 2
    assert not Subscription.objects.exists()
    assert not Queue.objects.exists()
    with pytest.raises(QueueNotFound, match="subscription"):
        queue_operations.delete_subscription(subscription.pk)


# Purging and removing.


def test_a_purge_takes_what_waits_and_leaves_dead_letters_and_leases(small_batches: None) -> None:
    queue = make_queue()
    for state in State:
        store(queue, state, 3)
    seen: list[int] = []
    assert message_operations.purge("orders", progress=seen.append) == 6
    assert seen == [2, 3, 5, 6]
    assert set(Message.objects.values_list("state", flat=True)) == {State.LEASED, State.DEAD, State.DEAD_LEASED}
    assert assert_counts_are_exact(queue).settled == 6
    assert ArchivedMessage.objects.filter(outcome=Outcome.PURGED).count() == 6


def test_a_purge_takes_a_batch_at_a_time_whatever_the_plan(small_batches: None) -> None:
    queue = make_queue()
    store(queue, count=5)
    with connection.cursor() as cursor:
        for method in ("hashagg", "hashjoin", "mergejoin", "material", "sort"):
            cursor.execute(f"set local enable_{method} = off")
    seen: list[int] = []
    assert message_operations.purge("orders", progress=seen.append) == 5
    assert seen == [2, 4, 5]


def test_a_purge_of_dead_letters_takes_them_alone() -> None:
    queue = make_queue()
    store(queue, State.DEAD, 2), store(queue, State.READY)
    assert message_operations.purge("orders", [State.DEAD]) == 2
    assert assert_counts_are_exact(queue).ready == 1


def test_a_purge_leaves_other_queues_and_what_arrives_while_it_works(small_batches: None) -> None:
    queue, other = make_queue(), make_queue("other")
    store(queue, count=4), store(other)

    def publish_more(done: int) -> None:
        publish("orders", b"later")

    assert message_operations.purge("orders", progress=publish_more) == 4
    assert {bytes(message.payload) for message in Message.objects.filter(queue=queue)} == {b"later"}
    assert assert_counts_are_exact(other).ready == 1


def test_a_purge_leaves_what_becomes_ready_while_it_removes_what_is_delayed() -> None:
    queue = make_queue()
    store(queue, State.DELAYED)

    def publish_more(done: int) -> None:
        publish("orders", b"later")

    assert message_operations.purge("orders", progress=publish_more) == 1
    assert [bytes(message.payload) for message in Message.objects.filter(queue=queue)] == [b"later"]


def test_a_purge_takes_messages_of_every_priority_and_leaves_later_ones_of_a_higher(small_batches: None) -> None:
    queue = make_queue()
    for priority in (-5, 0, 5):
        publish("orders", b"x", priority=priority)

    def publish_more(done: int) -> None:
        publish("orders", b"later", priority=9)

    assert message_operations.purge("orders", progress=publish_more) == 3
    assert {bytes(message.payload) for message in Message.objects.filter(queue=queue)} == {b"later"}


def test_nothing_is_archived_where_nothing_is_to_be_kept() -> None:
    store(make_queue(retention="none"))
    assert message_operations.purge("orders") == 1
    assert not ArchivedMessage.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_nodes_hear_of_a_purge_of_what_is_ready_and_of_no_other() -> None:
    queue = make_queue()
    make_node()
    with listening() as heard:
        message_operations.purge("orders", [State.DEAD, State.DELAYED])
        assert heard.take("purge") == []
        message_operations.purge("orders")
        assert heard.take("purge") == [queue.pk]


@pytest.mark.django_db(transaction=True)
def test_messages_locked_by_another_transaction_are_left_alone() -> None:
    queue = make_queue()
    ids = [message.pk for message in store(queue, count=2)]
    with another_connection() as other:
        other.execute("select 1 from queues_message where id = %s for update", (ids[0],))
        assert message_operations.purge("orders") == 1
    assert Message.objects.get().pk == ids[0]


def test_single_messages_are_removed_unless_a_consumer_has_them() -> None:
    queue = make_queue()
    ids = [store(queue, state)[0].pk for state in State]
    keep = store(queue)[0].pk
    assert message_operations.remove_messages("orders", [*ids, -1]) == 3
    assert set(Message.objects.values_list("id", flat=True)) == {keep, ids[State.LEASED], ids[State.DEAD_LEASED]}
    assert ArchivedMessage.objects.filter(outcome=Outcome.REMOVED).count() == 3
    assert_counts_are_exact(queue)


# Moving and putting back.


def test_messages_move_to_the_tail_of_the_target_in_order_and_keep_their_first_id(small_batches: None) -> None:
    source, target = make_queue(), make_queue("target")
    there = store(target)[0].pk
    first = [message.pk for message in store(source, count=5, key=None, headers={"a": 1})]
    seen: list[int] = []
    assert message_operations.move("orders", "target", progress=seen.append) == 5
    assert seen == [2, 4, 5]
    moved = list(Message.objects.filter(queue=target))
    assert moved[0].pk == there
    assert [message.origin_id for message in moved[1:]] == first
    assert all(message.headers == {"a": 1} for message in moved[1:])
    assert assert_counts_are_exact(source).settled == 5
    assert assert_counts_are_exact(target).published == 6


def test_at_most_as_many_move_as_were_asked_for_the_oldest_first(small_batches: None) -> None:
    source, target = make_queue(), make_queue("target")
    first = [message.pk for message in store(source, count=5)]
    assert message_operations.move("orders", "target", limit=3) == 3
    assert list(Message.objects.filter(queue=target).values_list("origin_id", flat=True)) == first[:3]


def test_moved_delayed_messages_keep_their_time_and_dead_letters_begin_anew() -> None:
    source, target = make_queue(), make_queue("target")
    due = store(source, State.DELAYED, attempts=2)[0].due_at
    store(source, State.DEAD, attempts=5, error="why")
    store(source, State.LEASED)
    assert message_operations.move("orders", "target", WAITING_OR_DEAD) == 2
    delayed, dead = Message.objects.filter(queue=target).order_by("-state")
    assert (delayed.state, delayed.due_at, delayed.attempts) == (State.DELAYED, due, 2)
    assert (dead.state, dead.attempts, dead.dead_at, dead.error) == (State.READY, 0, None, "why")
    assert_counts_are_exact(source)
    assert_counts_are_exact(target)


def test_a_key_that_is_taken_in_the_target_is_left_behind_and_others_are_kept() -> None:
    source, target = make_queue(), make_queue("target")
    store(source, key="taken"), store(source, key="free"), store(target, key="taken")
    message_operations.move("orders", "target")
    assert set(Message.objects.filter(queue=target).values_list("key", flat=True)) == {"taken", "free", None}


def test_moved_messages_take_the_targets_time_to_live_unless_they_have_one() -> None:
    source = make_queue()
    make_queue("target", message_ttl=timedelta(hours=1))
    store(source)
    publish("orders", b"", ttl=5)
    own = Message.objects.exclude(expires_at=None).get().expires_at
    message_operations.move("orders", "target")
    first, second = Message.objects.all()
    assert first.expires_at is not None
    assert second.expires_at == own


def test_a_target_that_rejects_takes_what_fits_and_says_that_it_is_full() -> None:
    source, target = make_queue(), make_queue("target", max_length=3)
    store(source, count=5), store(target)
    with pytest.raises(QueueFull, match="'target' holds 3"):
        message_operations.move("orders", "target")
    assert assert_counts_are_exact(source).ready == 3
    assert assert_counts_are_exact(target).ready == 3


def test_a_target_that_is_filled_exactly_is_no_error() -> None:
    store(make_queue(), count=2), make_queue("target", max_length=2)
    assert message_operations.move("orders", "target") == 2


def test_a_target_that_drops_the_oldest_keeps_the_newest() -> None:
    source, target = make_queue(), make_queue("target", max_length=2, overflow="drop-oldest")
    store(target, payload=b"old"), store(source, count=2, payload=b"new")
    assert message_operations.move("orders", "target") == 2
    assert [bytes(message.payload) for message in Message.objects.filter(queue=target)] == [b"new", b"new"]
    assert_counts_are_exact(target)


def test_a_queue_cannot_be_moved_to_itself() -> None:
    make_queue()
    with pytest.raises(OperationError, match="the same queue"):
        message_operations.move("orders", "orders")


@pytest.mark.django_db(transaction=True)
def test_nodes_hear_of_what_became_ready_by_a_move_or_by_being_put_back() -> None:
    source, target = make_queue(), make_queue("target")
    store(source), store(source, State.DEAD)
    with listening() as heard:
        message_operations.move("orders", "target")
        moving.put_back("orders")
        first, second = Message.objects.order_by("id")
        assert heard.take("ready") == [{str(target.pk): first.pk}, {str(source.pk): second.pk}]


def test_dead_letters_are_put_back_at_the_tail_with_no_attempts() -> None:
    queue = make_queue(message_ttl=timedelta(hours=1))
    dead = [message.pk for message in store(queue, State.DEAD, 3, attempts=5)]
    ready = store(queue)[0].pk
    assert moving.put_back("orders", dead[:2]) == 2
    rows = list(Message.objects.filter(state=State.READY).values_list("id", "origin_id", "attempts"))
    assert rows[0] == (ready, None, 0)
    assert [row[1:] for row in rows[1:]] == [(dead[0], 0), (dead[1], 0)]
    assert all(message.expires_at for message in Message.objects.filter(origin_id__in=dead))
    counts = assert_counts_are_exact(queue)
    assert (counts.published, counts.settled) == (4, 0)


def test_a_key_is_kept_by_what_is_put_back() -> None:
    store(make_queue(), State.DEAD, key="a")
    assert moving.put_back("orders") == 1
    assert Message.objects.get().key == "a"


def test_a_full_queue_takes_no_dead_letters_back() -> None:
    queue = make_queue(max_length=1)
    store(queue), store(queue, State.DEAD)
    with pytest.raises(QueueFull):
        moving.put_back("orders")
    assert assert_counts_are_exact(queue).dead == 1


def test_a_delayed_message_is_delivered_now() -> None:
    queue = make_queue()
    ids = [message.pk for message in store(queue, State.DELAYED, 2, attempts=1)]
    assert moving.deliver_now("orders", ids[:1]) == 1
    message = Message.objects.get(state=State.READY)
    assert (message.origin_id, message.due_at, message.attempts) == (ids[0], None, 1)
    assert_counts_are_exact(queue)


def test_peeking_shows_the_oldest_and_changes_nothing() -> None:
    make_queue()
    ids = publish_many("orders", [b"1", b"2", b"3"])
    before = list(Message.objects.values())
    assert [message.pk for message in message_operations.peek("orders", limit=2)] == ids[:2]
    assert message_operations.peek("orders", State.DEAD) == []
    assert list(Message.objects.values()) == before


@pytest.mark.parametrize(
    ("state", "index"),
    [(State.READY, "message_ready"), (State.DELAYED, "message_delayed"), (State.DEAD, "message_dead")],
)
@pytest.mark.parametrize("name", ["purge", "move"])
def test_a_batch_is_found_by_the_index_of_its_state(name: str, state: State, index: str) -> None:
    parameters = {
        "queue": 1, "source": 1, "target": 2, "state": int(state), "high": 10**9, "ids": None, "limit": 10,
        "now": False, "home": False, "named": False, "outcome": 2, "by": "", "event": "purge",
    }  # fmt: skip
    with connection.cursor() as cursor:
        # A few beside many of other queues and states; what plan an empty table gets depends on what vacuum has left.
        cursor.execute(
            "insert into queues_message (id, queue_id, state, payload, due_at) "
            "select n, case when n % 500 < 3 then 1 else 3 end, (array[0, 2, 3])[n % 3 + 1], 'x', now() "
            "from generate_series(1, 20000) n"
        )
        cursor.execute("analyze queues_message")
        cursor.execute("explain " + text(name), parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert f"using {index} on queues_message" in plan
    assert "Seq Scan on queues_message" not in plan
