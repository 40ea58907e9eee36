"""The columnar record: parts of it, and the columns that a statement is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from queues.engine.message import ROWS_PER_STATEMENT, Failure
from queues.engine.settle.batches import (
    FEWEST,
    Part,
    SettlementKind,
    Settlements,
    each_once,
    halve,
    settle_parameters,
)


def acks(*ids: int, at: float = 1.0, **alike: Any) -> Settlements:
    made = Settlements(SettlementKind.ACKNOWLEDGE, **alike)
    made.add_many(ids, [at] * len(ids))
    return made


def ids(part: Part) -> list[list[int]]:
    return [one.ids for one in part]


def test_a_part_is_halved_by_its_kinds_first_and_then_by_its_rows() -> None:
    returned = Settlements(SettlementKind.RETURN)
    for n in range(3):
        returned.add_failure(Failure(n, n, delay=n / 2, tag=n, error=str(n)))
    error = ValueError()
    first, second = halve([acks(7), returned], error)
    assert (ids(first), ids(second)) == ([[7]], [[0, 1, 2]])
    _, rest = halve(second, error)
    [some] = rest
    assert (some.kind, some.ids, some.attempts, some.delays, some.tags, some.errors) == (
        SettlementKind.RETURN, [1, 2], [1, 2], [0.5, 1.0], [1, 2], ["1", "2"]
    )  # fmt: skip
    assert halve(first, error) == []


def test_a_message_acknowledged_twice_is_settled_once_as_it_was_last() -> None:
    once = each_once([acks(1, 2, 1, consumer=5), acks(2, 3, at=9.0, consumer=6)])
    assert [(one.consumer, one.ids) for one in once] == [(5, [1]), (6, [2, 3])]


def test_only_what_gets_new_ids_is_split_into_statements() -> None:
    many = range(ROWS_PER_STATEMENT + 1)
    assert [len(one.ids) for one in acks(*many).chunks] == [len(many)]
    handed_back = Settlements(SettlementKind.HAND_BACK)
    handed_back.add_ids(many, [None] * len(many))
    assert [(one.ids[0], len(one.tags)) for one in handed_back.chunks] == [
        (0, ROWS_PER_STATEMENT), (ROWS_PER_STATEMENT, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ([acks(1, 2, consumer=5, keep=1)], {"consumer": 5, "consumers": None, "keep": 1, "keeps": None, "job": False}),
        ([acks(1, 2, keep=2)], {"consumer": None, "consumers": None, "keep": 2, "whole": True, "archive": True}),
        ([acks(1)], {"keep": 0, "archive": False, "whole": False, "delivered": None}),
        (
            [acks(1, 2, consumer=5, keep=1), acks(3, keep=0, job=True)],
            {
                "ids": "{1,2,3}", "delivered": "{11.000000,11.000000,11.000000}", "consumer": None,
                "consumers": "{5,5,null}", "keep": None, "keeps": "{1,1,0}", "jobs": "{false,false,true}",
            },
        ),
    ],
)  # fmt: skip
def test_constant_values_are_given_once_and_varying_ones_as_a_column(part: Part, given: dict[str, Any]) -> None:
    parameters = settle_parameters(part, 10.0)
    assert {name: parameters[name] for name in given} == given


def test_results_of_jobs_stand_beside_messages_that_have_none() -> None:
    jobs = Settlements(SettlementKind.ACKNOWLEDGE, job=True)
    jobs.add_many([1, 2], [1.0, 1.0], [b"r", None])
    assert settle_parameters([acks(3), jobs], 0.0)["results"] == [None, b"r", None]
    assert settle_parameters([acks(3)], 0.0)["results"] is None


class Audited:
    """A lane that knows the API key of each message's consumer."""

    def __init__(self, keys: dict[int, int | None]) -> None:
        self._keys = keys

    def takes_run(self, settlements: Settlements, ids: range) -> bool:
        return True

    def gather(self, settlements: Settlements, ids: Sequence[int], work: int) -> Iterable[int | None]:
        return () if settlements.consumer is not None else [self._keys.get(id) for id in ids]


def test_acknowledgements_are_sorted_by_the_keys_of_their_consumers_and_runs_have_their_own() -> None:
    made = Settlements(SettlementKind.ACKNOWLEDGE, Audited({1: 5, 2: 6, 3: 5, 4: None}))
    made.add_many([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])
    made.add_run(range(10, 10 + FEWEST), 9.0)
    found = list(made.by_consumer)
    assert [(one.consumer, one.ids, one.delivered, one.consumers, len(one.runs)) for one in found] == [
        (None, [], [], [], 1), (5, [1, 3], [1.0, 3.0], [], 0), (6, [2], [2.0], [], 0), (None, [4], [4.0], [], 0),
    ]  # fmt: skip
    assert sum(one.count for one in found) == made.count == 4 + FEWEST


def test_acknowledgements_of_one_consumer_are_not_sorted() -> None:
    made = Settlements(SettlementKind.ACKNOWLEDGE, Audited({1: 5, 2: 5}))
    made.add_many([1, 2], [1.0, 2.0])
    [one] = made.by_consumer
    assert (one.consumer, one.ids, one.consumers) == (5, [1, 2], [])
    of_a_key = Settlements(SettlementKind.ACKNOWLEDGE, Audited({1: 5, 2: 5}), consumer=7)
    of_a_key.add_many([1, 2], [1.0, 2.0])
    of_a_key.add_run(range(10, 10 + FEWEST), 9.0)
    assert (list(of_a_key.by_consumer), of_a_key.consumers) == ([of_a_key], [])


def test_runs_and_deliveries_that_are_spread_have_the_keys_of_their_consumers() -> None:
    made = Settlements(SettlementKind.ACKNOWLEDGE, Audited({1: 5}))
    made.add_many([1], [1.0])
    made.add_run(range(10, 10 + FEWEST), 9.0)
    made.spread()
    assert (made.ids, made.consumers) == ([1, *range(10, 10 + FEWEST)], [5, *[None] * FEWEST])
    assert (made.delivered, made.runs) == ([1.0, *[9.0] * FEWEST], [])
    noted = Settlements(SettlementKind.DELIVER)
    noted.add_deliveries(range(3), 5)
    noted.add_deliveries([7], None)
    assert (noted.count, noted.keys) == (4, {5, None})
    halved = [(one.ids, one.consumers) for [one] in halve([noted], ValueError())]
    assert halved == [([0, 1], [5, 5]), ([2, 7], [5, None])]


def test_a_delivery_that_was_not_made_is_taken_out_of_the_last_ones() -> None:
    noted = Settlements(SettlementKind.DELIVER)
    for ids, key in ((range(5), 1), ((3,), 2), ([7, 8], None), (range(2, 4), 3)):
        noted.add_deliveries(ids, key)
    for id in (3, 3, 8, 2, 9):
        noted.remove_delivery(id)
    assert noted.deliveries == [(range(5), 1), ([7], None)]
    noted.remove_delivery(2)
    assert noted.deliveries == [(range(2), 1), (range(3, 5), 1), ([7], None)]
