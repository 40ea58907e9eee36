"""The number of messages taken ahead of demand, by the deliveries before. Times are given."""

from __future__ import annotations

from queues.engine.consume.pace import AHEAD, AWAY, FEW_AHEAD, Pace

FIRST = 7000
"""The first tag."""


def started() -> Pace:
    pace = Pace(FIRST)
    assert pace.ahead(1000.0, FIRST) == 0
    return pace


def test_it_is_what_was_taken_in_the_time_that_is_looked_ahead() -> None:
    pace = started()
    assert pace.ahead(1000 + AHEAD, FIRST + 3000) == 3000
    assert pace.ahead(1000 + 3 * AHEAD, FIRST + 3000 + 2 * 1500) == 1500


def test_a_consumer_that_begins_has_some_before_the_first_sample() -> None:
    assert started().ahead(1000 + AHEAD / 10, FIRST + 1400) == 1400


def test_a_pace_that_falls_counts_until_the_next_sample() -> None:
    pace = started()
    pace.ahead(1000 + AHEAD, FIRST + 3000)
    assert pace.ahead(1000 + 1.9 * AHEAD, FIRST + 3010) == 3000
    assert pace.ahead(1000 + 2 * AHEAD, FIRST + 3010) == 0


def test_what_was_taken_long_ago_counts_little() -> None:
    pace = started()
    assert pace.ahead(1000 + 100 * AHEAD, FIRST + 100 * FEW_AHEAD) == FEW_AHEAD
    assert pace.ahead(1000 + 200 * AHEAD, FIRST + 100 * FEW_AHEAD) == 0


def test_slow_consumers_have_none() -> None:
    pace = started()
    assert pace.ahead(1000 + AHEAD, FIRST + FEW_AHEAD - 1) == 0
    assert pace.ahead(1000 + 2 * AHEAD, FIRST + 2 * FEW_AHEAD - 1) == FEW_AHEAD


def test_the_pause_of_consumers_is_the_longest_one_lately() -> None:
    pace = Pace(FIRST)
    pace.came(AWAY)  # it was not there before
    assert pace.pause == 0.0
    pace.came(2.0)
    assert pace.pause == 2.0
    pace.came(0.1)
    assert pace.pause == 1.0
    pace.came(AWAY - 1)
    assert pace.pause == AWAY - 1
    pace.came(AWAY + 1)
    assert pace.pause == 0.0
