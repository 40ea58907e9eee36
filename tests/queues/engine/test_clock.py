"""Ticks of the engine's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.clock import until_tick


@given(st.floats(0, 1e7), st.sampled_from((0.125, 0.25, 0.5, 1.0)))
def test_jobs_that_look_now_and_then_wake_an_idle_process_together(time: float, period: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queues.engine.clock.now", lambda: time)
        pause = until_tick(period)
        assert 0 < pause <= period
        patch.setattr("queues.engine.clock.now", lambda: time + pause)
        assert until_tick(0.125) == pytest.approx(0.125, abs=1e-6) or until_tick(0.125) < 1e-6
