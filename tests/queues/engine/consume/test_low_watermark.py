"""A queue's low watermark after claims and snapshots; `xmin:xmax:` stands for a snapshot."""

from __future__ import annotations

import time

from queues.engine.consume.low_watermark import LOWEST, MAX_AGAIN, TIMEOUT, LowWatermark


def test_a_claim_alone_moves_nothing() -> None:
    floor = LowWatermark()
    floor.looked("10:12:10", None)
    floor.claimed("10:12:10", 4096, 5)
    assert (floor.value, floor.highest, floor.lags) == (LOWEST, 4096, True)


def test_it_follows_once_all_transactions_of_a_claims_time_have_ended() -> None:
    floor = LowWatermark()
    floor.claimed("10:12:10", 4096, 5)
    floor.looked("11:14:11", None)
    assert floor.value == LOWEST
    floor.looked("12:14:", None)
    assert (floor.value, floor.lags) == (4096, False)


def test_it_rises_no_further_than_a_later_claim_has_looked() -> None:
    floor = LowWatermark()
    floor.claimed("10:12:10", 8000, 5)
    floor.looked("12:14:", 5000)
    assert (floor.value, floor.lags) == (5000, True)
    floor.looked("12:14:", 8000)
    assert (floor.value, floor.lags) == (8000, False)


def test_it_waits_for_one_long_transaction_no_longer_than_it_is_worth() -> None:
    floor = LowWatermark()
    for n in range(1, 8):
        floor.claimed("10:12:10", 1000 * n, MAX_AGAIN // 5)
        floor.looked("10:12:10", 1000 * n)
    assert (floor.value, floor.highest) == (2000, 7000)
    floor.give_up_waiting(time.monotonic())
    assert floor.value == 2000
    floor.give_up_waiting(time.monotonic() + TIMEOUT + 1)
    assert (floor.value, floor.lags) == (7000, False)


def test_news_lowers_it() -> None:
    floor = LowWatermark()
    floor.claimed("10:12:", 4096, 5)
    floor.looked("12:14:", None)
    floor.lower(5000)
    assert floor.value == 4096
    floor.lower(100)
    assert floor.value == 99
    floor.claimed("12:14:", 6000, 1)
    floor.reset()
    assert (floor.value, floor.lags) == (LOWEST, False)
