"""The columnar record: parts of it, and the columns that a statement is given."""

from __future__ import annotations

from typing import Any

import pytest

from queues.engine.message import ROWS_PER_STATEMENT, Failure
from queues.engine.settle.batches import Part, SettlementKind, Settlements, each_once, halve, settle_parameters


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
                "consumers": "{5,5,null}", "keep": None, "keeps": "{1,1,0}", "jobs": "{False,False,True}",
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
