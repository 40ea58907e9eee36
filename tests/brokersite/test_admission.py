"""Which pages wait while other processes use the processors, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokersite import admission
from brokersite.admission import BURST, EXPECTED, LOOK, MAX_WAIT, PageScheduler, WorkBudget
from queues.processes.processors import Usage

RATE = 0.2


class Machine:
    """A machine with two processors on which time passes when something waits. `others` is what others use of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.others = 1.0
        self.looks = 0
        self._idle = 0.0
        monkeypatch.setattr(admission, "monotonic", lambda: self.now)
        monkeypatch.setattr(admission, "sleep", self._sleep)
        monkeypatch.setattr(admission, "usage", self._usage)
        monkeypatch.setattr("psutil.cpu_count", lambda: 2)

    async def _sleep(self, seconds: float) -> None:
        self.passes(seconds)
        await asyncio.sleep(0)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self._idle += 2 * seconds * (1.0 - self.others)

    def _usage(self, processes: Any) -> Usage:
        self.looks += 1
        return Usage(total=2 * self.now, idle=self._idle, own=0.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def pages(turns: PageScheduler, count: int, seconds: float) -> None:
    """Pages one after the other."""
    for _ in range(count):
        await turns.turn()
        turns.end(seconds)


def test_the_unused_budget_is_available_at_once_and_then_work_is_paced() -> None:
    allowance = WorkBudget(RATE, 0.0)
    allowance.begin()
    allowance.end(BURST)
    assert allowance.wait(0.0) == 0.0
    allowance.begin()
    allowance.end(0.1)
    assert allowance.wait(0.0) == pytest.approx(0.1 / RATE)
    assert allowance.wait(0.25) == pytest.approx(0.1 / RATE - 0.25)
    assert allowance.wait(0.1 / RATE) == 0.0


def test_no_more_than_a_burst_is_saved() -> None:
    allowance = WorkBudget(RATE, 0.0)
    assert allowance.wait(1000.0) == 0.0
    allowance.begin()
    allowance.end(BURST + 0.1)
    assert allowance.wait(1000.0) == pytest.approx(0.1 / RATE)


def test_pages_that_have_begun_count_before_they_end() -> None:
    allowance = WorkBudget(RATE, 0.0)
    begun = 0
    while not allowance.wait(0.0):
        allowance.begin()
        begun += 1
    assert begun == int(BURST / EXPECTED) + 1


def test_a_slow_page_costs_the_next_a_bounded_wait() -> None:
    allowance = WorkBudget(RATE, 0.0)
    allowance.begin()
    allowance.end(100.0)
    assert allowance.wait(0.0) == pytest.approx(MAX_WAIT)


async def test_a_loop_has_its_share_while_others_use_the_processors(machine: Machine) -> None:
    turns = PageScheduler(10)
    machine.passes(LOOK)
    began, waited = machine.now, waited_seconds()
    await pages(turns, 100, 0.1)
    assert machine.now - began == pytest.approx((99 * 0.1 - BURST) / RATE, abs=1.0)
    assert waited_seconds() - waited == pytest.approx(machine.now - began)


async def test_a_click_does_not_wait(machine: Machine) -> None:
    turns = PageScheduler(10)
    machine.passes(LOOK)
    for _ in range(50):
        began = machine.now
        await turns.turn()
        assert machine.now == began
        turns.end(0.1)
        machine.passes(2.0)


async def test_nothing_waits_while_the_processors_are_free(machine: Machine) -> None:
    machine.others = 0.4
    turns = PageScheduler(10)
    began = machine.now
    await pages(turns, 100, 0.1)
    assert machine.now == began


async def test_a_waiting_request_continues_once_the_processors_are_free(machine: Machine) -> None:
    turns = PageScheduler(1)
    machine.passes(LOOK)
    turns.end(10.0)
    began = machine.now
    machine.others = 0.0
    await turns.turn()
    assert 0.0 < machine.now - began <= 2 * LOOK


async def test_a_hundred_percent_is_no_limit(machine: Machine) -> None:
    turns = PageScheduler(100)
    looks, began = machine.looks, machine.now
    await pages(turns, 100, 10.0)
    assert (machine.looks, machine.now) == (looks, began)


async def test_those_that_wait_begin_in_the_order_in_which_they_came(machine: Machine) -> None:
    turns = PageScheduler(10)
    machine.passes(LOOK)
    turns.end(1.0)
    begun: list[int] = []

    async def page(n: int) -> None:
        await turns.turn()
        begun.append(n)
        turns.end(0.2)

    async with asyncio.TaskGroup() as group:
        for n in range(5):
            group.create_task(page(n))
    assert begun == [0, 1, 2, 3, 4]


async def test_a_request_that_is_given_up_while_it_waits_leaves_its_place(machine: Machine) -> None:
    turns = PageScheduler(10)
    machine.passes(LOOK)
    turns.end(1.0)
    waiting = asyncio.create_task(turns.turn())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns.turn()


def waited_seconds() -> float:
    [metric] = admission.waited.collect()
    return metric.samples[0].value
