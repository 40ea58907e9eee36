"""Counts of the dead letters that went from a queue to another."""

from __future__ import annotations

import pytest

from queues.engine.api import Engine
from tests.queues.engine.conftest import MakeEngine, Store, bury

CARRIED = "select q.name || ' ' || t.name as way, sum(carried)::int as carried from queues_deadlettertally" \
    " join queues_queue q on q.id = queue_id join queues_queue t on t.id = target_id group by 1"  # fmt: skip
TALLY = "insert into queues_deadlettertally (queue_id, target_id, carried, at)" \
    " values (%s, %s, %s, now() - %s::interval) returning 1"  # fmt: skip


def carried(store: Store) -> dict[str, int]:
    return {row["way"]: row["carried"] for row in store.rows(CARRIED)}


async def fold(engine: Engine) -> None:
    await engine.route_tallies.fold(engine.connections["requests"])


@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
async def test_each_dead_letter_that_went_to_another_queue_is_counted_with_its_move(
    make_engine: MakeEngine, store: Store, audited: bool
) -> None:
    graves = store.queue("graves", max_length=4)
    first = store.queue("first", dead_letter_queue_id=graves, audited=audited)
    second = store.queue("second", dead_letter_queue_id=graves, audited=audited)
    alone = store.queue("alone", audited=audited)
    engine = await make_engine()
    for queue, count in (("first", 3), ("second", 2), ("alone", 1)):
        await bury(engine, queue, *[b"poison"] * count)
        await store.until(lambda: engine.settlements.idle, "its dead letters")
    assert [store.counts(queue) for queue in (graves, first, second, alone)] == [
        (4, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1)
    ]  # fmt: skip
    assert carried(store) == {"first graves": 3, "second graves": 1}, "what the target refused was not carried"


async def test_a_fold_keeps_the_last_minute_and_adds_up_the_rest(engine: Engine, store: Store) -> None:
    graves, orders = store.queue("graves"), store.queue("orders")
    for count, age in ((5, "2 min"), (6, "2 h"), (7, "30 s")):
        store.rows(TALLY, orders, graves, count, age)
    for _ in range(2):
        await fold(engine)
        assert [row["carried"] for row in store.rows("select carried from queues_deadlettercount")] == [11]
        assert carried(store) == {"orders graves": 7}
    store.rows(TALLY, orders, graves, 4, "1 h")
    await fold(engine)
    assert [row["carried"] for row in store.rows("select carried from queues_deadlettercount")] == [15]


@pytest.mark.parametrize("gone", ["orders", "graves"])
async def test_the_counts_go_with_either_queue_and_tallies_that_are_left_harm_nothing(
    engine: Engine, store: Store, gone: str
) -> None:
    graves, orders, other = store.queue("graves"), store.queue("orders"), store.queue("other")
    ways = ((orders, graves), (other, orders), (other, graves))
    for way in ways:
        store.rows(TALLY, *way, 1, "1 h")
    await fold(engine)
    for way in ways:
        store.rows(TALLY, *way, 1, "1 h")
    store.rows("delete from queues_queue where name = %s returning 1", gone)
    left = {way for way in ways if {"orders": orders, "graves": graves}[gone] not in way}
    counts = "select queue_id, target_id, carried from queues_deadlettercount"
    assert {tuple(row.values()) for row in store.rows(counts)} == {(*way, 1) for way in left}
    await fold(engine)
    assert {tuple(row.values()) for row in store.rows(counts)} == {(*way, 2) for way in left}
    assert store.rows("select id from queues_deadlettertally") == []
