"""Segments: messages that are published together and leased at once are one row, and nothing is lost by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS
from hypothesis import given
from hypothesis import strategies as st
from psycopg.rows import tuple_row

from queues.database.sql_files import ALL, array
from queues.engine.api import Engine, PrefetchedQueue
from queues.engine.clock import now
from queues.engine.message import Content, Delivery, DetailedMessage
from queues.engine.publish.destination import Destination
from queues.engine.settle import segments as segments_module
from queues.engine.settle.batches import SettlementKind, Settlements
from queues.engine.settle.segments import LINGER, MANY, SAME_TIME, OpenSegments, Ranges, as_range, bits
from queues.engine.statements import statement
from queues.operations.queues import delete_queue
from queues.store.queries import query
from tests.queues.audit.spans import messages_of
from tests.queues.engine.conftest import Answered, Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import unwritable
from tests.queues.engine.settle.test_audited_queues import in_django
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

FOUR = (b"1", b"2", b"3", b"4")


# Ranges.


@st.composite
def settled(draw: st.DrawFn) -> tuple[dict[int, int], list[Settlements]]:
    """Segments (first id, count), and settlements of some of their messages and of others, in any order."""
    starts = draw(st.lists(st.integers(0, 20), unique=True, max_size=5))
    segments = {100 * start: draw(st.integers(1, 12)) for start in starts}
    inside = [first + slot for first, count in segments.items() for slot in range(count)]
    known = draw(st.lists(st.sampled_from(inside), unique=True)) if inside else []
    others = draw(st.lists(st.integers(0, 2100), unique=True, max_size=5))
    ids = draw(st.permutations([*known, *(id for id in others if id not in inside)]))
    cut = draw(st.integers(0, len(ids)))
    times = st.sampled_from([None, 1.0, 1.0 + SAME_TIME / 2, 2.0])
    parts = []
    for some, consumer, keep in ((ids[:cut], None, 1), (ids[cut:], 7, 0)):
        one = Settlements(SettlementKind.ACKNOWLEDGE, consumer=consumer, keep=keep)
        one.add_many(some, [draw(times) for _ in some])
        parts.append(one)
    return segments, parts


def opened(segments: dict[int, int]) -> OpenSegments:
    found = OpenSegments()
    for first, count in segments.items():
        found.add(first, count)
    return found


def listed(ranges: Ranges) -> list[tuple[int, int | None, float | None, bool]]:
    slots = zip(ranges.firsts, ranges.lows, ranges.highs, strict=True)
    what = zip(slots, ranges.consumers, ranges.delivered, ranges.kept, strict=True)
    return [
        (first + slot, consumer, time, kept)
        for (first, low, high), consumer, time, kept in what for slot in range(low, high + 1)
    ]  # fmt: skip


@given(settled())
def test_ranges_have_each_settled_message_of_a_segment_once_and_rows_are_left(
    drawn: tuple[dict[int, int], list[Settlements]],
) -> None:
    segments, parts = drawn
    inside = {first + slot for first, count in segments.items() for slot in range(count)}
    times = {id: time for one in parts for id, time in zip(one.ids, one.delivered, strict=True)}
    ranges, rows = opened(segments).cut(parts)
    found = listed(ranges)
    assert sorted(id for id, *_ in found) == sorted(times.keys() & inside)
    assert sorted(id for one in rows for id in one.ids) == sorted(times.keys() - inside)
    assert all(times[id] == time for one in rows for id, time in zip(one.ids, one.delivered, strict=True))
    for id, consumer, time, kept in found:
        assert (consumer, kept) == ((None, True) if id in parts[0].ids else (7, False))
        own = times[id]
        assert own == time or (own is not None and time is not None and abs(own - time) <= SAME_TIME)
    members = {first: times.keys() & set(range(first, first + count)) for first, count in segments.items()}
    assert ranges.slots == {first: sum(1 << id - first for id in some) for first, some in members.items() if some}


@given(settled())
def test_a_segment_is_known_until_all_its_messages_are_settled(
    drawn: tuple[dict[int, int], list[Settlements]],
) -> None:
    segments, parts = drawn
    known = opened(segments)
    ranges, _ = known.cut(parts)
    whole = {first for first, slots in ranges.slots.items() if slots == bits(0, segments[first] - 1)}
    parameters = known.parameters(ranges, 0.0)
    assert (parameters["whole"], parameters["parts"]) == (
        array(sorted(whole)), array(sorted(ranges.slots.keys() - whole))
    )  # fmt: skip
    known.settled(ranges, 5.0)
    assert known.having(segments) == segments.keys() - whole
    partly = sorted(ranges.slots.keys() - whole)
    assert known.lingering_in(5.0) == (LINGER if partly else None)
    assert known.lingering(5.0 + LINGER / 2) == []
    assert sorted(known.lingering(5.0 + LINGER)) == partly
    known.forget(segments)
    assert not known


def test_many_segments_that_are_settled_in_part_linger_longer() -> None:
    known = opened({100 * n: 2 for n in range(3 * MANY)})
    runs = [(range(100 * n, 100 * n + 1), 1.0) for n in range(3 * MANY)]
    ranges, _ = known.cut_runs([Settlements(SettlementKind.ACKNOWLEDGE, runs=runs)])
    known.settled(ranges, 5.0)
    assert (known.lingering(5.0 + 2.9 * LINGER), known.lingering_in(5.0)) == ([], 3 * LINGER)
    assert len(known.lingering(5.0 + 3 * LINGER)) == 3 * MANY
    known.forget(range(0, 100 * MANY * 2, 100))
    assert len(known.lingering(5.0 + LINGER)) == MANY


@given(settled(), st.data())
def test_what_is_settled_again_is_in_no_range(
    drawn: tuple[dict[int, int], list[Settlements]], data: st.DataObject
) -> None:
    segments, parts = drawn
    known = opened(segments)
    twice = data.draw(st.sampled_from([*parts, *(one.part(range(0, len(one.ids), 2)) for one in parts)]))
    ranges, _ = known.cut([*parts, twice])
    assert ranges.slots == known.cut(parts)[0].slots
    assert len(listed(ranges)) == sum(slots.bit_count() for slots in ranges.slots.values())
    known.settled(ranges, 0.0)
    again, rows = known.cut([twice])
    assert (again.firsts, sorted(id for one in rows for id in one.ids)) == ([], sorted(twice.ids))


@pytest.mark.parametrize(
    "more", [{"late": True}, {"results": [b"1"]}, {"consumers": [7]}, {"keep": 2}], ids=str
)
def test_a_settlement_with_more_than_who_and_when_is_no_range(more: dict[str, Any]) -> None:
    assert as_range(Settlements(SettlementKind.ACKNOWLEDGE, keep=1))
    assert not as_range(Settlements(SettlementKind.ACKNOWLEDGE, **more))


# In the store.


@pytest.fixture
async def engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With segments, of which none lingers for too long: tests that want that say so."""
    monkeypatch.setattr(segments_module, "LINGER", 3600.0)
    return await make_engine(segment_messages=2)


