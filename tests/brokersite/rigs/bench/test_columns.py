"""The verdict of `manage.py bench` on the messages that were received."""

from __future__ import annotations

from brokersite.rigs.bench.columns import Verified, numbers, verify


def received(*positions: int) -> bytes:
    return b"".join(numbers(1, 0, position, 1) for position in positions)


def test_a_message_that_comes_again_behind_later_ones_is_a_duplicate_and_not_out_of_order() -> None:
    assert verify(1, [4], [received(0, 1, 2, 0, 3)]) == Verified(lost=0, duplicates=1, foreign=0, unordered=0)


def test_a_message_that_first_comes_behind_a_later_one_is_out_of_order() -> None:
    assert verify(1, [4], [received(0, 2, 1, 3, 1)]) == Verified(lost=0, duplicates=1, foreign=0, unordered=1)
