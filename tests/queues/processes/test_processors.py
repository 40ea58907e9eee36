"""The share of the processors that other processes use."""

from __future__ import annotations

import pytest

from queues.processes.processors import Usage


@pytest.mark.parametrize(
    ("idle", "own", "share"),
    [(10.0, 0.0, 0.0), (0.0, 0.0, 1.0), (4.0, 0.0, 0.6), (4.0, 3.0, 0.3), (0.0, 10.0, 0.0), (12.0, 0.0, 0.0)],
)
def test_the_share_of_others_is_neither_idle_nor_own_time(idle: float, own: float, share: float) -> None:
    earlier = Usage(total=100.0, idle=50.0, own=20.0)
    now = Usage(total=110.0, idle=50.0 + idle, own=20.0 + own)
    assert now.share_of_others(earlier) == pytest.approx(share)


def test_no_time_has_passed() -> None:
    assert Usage(1.0, 1.0, 1.0).share_of_others(Usage(1.0, 1.0, 1.0)) == 0.0
