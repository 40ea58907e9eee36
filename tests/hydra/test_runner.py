"""A node whose database goes away and comes back, with a double in place of the database."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest

from hydra.irc.fates import LINE_REFUSED, LINES_MISSED, SENT, Fate, FateKind
from hydra.irc.pace import Pace
from hydra.protocol.roles import Role
from hydra.runner import FAULTS_WITHIN, MAX_FAULTS, Runner
from hydra.send_gate import SendGate
from hydra.transports.base import TransportError
from tests.waiting import PATIENCE
from wire.net.tasks import Tasks


class FakeDriver:
    """A driver that only knows whether it is over."""

    def __init__(self) -> None:
        self.over = False
        self.faults = 0
        leader = SimpleNamespace(voter="of another database")
        self.node: Any = SimpleNamespace(role=Role.FOLLOWING, term=3, leader=1, members={1: leader})

    def silence(self, reason: str) -> None:
        self.over = True

    async def abandon(self, reason: str) -> None:
        self.over = True


@pytest.fixture
async def runner() -> Any:
    """A node that follows, as far as its database concerns it."""
    made: Any = object.__new__(Runner)
    made.driver = FakeDriver()
    made.told = []
    made.happened = lambda kind, text: made.told.append(f"{kind}: {text}")
    made._gate = SendGate(None, Pace(1, 0))
    made._gate.node = made.driver.node
    made._loop = asyncio.get_running_loop()
    made._sender, made._silence, made._tasks, made._beginning = None, None, Tasks(), asyncio.Lock()
    made._faults_beside, made._fates = 0, {}
    return made


async def test_a_leader_elsewhere_is_known_although_the_database_was_away_when_it_was_elected(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.runner.STATUS", 0.01)
    answers: list[Any] = [ConnectionError("the database is away"), False]

    async def run(function: Any, *arguments: object) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    runner._database = SimpleNamespace(run=run)
    await runner._look_for_leader(3)
    assert runner._gate.leader_elsewhere


async def test_a_node_that_is_silent_takes_no_lines_from_its_queue(runner: Any) -> None:
    runner._gate.leader_elsewhere = True
    assert runner._gate.is_open()
    runner._be_silent("the database is away")
    assert not runner._gate.is_open()


async def test_a_line_that_a_silent_node_has_not_given_to_irc_is_known_to_be_unsent(runner: Any) -> None:
    waiting = runner._fates["a/7"] = asyncio.get_running_loop().create_future()
    runner._be_silent("the database is away")
    assert (await waiting).kind is FateKind.UNSENT


async def test_the_end_of_another_nodes_line_is_an_event(runner: Any) -> None:
    runner.settled("b/7", "PRIVMSG #a :x", Fate(FateKind.REFUSED, "404 #a no"))
    runner.settled("b/8", "PRIVMSG #a :x", Fate(FateKind.UNKNOWN, "lost"))
    runner.settled("b/9", "PRIVMSG #a :x", SENT)
    assert runner.told == ["line refused: b/7: 404 #a no: PRIVMSG #a :x", "line lost: b/8: lost: PRIVMSG #a :x"]


async def test_lines_that_came_to_no_good_end_are_counted(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other nodes, of the own queue and from IRC: in the node's row, which `/metrics` reads."""
    del runner.happened
    shown: list[tuple[int, ...]] = []
    runner.store = SimpleNamespace(status=SimpleNamespace(happened=lambda *_: None, publish=shown.append))
    runner._lines = Counter()
    monkeypatch.setattr("hydra.runner.snapshot", lambda node, now, *figures: figures)
    runner.settled("b/7", "PRIVMSG #a :x", Fate(FateKind.REFUSED, "404 #a no"))
    runner.settled("b/8", "PRIVMSG #a :x", Fate(FateKind.UNKNOWN, "lost"))
    runner._happened_beside(LINE_REFUSED, "from its queue")
    runner._happened_beside(LINE_REFUSED, "from its queue")
    runner._happened_beside("fault", "in its queue")
    runner.happened(LINES_MISSED, "term 3, 7 to 9")
    runner._show_now()
    assert shown == [(1, 3, 2)]


async def test_a_node_that_begins_anew_and_cannot_listen_at_first_tries_again(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On IRC the server may not have noticed yet that the node's former connection is gone."""
    monkeypatch.setattr("hydra.runner.LISTEN_AGAIN", 0.01)
    drivers, listening = [runner.driver], asyncio.Event()

    async def settled() -> None:
        pass

    def new_driver() -> FakeDriver:
        driver = FakeDriver()
        drivers.append(driver)
        runner._gate.node = driver.node
        return driver

    async def listen() -> None:
        if len(drivers) < 4:
            raise TransportError("irc://localhost/hydra: the nick hydra is in use")
        listening.set()

    runner.store = SimpleNamespace(lost=False, settled=settled)
    runner._new_driver, runner._listen = new_driver, listen
    runner._be_silent("the database is away")
    runner._store_back()
    await asyncio.wait_for(listening.wait(), PATIENCE)
    assert [driver.over for driver in drivers] == [True, True, True, False]
    assert runner._gate.node is drivers[-1].node
    assert runner.told == ["listen failed: irc://localhost/hydra: the nick hydra is in use"] * 2


@pytest.fixture
def beginning(runner: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same node, with what it needs to begin anew; `drivers` are those it has had."""
    monkeypatch.setattr("hydra.runner.LISTEN_AGAIN", 0.01)

    async def settled() -> None:
        pass

    async def listen() -> None:
        runner.listening.set()

    def new_driver() -> FakeDriver:
        driver = FakeDriver()
        runner.drivers.append(driver)
        return driver

    runner.store = SimpleNamespace(lost=False, settled=settled)
    runner.drivers, runner.listening = [runner.driver], asyncio.Event()
    runner._new_driver, runner._listen = new_driver, listen
    runner._faults, runner._faults_beside, runner.error = deque(maxlen=MAX_FAULTS), 0, None
    runner._stop = asyncio.Event()
    return runner


async def test_a_node_that_has_a_fault_of_its_own_is_silent_at_once_and_begins_anew(beginning: Any) -> None:
    runner = beginning
    runner.driver.faults = 2
    runner.failed(LookupError("unforeseen"))
    assert runner.drivers[0].over
    assert not runner._gate.is_open()
    await asyncio.wait_for(runner.listening.wait(), PATIENCE)
    assert [driver.over for driver in runner.drivers] == [True, False]
    assert runner.driver is runner.drivers[-1]
    assert runner.told == ["fault: the node begins anew: LookupError: unforeseen"]
    assert runner._faults_beside + runner.driver.faults == 3, "the faults of the driver before still count"
    assert not runner._stop.is_set()


async def test_a_node_with_a_fault_again_and_again_ends_its_process(beginning: Any) -> None:
    runner = beginning
    for number in range(MAX_FAULTS):
        assert runner.error is None
        runner.failed(LookupError(str(number)))
    assert str(runner.error) == str(MAX_FAULTS - 1)
    assert runner._stop.is_set()
    await runner._tasks.end()
    assert runner.drivers == [runner.driver], "it does not begin anew any more"


async def test_faults_that_are_far_apart_do_not_end_the_process(
    beginning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, now = beginning, 0.0
    monkeypatch.setattr("hydra.runner.clock.now", lambda: now)
    for number in range(2 * MAX_FAULTS):
        now += FAULTS_WITHIN / 2
        runner.failed(LookupError(str(number)))
    assert runner.error is None
    await runner._tasks.end()
