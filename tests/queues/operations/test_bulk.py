"""Bulk operations: what each does, and that each message is done once whatever happens in between."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone

from queues.engine.errors import QueueNotFound
from queues.errors import OperationError
from queues.models import (
    ArchivedMessage,
    AuditJournalEntry,
    BulkAction,
    BulkOperation,
    BulkState,
    Message,
    Queue,
    State,
)
from queues.operations import bulk
from queues.operations.bulk import BulkPlan, LocalRunner, cancel, preview, run_pending, start, step
from queues.operations.search import Criteria
from queues.store.counts import queue_counts
from tests.process import Process
from tests.queues.store import another_connection, assert_counts_are_exact, listening, make_queue, store
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

Criterion = str | tuple[int, ...]


def begin(action: BulkAction, target: str = "", delay: float | None = None, **criteria: Any) -> BulkOperation:
    return start(BulkPlan(action=action, criteria=Criteria(**criteria), target=target, delay=delay), "alice")


def run(action: BulkAction, target: str = "", delay: float | None = None, **criteria: Any) -> BulkOperation:
    operation = begin(action, target, delay, **criteria)
    while step(operation.pk):
        pass
    operation.refresh_from_db()
    return operation


def recorded() -> list[tuple[str, str, str]]:
    """The journal's entries for the operators' chain: event, id, detail."""
    rows = AuditJournalEntry.objects.filter(chain="operators", sender="alice").order_by("id")
    return list(rows.values_list("event", "record_id", "recipient"))


def test_messages_are_moved_in_steps_and_keep_their_order_and_what_does_not_fit_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "STEP", 3)
    source, target = make_queue("orders"), make_queue("other")
    moved = store(source, count=7, headers={"move": 1})
    stays = store(source)[0]
    operation = run(BulkAction.MOVE, "other", queue="orders", header="move")
    assert (operation.state, operation.done, operation.skipped) == (BulkState.DONE, 7, 0)
    there = Message.objects.filter(queue=target).order_by("id").values_list("origin_id", flat=True)
    assert list(there) == [message.pk for message in moved]
    assert Message.objects.get(queue=source).pk == stays.pk
    assert assert_counts_are_exact(source).ready == 1
    assert assert_counts_are_exact(target).ready == 7
    assert recorded() == [
        ("move", f"bulk:{operation.pk}", "queue orders, header move → queue:other"),
        ("done", f"bulk:{operation.pk}", "7 done, 0 left alone"),
    ]


def test_delivered_and_later_messages_are_left_alone() -> None:
    queue = make_queue("orders")
    make_queue("other")
    leased = store(queue, State.LEASED)[0]
    store(queue)
    operation = begin(BulkAction.MOVE, "other", ids=(leased.pk, leased.pk + 4096))
    everything = begin(BulkAction.MOVE, "other", queue="orders")
    late = store(queue)[0]
    for one, skipped in ((operation, 1), (everything, 0)):
        while step(one.pk):
            pass
        one.refresh_from_db()
        assert one.skipped == skipped
    assert set(Message.objects.filter(queue=queue)) == {leased, late}


def test_messages_that_another_transaction_has_are_left_alone_and_counted(transactional_db: None) -> None:
    queue = make_queue("orders")
    first, _ = store(queue, count=2)
    with another_connection() as other:
        other.execute("select from queues_message where id = %s for update", (first.pk,))
        operation = run(BulkAction.DELETE, queue="orders")
    assert (operation.done, operation.skipped) == (1, 1)
    assert list(Message.objects.values_list("pk", flat=True)) == [first.pk]


def test_dead_letters_are_put_back_into_their_queue() -> None:
    queue = make_queue("orders")
    store(queue, State.DEAD, 3, attempts=5)
    operation = run(BulkAction.PUT_BACK, queue="orders", state="dead")
    assert operation.done == 3
    assert set(Message.objects.values_list("state", "attempts")) == {(State.READY, 0)}
    assert assert_counts_are_exact(queue).ready == 3


def letter(queue: object = "orders", key: str | None = None) -> dict[str, Any]:
    return {"tenant": "a", "dead-letter": {"queue": queue, "attempts": 5, "error": "no", "key": key}}


def test_dead_letters_leave_a_dead_letter_queue_for_where_they_came_from_with_their_keys() -> None:
    dead = make_queue("dead")
    queue = make_queue("orders", dead_letter_queue=dead)
    store(queue, key="taken")
    for key in ("k1", "k1", "taken", None):
        store(dead, headers=letter(key=key), attempts=2)
    operation = run(BulkAction.PUT_BACK, queue="dead")
    assert (operation.done, operation.skipped) == (4, 0)
    home = Message.objects.filter(queue=queue, headers__isnull=False).order_by("id")
    assert list(home.values_list("key", "attempts", "headers")) == [
        ("k1", 0, {"tenant": "a"}), *[(None, 0, {"tenant": "a"})] * 3
    ]  # fmt: skip
    assert assert_counts_are_exact(queue).ready == 5
    assert assert_counts_are_exact(dead).ready == 0


@pytest.mark.parametrize("source", ["unrelated", "nowhere", "_peer/bob", 5, None, {"a": 1}])
def test_a_header_that_a_producer_has_made_up_sends_a_message_nowhere(source: object) -> None:
    dead = make_queue("dead")
    make_queue("unrelated")
    make_queue("_peer/bob", kind="mailbox", dead_letter_queue=dead)
    message = store(dead, headers=letter(source))[0]
    operation = run(BulkAction.PUT_BACK, queue="dead")
    assert (operation.done, operation.skipped) == (0, 1)
    assert Message.objects.get() == message


def test_messages_are_delayed_and_delivered_now() -> None:
    queue = make_queue("orders")
    store(queue, count=2)
    store(queue, State.DELAYED)
    assert run(BulkAction.DELAY, delay=3600.0, queue="orders").done == 3
    waits = [(due - timezone.now()).total_seconds() for due in Message.objects.values_list("due_at", flat=True) if due]
    assert len(waits) == 3
    assert all(3500 < wait <= 3600 for wait in waits)
    assert assert_counts_are_exact(queue).delayed == 3
    assert run(BulkAction.DELIVER_NOW, queue="orders").done == 3
    assert assert_counts_are_exact(queue).ready == 3


def test_messages_are_copied_with_what_they_carry_and_the_originals_stay() -> None:
    source, target = make_queue("orders", audited=True), make_queue("other", audited=True)
    fields: dict[str, Any] = {"headers": {"a": 1}, "payload": b"\x00", "content": 2, "max_attempts": 7}
    store(source, State.LEASED, key="k1", **fields)
    store(source, State.DEAD, key="k2", attempts=3, **fields)
    store(target, key="k2", payload=b"other")
    assert run(BulkAction.COPY, "other", queue="orders").done == 2
    copies = Message.objects.filter(queue=target, payload=b"\x00").order_by("id")
    for copy, key in zip(copies, (None, "k1"), strict=True):  # a queue's leases are looked at last
        assert (copy.state, copy.attempts, copy.key) == (State.READY, 0, key)
        assert (copy.headers, copy.content, copy.max_attempts) == ({"a": 1}, 2, 7)
    assert sorted(Message.objects.filter(queue=source).values_list("state", flat=True)) == [State.LEASED, State.DEAD]
    assert assert_counts_are_exact(source).published == 2
    assert assert_counts_are_exact(target).ready == 3
    told = AuditJournalEntry.objects.filter(chain="queue:other", event="copy").values_list("record_id", flat=True)
    assert set(told) == {str(copy.pk) for copy in copies}


def test_a_copy_keeps_its_priority() -> None:
    source, target = make_queue("orders"), make_queue("other")
    message = store(source)[0]
    Message.objects.filter(pk=message.pk).update(id=message.pk - (5 << 56), origin_id=message.pk)
    run(BulkAction.COPY, "other", queue="orders")
    copy = Message.objects.get(queue=target)
    assert -(copy.pk >> 56) == 5
    assert copy.origin_id == copy.pk + (5 << 56)


def test_finished_messages_are_copied_if_their_payloads_were_kept() -> None:
    queue, now = make_queue("orders"), timezone.now()
    for id, payload in ((1, b"one"), (2, None), (3, b"three")):
        ArchivedMessage.objects.create(
            id=id, queue=queue, outcome=0, attempts=0, published_at=now, finished_at=now, size=3, payload=payload
        )
    operation = run(BulkAction.COPY, "orders", queue="orders", state="finished")
    assert (operation.done, operation.skipped) == (2, 1)
    assert [bytes(body) for body in Message.objects.order_by("id").values_list("payload", flat=True)] == [
        b"one", b"three"
    ]  # fmt: skip
    assert assert_counts_are_exact(queue).ready == 2


def test_deleted_messages_are_archived_as_removed_and_named_ones_are_recorded_one_by_one() -> None:
    queue = make_queue("orders")
    ids = tuple(message.pk for message in store(queue, State.DEAD, 2))
    operation = run(BulkAction.DELETE, queue="orders", ids=ids)
    assert operation.done == 2
    assert set(ArchivedMessage.objects.values_list("id", "outcome")) == {(id, 4) for id in ids}
    assert {("remove", f"message:{id}", "orders") for id in ids} <= set(recorded())
    assert assert_counts_are_exact(queue).dead == 0


def test_a_full_target_fails_the_operation_with_its_reason_and_no_half_step() -> None:
    source, target = make_queue("orders"), make_queue("other", max_length=2)
    store(source, count=3)
    for action in (BulkAction.MOVE, BulkAction.COPY):
        operation = run(action, "other", queue="orders")
        assert operation.state == BulkState.FAILED
        assert "full" in operation.error.lower()
        assert operation.done == 0
        assert ("failed", f"bulk:{operation.pk}") in [(event, id) for event, id, _ in recorded()]
    assert assert_counts_are_exact(source).ready == 3
    assert assert_counts_are_exact(target).ready == 0


def test_a_full_target_that_drops_drops_its_oldest() -> None:
    source, target = make_queue("orders"), make_queue("other", max_length=2, overflow="drop-oldest")
    store(target, count=2)
    copied = store(source, payload=b"copied")
    run(BulkAction.COPY, "other", queue="orders")
    assert copied
    assert assert_counts_are_exact(target).ready == 2
    assert Message.objects.filter(queue=target, payload=b"copied").count() == 1


def test_a_cancelled_operation_stops_and_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    queue = make_queue("orders")
    store(queue, count=5)
    operation = begin(BulkAction.DELETE, queue="orders")
    assert step(operation.pk)
    assert cancel(operation.pk, "alice")
    assert not step(operation.pk)
    assert not cancel(operation.pk, "alice")
    assert run_pending() > 0
    assert assert_counts_are_exact(queue).ready == 3
    assert recorded()[-1] == ("cancelled", f"bulk:{operation.pk}", "2 done, 0 left alone")


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ({"action": BulkAction.MOVE, "criteria": {}}, OperationError),
        ({"action": BulkAction.MOVE, "criteria": {}, "target": "nowhere"}, QueueNotFound),
        ({"action": BulkAction.COPY, "criteria": {}, "target": "_peer/bob"}, OperationError),
        ({"action": BulkAction.MOVE, "criteria": {"queue": "nowhere"}, "target": "orders"}, QueueNotFound),
        ({"action": BulkAction.DELAY, "criteria": {}}, OperationError),
        ({"action": BulkAction.DELAY, "criteria": {}, "delay": float("nan")}, OperationError),
        ({"action": BulkAction.DELETE, "criteria": {}}, OperationError),
        ({"action": BulkAction.PUT_BACK, "criteria": {"state": "finished"}}, OperationError),
        ({"action": BulkAction.PUT_BACK, "criteria": {"ids": tuple(range(1001))}}, OperationError),
    ],
)
def test_an_invalid_operation_is_refused_and_leaves_no_row(plan: dict[str, Any], error: type[Exception]) -> None:
    make_queue("orders")
    with pytest.raises(error):
        start(BulkPlan(**plan | {"criteria": Criteria(**plan["criteria"])}), "alice")
    assert not BulkOperation.objects.exists()
    assert recorded() == []


def test_the_text_that_was_looked_for_is_in_no_audit_row() -> None:
    make_queue("orders")
    begin(BulkAction.DELETE, queue="orders", text="secret")
    assert "secret" not in str(recorded())


def test_a_preview_counts_what_it_finds_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [message.pk for message in store(make_queue("orders"), count=12)]
    plan = BulkPlan(action=BulkAction.DELETE, criteria=Criteria(queue="orders"))
    found = preview(plan)
    assert (found.count, found.complete, found.sample.ids) == (12, True, ids[:10])
    monkeypatch.setattr(bulk, "MAX_COUNTED", 5)
    found = preview(plan)
    assert (found.count, found.complete) == (5, False)
    assert Message.objects.count() == 12


def test_a_key_taken_in_the_same_moment_costs_a_second_try_only(monkeypatch: pytest.MonkeyPatch) -> None:
    store(make_queue("orders"))
    operation = begin(BulkAction.DELETE, queue="orders")
    tries = []

    def taken(id: int, using: str) -> bool:
        tries.append(id)
        if len(tries) == 1:
            raise IntegrityError("duplicate key")
        return step(id, using)

    monkeypatch.setattr(bulk, "step", taken)
    run_pending()
    operation.refresh_from_db()
    assert operation.state == BulkState.DONE
    monkeypatch.setattr(bulk, "step", lambda id, using: int("x"))
    broken = begin(BulkAction.DELETE, queue="orders")
    run_pending()
    broken.refresh_from_db()
    assert broken.state == BulkState.FAILED
    assert broken.error.startswith("ValueError: ")


@pytest.mark.django_db(transaction=True)
def test_nodes_hear_of_an_operation_and_of_what_it_makes_ready() -> None:
    make_queue("orders")
    target = make_queue("other")
    with listening() as heard:
        store(Queue.objects.get(name="orders"))
        operation = begin(BulkAction.COPY, "other", queue="orders")
        assert heard.take("bulk") == [operation.pk]
        run_pending()
        assert str(target.pk) in heard.take("ready")[0]


@pytest.mark.django_db(transaction=True)
def test_ten_thousand_are_moved_by_a_thread_of_the_site_and_five_thousand_put_back() -> None:
    source, target = make_queue("orders"), make_queue("other")
    store(source, count=4000)
    store(source, count=4000)
    store(source, count=2000)
    store(target, State.DEAD, 4000)
    store(target, State.DEAD, 1000)
    runner = LocalRunner()
    move = begin(BulkAction.MOVE, "other", queue="orders")
    back = begin(BulkAction.PUT_BACK, queue="other", state="dead")
    runner.wake()
    runner.wake()
    runner.join(60)
    for operation, count in ((move, 10_000), (back, 5000)):
        operation.refresh_from_db()
        assert (operation.state, operation.done, operation.skipped) == (BulkState.DONE, count, 0)
    assert assert_counts_are_exact(source).ready == 0
    assert assert_counts_are_exact(target).ready == 15_000


#: A process that does steps until it is killed in the middle of one: it says so when the changes of the second one are
#: made and not committed.
KILLED = """
import sys, time
import django
django.setup()
from queues.operations import bulk
advance = bulk._advance
steps = []
def slow(operation, using):
    advance(operation, using)
    steps.append(operation)
    if len(steps) == 2:
        print("in the middle", flush=True)
        time.sleep(600)
bulk._advance = slow
bulk.STEP = 10
while bulk.step(int(sys.argv[1])):
    pass
"""


def test_a_runner_killed_in_the_middle_of_a_step_loses_and_repeats_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make_queue("orders"), make_queue("other")
    first = [message.pk for message in store(source, count=35)]
    operation = begin(BulkAction.COPY, "other", queue="orders")
    environment = {"DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": "/usr/bin:/bin"}
    process = Process(sys.executable, "-c", KILLED, str(operation.pk), environment=environment, bare=True)
    assert process.next_line() == "in the middle"
    assert not step(operation.pk)  # another process is at it: nothing is done twice beside it
    process.kill()
    wait_until(lambda: step(operation.pk) or BulkOperation.objects.get().state != BulkState.RUNNING, "the next step")
    run_pending()
    operation.refresh_from_db()
    assert (operation.state, operation.done) == (BulkState.DONE, 35)
    assert len(first) == 35
    assert queue_counts(target.pk).published == 35
    assert assert_counts_are_exact(target).ready == 35
