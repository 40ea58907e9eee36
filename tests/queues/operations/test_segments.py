"""Ready messages that are stored together, as segments: operators see and change each as if it had a row of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, connections

from queues.engine.uuids import message_uuid
from queues.errors import OperationError
from queues.etl.job.database import statement
from queues.models import ArchivedMessage, AuditJournalEntry, BulkAction, Message, Outcome, Queue, State
from queues.operations import bulk, jobs, life, messages
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.operations.bulk import BulkPlan
from queues.operations.jobs import JobStatus
from queues.operations.messages import newest
from queues.operations.overview import oldest_ready
from queues.operations.search import Criteria, Search
from queues.store.counts import queue_counts
from tests.queues.store import (
    another_connection,
    assert_counts_are_exact,
    make_node,
    make_queue,
    segments_read,
    store,
    store_segment,
    store_segments,
    whole_segments,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def run(action: BulkAction, target: str = "", delay: float | None = None, **criteria: Any) -> tuple[int, int]:
    """Do a bulk operation; how many messages were changed, and how many left alone."""
    operation = bulk.start(BulkPlan(action=action, criteria=Criteria(**criteria), target=target, delay=delay), "alice")
    while bulk.step(operation.pk):
        pass
    operation.refresh_from_db()
    assert operation.error == ""
    return operation.done, operation.skipped



# Reading.


@pytest.fixture
def mixed() -> tuple[Queue, list[int]]:
    """A queue with ready messages in segments and rows, and others between them; the ids of those that are ready."""
    queue, other = make_queue("orders"), make_queue("other")
    first = store_segment(queue)
    store_segment(other)
    row = store(queue)[0].pk
    leased = store_segment(queue, node=make_node())
    store(queue, State.DEAD)
    second = store_segment(queue, count=2)
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into queues_segmentsettlement (first, low, high, kept) values (%s, 1, 2, true)", [leased[0]]
        )
        cursor.execute("insert into queues_queuetally (queue_id, leased, settled) values (%s, -2, 2)", [queue.pk])
    return queue, [*first, row, *second]


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_pages_have_each_ready_message_once_and_in_order(mixed: tuple[Queue, list[int]], most: int) -> None:
    queue, ids = mixed
    assert_counts_are_exact(queue)
    assert [message.pk for message in message_operations.peek("orders", limit=most)] == ids[:most]
    searched, cursor, seen = Search(Criteria(queue="orders", state="ready")), "", list[int]()
    while cursor or not seen:
        look = searched.find(cursor, most)
        seen, cursor = seen + look.ids, look.cursor
    assert seen == ids
    paged, after = list[int](), ids[0] - 1
    while page := list(Message.objects.within_reach(most, queue=queue.pk, state=0, after=after).order_by("id")[:most]):
        paged, after = paged + [message.pk for message in page], page[-1].pk
    assert paged == ids


@pytest.mark.parametrize("most", [1, 2, 50])
def test_pages_of_all_queues_and_states_have_each_open_message_once(mixed: tuple[Queue, list[int]], most: int) -> None:
    every = list(Message.objects.order_by("id").values_list("pk", flat=True))
    assert len(every) == 4 + 4 + 1 + 2 + 1 + 2
    paged, after = list[int](), every[0] - 1
    while page := list(Message.objects.within_reach(most, after=after).order_by("id")[:most]):
        paged, after = paged + [message.pk for message in page], page[-1].pk
    assert paged == every
    leased = Message.objects.within_reach(most, state=State.LEASED).order_by("id")[:most]
    assert [message.payload for message in leased] == [b"1", b"4"][:most]


def test_the_oldest_message_of_a_queue_may_be_in_a_segment() -> None:
    packed, plain, none = make_queue("packed"), make_queue("plain"), make_queue("none")
    old = store_segment(packed)[0]
    store(packed)
    store(plain)
    store_segment(plain)
    store_segment(none, node=make_node())
    with connection.cursor() as cursor:
        cursor.execute("update queues_segment set published_at = now() - interval '1 hour' where first = %s", [old])
    ages = oldest_ready([packed.pk, plain.pk, none.pk])
    assert ages.keys() == {packed.pk, plain.pk}
    assert ages[packed.pk] >= 3600 > ages[plain.pk]


@pytest.fixture(scope="module")
def _emptied(django_db_setup: None, django_db_blocker: Any) -> None:
    """Statistics of an empty table, as there are when a backlog comes."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("vacuum analyze queues_segment")