def segments(store: Store) -> int:
    """Segments of several messages, with open ones."""
    return int(store.rows("select count(*) as n from queues_opensegment where count > 1")[0]["n"])


async def taken(engine: Engine, *bodies: bytes) -> tuple[PrefetchedQueue, list[Delivery]]:
    """Publish to a queue whose consumer has had all that was there, and take what comes."""
    buffer = await engine.queue("jobs")
    consumer = Consumer(buffer)
    first = asyncio.ensure_future(consumer.next())
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    await Producer(engine).publish("jobs", *bodies)
    came = [await first, *[await consumer.next() for _ in bodies[1:]]]
    found = [delivery for delivery in came if delivery is not None]
    assert [delivery[1] for delivery in found] == list(bodies)
    return buffer, found


async def until_settled(engine: Engine, store: Store) -> None:
    await store.until(lambda: engine.settlements.idle, "the settlement")


async def test_messages_published_together_are_one_row_and_the_archive_has_each(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert segments(store) == 1
    assert store.rows("select from queues_message") == []
    assert [bytes(row["payload"]) for row in store.messages(queue)] == list(FOUR)
    assert {row["state"] for row in store.messages(queue)} == {1}
    assert store.counts(queue) == (0, 4, 0, 0)
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries], 5) == []
    await until_settled(engine, store)
    assert segments(store) == len(store.messages(queue)) == 0
    assert store.counts(queue) == (0, 0, 0, 0)
    archived = store.archived(queue)
    assert [(row["consumer_id"], row["size"]) for row in archived] == [(5, 1)] * 4
    assert [row["id"] for row in archived] == list(range(archived[0]["id"], archived[0]["id"] + 4))
    assert all(row["published_at"] <= row["delivered_at"] <= row["finished_at"] for row in archived)
    assert store.rows("select from queues_archivedmessage") == []


