"""What a benchmark says of its rounds."""

from __future__ import annotations

import pytest

from brokersite.rigs.bench.report import Rounds


@pytest.mark.parametrize("size", [0.0001234, 0.04321, 1.0, 98.76, 12_345.0])
def test_a_small_figure_is_not_rounded_to_nothing(size: float) -> None:
    rounds = Rounds()
    rounds.add("fanout", "first", {"message_ms": 7.0})
    rounds.add("fanout", "second", {"message_ms": size})
    said = rounds.summary()["fanout"]["second"]["message_ms"]
    assert said["median"] == pytest.approx(size, rel=0.001)
    assert said["ratio"]["median"] == pytest.approx(7.0 / size, rel=0.001)


def test_a_figure_may_be_nothing() -> None:
    rounds = Rounds()
    rounds.add("fanout", "first", {"message_ms": 0.0})
    assert rounds.summary()["fanout"]["first"]["message_ms"]["median"] == 0