@pytest.fixture(params=[False, True], ids=["planned on an empty table", "with statistics"])
def backlog(request: pytest.FixtureRequest, _emptied: None, db: None) -> tuple[Queue, list[int]]:
    """A queue with thousands of ready segments of two messages among those of another; their first ids."""
    queue, other = make_queue("orders"), make_queue("other")
    firsts = store_segments([queue, other], 6000)[::2]
    if request.param:
        with connection.cursor() as cursor:
            cursor.execute("analyze queues_segment")
    return queue, firsts


def cut_after(id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement("next_live"), {"low": id, "rows": 4})


READERS: dict[str, Callable[[Queue, int], Any]] = {
    "peek": lambda queue, id: message_operations.peek("orders", limit=4),
    "peek at dead letters": lambda queue, id: message_operations.peek("orders", State.DEAD),
    "a page": lambda queue, id: list(
        Message.objects.within_reach(4, queue=queue.pk, state=0, after=id).select_related("queue").order_by("id")[:4]
    ),
    "a page of all": lambda queue, id: list(Message.objects.within_reach(4, after=id).order_by("id")[:4]),
    "by id": lambda queue, id: Message.objects.get(pk=id),
    "by ids": lambda queue, id: Message.objects.in_bulk([id, id + 1, 5]),
    "a job": lambda queue, id: jobs.find_job("orders", message_uuid(queue.uuid, id)),
    "jobs": lambda queue, id: jobs.list_jobs("orders", JobStatus.NEW, 2, 2),
    "failed jobs": lambda queue, id: jobs.list_jobs("orders", JobStatus.FAILED, 1, 2),
    "a life": lambda queue, id: life.life_of(Message.objects.get(pk=id)),
    "ids that are searched": lambda queue, id: Search(Criteria(ids=(id, id + 1))).find(),
    "dead letters that are searched": lambda queue, id: Search(Criteria(queue="orders", state="dead")).find(),
    "the oldest": lambda queue, id: oldest_ready([queue.pk]),
    "the next cut of an export": lambda queue, id: cut_after(id),
    "no message": lambda queue, id: Message.objects.filter(pk=id + 100).first(),
    "the largest id": lambda queue, id: Message.objects.filter(pk__in=[(1 << 63) - 1, -(1 << 63), 1 << 70]).first(),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_reads_the_few_segments_that_it_needs(backlog: tuple[Queue, list[int]], reader: str) -> None:
    queue, firsts = backlog
    with segments_read(40):
        READERS[reader](queue, firsts[1500])


@pytest.mark.parametrize(
    "criteria", [{"queue": "orders"}, {"queue": "orders", "text": "2"}, {}], ids=["of a queue", "with bodies", "of all"]
)
def test_a_look_reads_the_segments_of_its_rows(
    backlog: tuple[Queue, list[int]], monkeypatch: pytest.MonkeyPatch, criteria: dict[str, str]
) -> None:
    monkeypatch.setattr("queues.operations.search.ROWS", 40)
    monkeypatch.setattr("queues.operations.search.ROWS_WITH_BODIES", 40)
    with segments_read(200):
        look = Search(Criteria(**criteria)).look(f"0:{backlog[1][1500]}", 40)  # type: ignore[arg-type]
    assert look.looked == 40


def test_an_action_on_single_messages_reads_their_segments(backlog: tuple[Queue, list[int]]) -> None:
    queue, firsts = backlog
    make_queue("target")
    with segments_read(150):
        assert message_operations.remove_messages("orders", [firsts[1500]]) == 1
        assert run(BulkAction.DELAY, delay=60, ids=(firsts[1501],)) == (1, 0)
        assert run(BulkAction.MOVE, "target", ids=(firsts[1502],)) == (1, 0)
        assert run(BulkAction.COPY, "target", ids=(firsts[1503],)) == (1, 0)
    assert len(whole_segments()) == 6000 - 3
    assert_counts_are_exact(queue)


# Acting.


def test_a_message_of_a_segment_is_removed_and_those_beside_it_stay() -> None:
    queue = make_queue("orders")
    ids, others = store_segment(queue), store_segment(queue)
    assert message_operations.remove_messages("orders", [ids[1]], by="alice") == 1
    assert [message.pk for message in message_operations.peek("orders")] == [ids[0], *ids[2:], *others]
    assert whole_segments() == [others[0]]
    assert list(ArchivedMessage.objects.values_list("pk", "outcome", "size")) == [(ids[1], Outcome.REMOVED, 1)]
    assert assert_counts_are_exact(queue).ready == 7
    assert AuditJournalEntry.objects.get(chain="operators").record_id == f"message:{ids[1]}"


def test_a_job_of_a_segment_is_removed() -> None:
    queue = make_queue("orders")
    ids = store_segment(queue)
    uuid = message_uuid(queue.uuid, ids[2])
    job = jobs.find_job("orders", uuid)
    assert job is not None
    assert (job.status, job.payload) == (JobStatus.NEW, b"3")
    assert jobs.remove_job("orders", uuid)
    assert jobs.find_job("orders", uuid) is None
    assert [job.id for job in jobs.list_jobs("orders", JobStatus.NEW, 1, 10)] == [ids[0], ids[1], ids[3]]


@pytest.mark.parametrize("by_ids", [False, True], ids=["a search", "a selection"])
@pytest.mark.parametrize("step", [1, 3, 500])
def test_messages_are_moved_out_of_segments_in_order_and_leases_stay(
    monkeypatch: pytest.MonkeyPatch, by_ids: bool, step: int
) -> None:
    monkeypatch.setattr(bulk, "STEP", step)
    queue, target = make_queue("orders"), make_queue("target")
    ids, leased = store_segment(queue), store_segment(queue, node=make_node())
    more = store_segment(queue, count=2)
    criteria: dict[str, Any] = {"ids": (*ids, *leased, *more)} if by_ids else {"queue": "orders"}
    assert run(BulkAction.MOVE, "target", **criteria) == (6, 4 if by_ids else 0)
    moved = Message.objects.filter(queue=target).order_by("id").values_list("origin_id", "payload")
    assert list(moved) == [*zip(ids, (b"1", b"2", b"3", b"4"), strict=True), *zip(more, (b"1", b"2"), strict=True)]
    assert whole_segments() == [leased[0]]
    assert assert_counts_are_exact(queue).leased == 4
    assert assert_counts_are_exact(target).ready == 6


def test_messages_of_segments_are_delayed_delivered_and_deleted() -> None:
    queue = make_queue("orders")
    ids = store_segment(queue)
    assert run(BulkAction.DELAY, delay=60, ids=tuple(ids[:2])) == (2, 0)
    assert (assert_counts_are_exact(queue).ready, queue_counts(queue.pk).delayed) == (2, 2)
    assert run(BulkAction.DELIVER_NOW, queue="orders", state="delayed") == (2, 0)
    found = Message.objects.order_by("id").values_list("payload", flat=True)
    assert list(found) == [b"3", b"4", b"1", b"2"]
    store_segment(queue)
    assert run(BulkAction.DELETE, queue="orders", text="3") == (2, 0)
    assert assert_counts_are_exact(queue).ready == 6


def test_messages_of_segments_are_copied_and_stay() -> None:
    queue, target = make_queue("orders"), make_queue("target")
    ids = store_segment(queue, content=2, max_attempts=3)
    assert run(BulkAction.COPY, "target", queue="orders") == (4, 0)
    copies = Message.objects.filter(queue=target).order_by("id").values_list("payload", "content", "max_attempts")
    assert list(copies) == [(body, 2, 3) for body in (b"1", b"2", b"3", b"4")]
    assert whole_segments() == [ids[0]]


@pytest.mark.parametrize("limit", [None, 5])
def test_a_queue_is_moved_out_of_its_segments_oldest_first(
    monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(messages, "BATCH", 3)
    queue, target = make_queue("orders"), make_queue("target")
    ids = [*store_segment(queue), *(row.pk for row in store(queue)), *store_segment(queue)]
    count = limit or len(ids)
    assert message_operations.move("orders", "target", limit=limit) == count
    assert list(Message.objects.filter(queue=target).order_by("id").values_list("origin_id", flat=True)) == ids[:count]
    assert [message.pk for message in message_operations.peek("orders")] == ids[count:]
    assert assert_counts_are_exact(queue).ready == len(ids) - count


# Purging.


@pytest.mark.parametrize("batch", [1, 5, 4000])
def test_whole_segments_are_purged_and_archived_without_a_row_for_each_message(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(messages, "BATCH", batch)
    queue, other = make_queue("orders"), make_queue("other")
    ids = [*store_segment(queue, producer_id=7), *store_segment(queue, count=3, content=2, max_attempts=4)]
    row = store(queue)[0].pk
    leased = store_segment(queue, node=make_node())
    stays = store_segment(other)
    before = rows_inserted()
    assert message_operations.purge("orders") == 8
    assert rows_inserted() == before
    assert whole_segments() == [leased[0], stays[0]]
    archived = ArchivedMessage.objects.order_by("id").values_list(
        "pk", "outcome", "size", "producer_id", "consumer_id", "delivered_at", "content", "max_attempts", "job"
    )
    purged = Outcome.PURGED
    assert list(archived) == [
        *((id, purged, 1, 7, None, None, None, None, None) for id in ids[:4]),
        *((id, purged, 1, None, None, None, 2, 4, None) for id in ids[4:]),
        (row, purged, 4, None, None, None, None, None, None),
    ]
    counts = assert_counts_are_exact(queue)
    assert (counts.ready, counts.leased, counts.settled, counts.completed) == (0, 4, 8, 0)
    assert assert_counts_are_exact(other).ready == 4


def rows_inserted() -> int:
    """Messages that this transaction has given rows."""
    with connection.cursor() as cursor:
        cursor.execute("select n_tup_ins from pg_stat_xact_user_tables where relname = 'queues_message'")
        return int(cursor.fetchone()[0])


def test_a_purged_queue_that_keeps_nothing_has_nothing_in_the_archive() -> None:
    queue = make_queue("orders", retention="none")
    store_segment(queue)
    assert message_operations.purge("orders") == 4
    assert not ArchivedMessage.objects.exists()
    assert assert_counts_are_exact(queue).settled == 4


def test_each_message_of_a_queue_that_was_audited_later_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH", 3)
    queue = make_queue("orders", audited=True)
    ids = [*store_segment(queue), *store_segment(queue)]
    assert message_operations.purge("orders", by="alice") == 8
    rows = AuditJournalEntry.objects.filter(chain="queue:orders", event="purge").order_by("id")
    assert list(rows.values_list("record_id", "sender")) == [(str(id), "alice") for id in ids]
    assert assert_counts_are_exact(queue).ready == 0


def test_a_purge_ends_within_a_segment_at_its_upper_id() -> None:
    queue = make_queue("orders")
    ids, later = store_segment(queue), store_segment(queue)
    gone = sum(messages.purge_batches(queue.pk, State.READY, Outcome.PURGED, DEFAULT_DB_ALIAS, high=ids[1]))
    assert gone == 2
    assert [message.pk for message in message_operations.peek("orders")] == [*ids[2:], *later]
    assert whole_segments() == [later[0]]
    assert_counts_are_exact(queue)


def test_a_purge_reads_each_segment_a_few_times(backlog: tuple[Queue, list[int]]) -> None:
    queue, firsts = backlog
    with segments_read(8 * len(firsts)):
        assert message_operations.purge("orders") == 2 * len(firsts)
    assert (len(whole_segments()), assert_counts_are_exact(queue).ready) == (len(firsts), 0)


def test_a_queue_is_deleted_by_force_with_its_ready_segments() -> None:
    queue = make_queue("orders")
    store_segment(queue)
    store_segment(queue, node=make_node())
    stays = store_segment(make_queue("other"))
    with pytest.raises(queue_operations.QueueNotEmpty):
        queue_operations.delete_queue("orders")
    before = rows_inserted()
    assert queue_operations.delete_queue("orders", force=True) == 8
    assert rows_inserted() == before + 4, "only the leased ones have become rows"
    assert whole_segments() == [stays[0]]
    assert ArchivedMessage.objects.filter(outcome=Outcome.PURGED).count() == 8


@pytest.mark.parametrize("operation", ["purge", "move"])
def test_messages_that_a_claim_is_unpacking_are_not_forgotten(transactional_db: None, operation: str) -> None:
    queue = make_queue("orders")
    make_queue("target")
    ids = store_segment(queue)
    done: list[int] = []

    def operate() -> None:
        try:
            if operation == "purge":
                done.append(message_operations.purge("orders"))
            else:
                done.append(message_operations.move("orders", "target"))
        finally:
            connections.close_all()

    with another_connection() as other:
        other.execute("select queues_unpack_ready(%s, 1)", (queue.pk,))
        thread = threading.Thread(target=operate)
        thread.start()
        wait_until(lambda: waits_for(other.info.backend_pid), "the operation waits")
        other.commit()
    thread.join()
    assert done == [len(ids)]
    assert assert_counts_are_exact(queue).ready == 0


def waits_for(pid: int) -> bool:
    """Whether a session waits for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute("select exists (select from pg_stat_activity where %s = any(pg_blocking_pids(pid)))", [pid])
        return bool(cursor.fetchone()[0])


def test_a_single_message_that_a_node_is_about_to_get_is_left_alone(transactional_db: None) -> None:
    queue = make_queue("orders")
    ids = store_segment(queue)
    with another_connection() as other:
        other.execute("select from queues_segment for update")
        assert message_operations.remove_messages("orders", ids[:1]) == 0
        assert run(BulkAction.DELAY, delay=60, ids=tuple(ids[:1])) == (0, 1)
    assert whole_segments() == [ids[0]]


def test_an_id_above_all_there_are_is_newer_than_any_segment() -> None:
    ids = store_segment(make_queue("orders"))
    assert newest(DEFAULT_DB_ALIAS) > ids[-1]
    with pytest.raises(OperationError):
        Search(Criteria(queue="orders", state="no such"))
