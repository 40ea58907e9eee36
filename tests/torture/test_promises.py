"""The promises to clients, while the listener and the database are killed, cut off and stopped under them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from brokersite.rigs.torture.history import InjectedFaultKind
from brokersite.rigs.torture.runner import IN_FLIGHT
from tests.lengths import lengths
from tests.torture.conftest import CONFIRMED, Torture

#: A slow machine takes its time to start listeners again; then the store is drained, and clients are ended.
pytestmark = pytest.mark.timeout(700)

BROKEN = Path(__file__).with_name("confirms_early.py")


@pytest.mark.parametrize(("kills", "database_kills"), lengths(short=(4, 1), long=(8, 2)))
def test_nothing_confirmed_is_lost_when_the_listener_and_the_database_are_killed(
    torture: Torture, kills: int, database_kills: int
) -> None:
    report = torture({InjectedFaultKind.KILL: kills, InjectedFaultKind.DATABASE_KILL: database_kills}, rest=(0.05, 0.5))
    assert report.violations == []
    figures = report.figures()
    assert (figures[InjectedFaultKind.KILL], figures[InjectedFaultKind.DATABASE_KILL]) == (kills, database_kills)
    assert figures["confirmed"] >= CONFIRMED


def test_cut_and_frozen_database_connections_lose_nothing(torture: Torture) -> None:
    report = torture({InjectedFaultKind.CUT: 4, InjectedFaultKind.FREEZE: 3})
    assert report.violations == []
    assert report.figures()["confirmed"] >= CONFIRMED


@pytest.mark.long
def test_an_orderly_stop_under_load_loses_nothing_and_repeats_nothing_acknowledged(torture: Torture) -> None:
    report = torture({InjectedFaultKind.STOP: 4})
    assert report.violations == []
    assert report.figures()[InjectedFaultKind.STOP] == 4


@pytest.mark.long
def test_a_listener_that_confirms_before_the_commit_is_caught(torture: Torture) -> None:
    report = torture({InjectedFaultKind.KILL: 6}, program=(str(BROKEN),))
    lost = [violation for violation in report.violations if violation.name == "lost"]
    assert lost, "confirmed messages must be missing, and the checker must say so"
    assert all("p" in name or "s" in name for violation in lost for name in violation.messages)


@pytest.mark.long
def test_two_listeners_on_one_database_share_its_queues_and_either_may_die(torture: Torture) -> None:
    report = torture({InjectedFaultKind.KILL: 8}, listeners=2)
    assert report.violations == []
    busy = Counter((delivery.queue, delivery.connection.listener) for delivery in report.history.deliveries)
    queues = {queue for queue, _ in busy}
    assert len(queues) == 3
    assert all(busy[queue, listener] > 0 for queue in queues for listener in (0, 1))
    assert {fault.listener for fault in report.history.faults} == {0, 1}
    assert report.figures()["given out again otherwise"] <= 8 * IN_FLIGHT * len(queues)
