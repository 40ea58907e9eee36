"""The plan of a run: which faults, in which order."""

from __future__ import annotations

import random
from collections import Counter

from brokersite.rigs.torture.faults import schedule
from brokersite.rigs.torture.history import InjectedFaultKind

COUNTS = {InjectedFaultKind.KILL: 20, InjectedFaultKind.STOP: 5, InjectedFaultKind.FREEZE: 0}


def test_a_seed_gives_the_same_faults_in_the_same_order() -> None:
    assert schedule(COUNTS, random.Random(1)) == schedule(COUNTS, random.Random(1))
    assert schedule(COUNTS, random.Random(1)) != schedule(COUNTS, random.Random(2))


def test_all_faults_that_were_asked_for_are_there() -> None:
    assert Counter(schedule(COUNTS, random.Random(1))) == Counter(
        {InjectedFaultKind.KILL: 20, InjectedFaultKind.STOP: 5}
    )
