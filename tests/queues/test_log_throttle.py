"""What clients do again and again is told in few lines, which have the number."""

import pytest

from queues import log_throttle
from queues.log_throttle import LogThrottle


def test_one_report_per_second_and_reason_tells_how_many_it_stands_for() -> None:
    throttle = LogThrottle(interval=1.0)
    assert throttle.admit("a", 10.0) == 1
    assert throttle.admit("a", 10.5) == 0
    assert throttle.admit("a", 10.9, 5) == 0
    assert throttle.admit("b", 10.9) == 1
    assert throttle.admit("a", 11.0) == 7
    assert throttle.admit("a", 12.0) == 1


def test_several_reports_an_interval_are_told_singly_and_then_counted() -> None:
    throttle = LogThrottle(interval=10.0, lines=3)
    assert [throttle.admit("a", 10.0 + n) for n in range(6)] == [1, 1, 1, 0, 0, 0]
    assert throttle.admit("a", 20.0) == 4


def test_made_up_keys_do_not_make_lines_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_throttle, "MAX_KEYS", 10)
    throttle = LogThrottle(interval=60.0)
    told = [throttle.admit(f"{n}", 10.0) for n in range(1000)]
    assert sum(map(bool, told)) == 11
    assert [throttle.admit(f"{n}", 80.0) for n in range(1000, 1010)] == [1] * 10