@pytest.mark.parametrize("bodies", [FOUR, (b"", b"22", b"333", b"1")])
@pytest.mark.parametrize("earlier", [False, True])
async def test_the_archive_has_the_size_of_each_body_and_the_settlement_reads_none(
    engine: Engine, store: Store, bodies: tuple[bytes, ...], earlier: bool
) -> None:
    # What is large is out of line: to read it again costs more than all else of a settlement.
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *bodies)
    if earlier:  # a node of an earlier version has stored it
        await store.change("update queues_segment set sizes = null returning 1")
    else:
        await store.change("update queues_segment set bodies = array_fill('\\x'::bytea, array[count]) returning 1")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
    await until_settled(engine, store)
    assert [row["size"] for row in store.archived(queue)] == list(map(len, bodies))


async def test_the_open_messages_of_a_segment_are_there_and_counted_when_others_are_settled(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    for n in (1, 3):
        assert buffer.deliveries.ack(deliveries[n][0])
        await until_settled(engine, store)
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"1", b"3"]
    assert store.counts(queue) == (0, 2, 0, 0)
    assert buffer.deliveries.ack_many([deliveries[0][0], deliveries[2][0]]) == []
    await until_settled(engine, store)
    assert len(store.archived(queue)) == 4
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_jobs_published_together_are_archived_with_content_and_limits_as_jobs(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, _ = await taken(engine, b"0")
    worker = Worker(buffer)
    worker.grant(3)
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    producer = Answered(engine)
    source = engine.publisher(Destination.parse("jobs"))
    for n in range(3):
        batch = source.publish_answered(b"[1]", Content.JSON, producer, n, 5)
    await producer.wait(batch)
    await worker.until(lambda: len(worker.pushed) == 3)
    assert segments(store) == 1
    assert [(row["content"], row["max_attempts"]) for row in store.messages(queue)[1:]] == [(Content.JSON, 5)] * 3
    first, second, third = (push.tag for push in worker.pushed)
    assert buffer.deliveries.complete_many([first, second]) == []
    await until_settled(engine, store)
    buffer.deliveries.give_back(third, delay=3600.0, error="no")
    await until_settled(engine, store)
    left = [row for row in store.messages(queue) if row["state"] == 2]
    assert [(row["content"], row["max_attempts"], row["attempts"]) for row in left] == [(Content.JSON, 5, 1)]
    archived = [(row["id"], row["content"], row["max_attempts"], row["job"]) for row in store.archived(queue)]
    assert archived == [(id, Content.JSON, 5, True) for id in producer.ids[:2]]


async def test_what_is_settled_of_a_segment_is_in_the_archive_soon_though_the_rest_is_open(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(await make_engine(segment_messages=2), *FOUR)
    assert buffer.deliveries.ack(deliveries[1][0])
    await store.until(lambda: len(store.archived(queue)) == 1, "the settled message in the archive")
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"1", b"3", b"4"]
    assert segments(store) == 0
    assert store.counts(queue) == (0, 3, 0, 0)
    assert buffer.deliveries.ack_many([delivery[0] for n, delivery in enumerate(deliveries) if n != 1]) == []
    await store.until(lambda: len(store.archived(queue)) == 4, "the others")
    assert store.counts(queue) == (0, 0, 0, 0)


async def test_a_segment_that_cannot_be_unpacked_keeps_no_other_from_it(
    make_engine: MakeEngine, store: Store
) -> None:
    queue = store.queue("jobs")
    engine = await make_engine(segment_messages=2)
    buffer, first = await taken(engine, *FOUR)
    _, second = await taken(engine, b"5", b"6", b"7")
    async with unwritable(store, "insert", b"3"):
        assert buffer.deliveries.ack_many([first[0][0], second[0][0]]) == []
        await store.until(lambda: len(store.archived(queue)) == 1, "what is settled of the other")
        assert segments(store) == 1
        assert engine.health.isolated["segment"] >= 1
    assert buffer.deliveries.ack_many([delivery[0] for delivery in (*first[1:], *second[1:])]) == []
    await store.until(lambda: len(store.archived(queue)) == 7, "all")
    assert (store.counts(queue), store.messages(queue), segments(store)) == ((0, 0, 0, 0), [], 0)


async def test_a_message_that_comes_back_has_a_row_and_its_neighbours_are_settled(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    buffer.deliveries.give_back(deliveries[1][0], delay=3600.0, error="no")
    await until_settled(engine, store)
    assert segments(store) == 0
    assert [(row["state"], row["attempts"]) for row in store.messages(queue)] == [(1, 0), (1, 0), (2, 1)]
    assert buffer.deliveries.ack_many([deliveries[2][0], deliveries[3][0]]) == []
    await until_settled(engine, store)
    assert len(store.archived(queue)) == 3
    assert store.counts(queue) == (0, 0, 1, 0)


@pytest.mark.parametrize("end", ["buried", "purged"])
async def test_a_message_may_leave_its_segment_as_any_other(engine: Engine, store: Store, end: str) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    if end == "buried":
        buffer.deliveries.bury(deliveries[1][0], "no")
    else:
        engine.settlements.purge([row["id"] for row in store.messages(queue)[1:2]], "an operator")
        buffer.unacked.release(deliveries[1][0])
    await until_settled(engine, store)
    assert buffer.deliveries.ack_many([delivery[0] for n, delivery in enumerate(deliveries) if n != 1]) == []
    await until_settled(engine, store)
    assert store.counts(queue) == ((0, 0, 0, 1) if end == "buried" else (0, 0, 0, 0))
    assert sorted(row["outcome"] for row in store.archived(queue)) == [0, 0, 0] + [2] * (end == "purged")


async def test_a_segment_that_was_unpacked_elsewhere_meanwhile_is_settled_by_its_rows(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    store.rows("select queues_unpack_segments(array(select first from queues_segment))")
    assert len(store.rows("select from queues_message")) == 3
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[1:3]]) == []
    await until_settled(engine, store)
    assert buffer.deliveries.ack(deliveries[3][0])
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == 4
    assert store.messages(queue) == []


async def test_the_open_messages_of_a_dead_node_come_again_in_order_and_no_others(
    make_engine: MakeEngine, engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[1][0])
    await until_settled(engine, store)
    [row] = store.rows(
        "insert into queues_node (name, host, pid, first_message_id) values ('gone', 'elsewhere', 0, 1) returning id"
    )
    store.rows("update queues_segment set node_id = %s returning 1", row["id"])  # it was that node's all along
    engine.settlements.segments.clear()
    other = await make_engine()
    await store.until(lambda: store.counts(queue) == (3, 0, 0, 0), "the end of the node")
    assert await Consumer(await other.queue("jobs")).bodies(3) == [b"1", b"3", b"4"]


async def test_segments_of_a_node_that_was_forgotten_without_them_come_again(
    make_engine: MakeEngine, engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    await taken(engine, *FOUR)
    store.rows("update queues_segment set node_id = 2000000000, slot = 0 returning 1")
    engine.settlements.segments.clear()
    assert await Consumer(await (await make_engine()).queue("jobs")).bodies(4, ack=False) == list(FOUR)
    assert store.counts(queue) == (0, 4, 0, 0)


async def test_a_late_acknowledgement_settles_a_message_whose_segment_no_node_has_unpacked_yet(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    node = engine.node
    buffer.deliveries.ack_many([deliveries[0][0]])
    await until_settled(engine, store)
    store.rows("select pg_terminate_backend(%s)", engine.connections["fetcher"].info.backend_pid)
    await store.until(lambda: engine.node != node and engine.available, "the new node")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries[1:3]]) == []
    await until_settled(engine, store)
    assert await Consumer(buffer).bodies(1) == [b"4"]
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == 4


@pytest.mark.parametrize(
    "policy",
    [
        {"retention": "full"}, {"message_ttl": "60 s"}, {"concurrency_limit": 9},
        {"max_length": 9, "overflow": "drop-oldest"},
    ],
    ids=str,
)  # fmt: skip
async def test_a_queue_that_keeps_more_of_its_messages_has_no_segments(
    engine: Engine, store: Store, policy: dict[str, Any]
) -> None:
    store.queue("jobs", **policy)
    await taken(engine, *FOUR)
    assert segments(store) == 0
    assert len(store.rows("select from queues_message")) == 4


async def test_a_queue_is_deleted_by_force_with_what_is_open_of_its_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    assert await in_django(delete_queue, "jobs", force=True) == 3
    assert (segments(store), store.messages(queue)) == (0, [])
    assert sorted(row["outcome"] for row in store.archived(queue)) == [0, 2, 2, 2]


async def test_messages_of_a_segment_are_copied_and_stay(engine: Engine, store: Store) -> None:
    queue, target = store.queue("jobs"), store.queue("copies")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    first, *ids = [row["id"] for row in store.messages(queue)]
    arguments = {"source": queue, "target": target, "ids": [first - 1, *ids], "by": "", "named": False}
    [(count, _)] = await in_django(
        query, "copy_messages", DEFAULT_DB_ALIAS, archived=False, low=None, high=None, **arguments
    )
    assert count == 2, "the one that is settled is no more"
    assert [bytes(row["payload"]) for row in store.messages(target)] == [b"3", b"4"]
    assert (segments(store), store.counts(queue)) == (1, (0, 3, 0, 0))


async def test_an_idle_subscription_goes_with_what_is_open_of_its_segments(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    assert buffer.deliveries.ack(deliveries[0][0])
    await until_settled(engine, store)
    await store.change(
        "insert into queues_subscription (topic, qos, queue_id, used_at)"
        " values ('t', 1, %s, now() - interval '8 days') returning id", queue
    )  # fmt: skip
    parameters = ALL | {"days": 7, "limit": 1}
    with store.connection.cursor(row_factory=tuple_row) as cursor:
        assert cursor.execute(statement("drop_idle_subscriptions"), parameters).fetchall() == [(1, 3)]
    assert (segments(store), store.messages(queue)) == (0, [])
    assert store.rows("select from queues_segmentsettlement") == []


async def test_bodies_that_are_large_together_are_segments_of_their_own(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.publish.insert_plan.MAX_SEGMENT_BYTES", 4)
    store.queue("jobs")
    await taken(engine, *FOUR)
    assert segments(store) == 1
    await taken(engine, b"5", b"6", b"7", b"88")
    assert segments(store) == 1
    assert len(store.rows("select from queues_opensegment where count = 1")) == 4


async def test_messages_with_details_have_rows(engine: Engine, store: Store) -> None:
    store.queue("jobs")
    buffer = await engine.queue("jobs")
    buffer.interest.came(now())
    await Producer(engine).publish_detailed("jobs", *[DetailedMessage(body, headers={"n": 1}) for body in FOUR])
    assert await Consumer(buffer).bodies(4) == list(FOUR)
    assert segments(store) == 0


async def test_a_queue_that_is_audited_meanwhile_records_the_messages_of_its_segments(
    engine: Engine, store: Store
) -> None:
    queue = store.queue("jobs")
    buffer, deliveries = await taken(engine, *FOUR)
    await store.change("update queues_queue set audited = true where id = %s returning 1", queue)
    await store.until(lambda: engine.policies.by_id[queue].audited, "the change")
    assert buffer.deliveries.ack_many([delivery[0] for delivery in deliveries]) == []
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 0, 0, 0)
    assert len(store.archived(queue)) == 4
    recorded = store.rows("select record_id from queues_audit where event = 'settle'")
    assert [len(messages_of(row["record_id"])) for row in recorded] == [4]


async def test_settlements_of_many_segments_and_rows_are_one_transaction(engine: Engine, store: Store) -> None:
    queue = store.queue("jobs")
    buffer, first = await taken(engine, *FOUR)
    _, second = await taken(engine, b"5")
    _, third = await taken(engine, *FOUR)
    tags = [delivery[0] for delivery in (*third, *second, *first[1:])]
    assert buffer.deliveries.ack_many(tags) == []
    await until_settled(engine, store)
    assert store.counts(queue) == (0, 1, 0, 0)
    assert len(store.archived(queue)) == 5
    assert buffer.deliveries.ack(first[0][0])
    await until_settled(engine, store)
    assert len(store.archived(queue)) == 9
