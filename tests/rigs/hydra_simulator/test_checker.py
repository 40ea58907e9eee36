"""Each promise is noticed when it is broken."""

from random import Random

import pytest

from hydra.protocol.effects import ConnectIrc, DeliverLine, Effect, LeaveIrc, Missed, Say, StoredNode, Transmit
from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Elect, Message, Ping, Pledge, Pong
from hydra.protocol.node import Node
from hydra.protocol.times import Times
from tests.rigs.hydra_simulator.checker import Checker, Violation

KEYS = [f"{number:016x}" for number in range(3)]


def node(number: int, term: int = 1) -> Node:
    stored = StoredNode(KEYS[number], term, None, Electorate(1, 3, frozenset(KEYS)))
    made = Node(name="n", times=Times(), rng=Random(number), stored=stored, now=0.0)
    made.core.id = 10 + number
    return made


def sends(message: Message) -> Transmit:
    return Transmit((1,), message, True)


def feed(*events: tuple[int, Effect]) -> Checker:
    checker = Checker()
    for number, effect in events:
        checker.effect(number, node(number), effect)
    return checker


def votes(term: int, nominee: int, *voters: int) -> list[tuple[int, Effect]]:
    return [(voter, sends(Elect(term, nominee, 10 + voter, KEYS[voter]))) for voter in voters]


BROKEN: dict[str, list[tuple[int, Effect]]] = {
    "at most one leader in a term": [
        *votes(2, 10, 0, 1), (0, sends(Ping(2, "2.1", 10))), (1, sends(Ping(2, "2.1", 11))),
    ],
    "a leader had a majority": [*votes(2, 10, 0), (0, sends(Ping(2, "2.1", 10)))],
    "no node votes for two in a term": [(0, sends(Pledge(2, 10, 10))), (0, sends(Pledge(2, 11, 10)))],
    "at most one node holds IRC": [(0, ConnectIrc()), (1, ConnectIrc())],
    "a line reaches IRC at most once": [(0, Say("JOIN #c", "m")), (1, Say("JOIN #c", "m"))],
    "a line is the same for all who have it": [(0, DeliverLine(2, 0, "a")), (1, DeliverLine(2, 0, "b"))],
    "lines have no gap": [(0, DeliverLine(2, 3, "a")), (0, DeliverLine(2, 5, "b"))],
}  # fmt: skip
KEPT: list[list[tuple[int, Effect]]] = [
    [*votes(2, 10, 0, 1), (0, sends(Ping(2, "2.1", 10))), (1, sends(Ping(2, "2.1", 10))), *votes(3, 11, 1, 2)],
    [(0, ConnectIrc()), (0, LeaveIrc("x")), (1, ConnectIrc())],
    [(0, sends(Pledge(2, 10, 10))), (0, sends(Pledge(2, 10, 10))), (0, sends(Pledge(3, 11, 10)))],
    [(0, DeliverLine(2, 3, "a")), (0, Missed(2, 4, 5)), (0, DeliverLine(2, 6, "b")), (0, DeliverLine(3, 0, "b"))],
    [(0, DeliverLine(2, 3, "a")), (1, DeliverLine(2, 9, "z"))],
]  # fmt: skip


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_noticed(promise: str) -> None:
    *before, last = BROKEN[promise]
    feed(*before)
    with pytest.raises(Violation) as caught:
        feed(*before, last)
    assert caught.value.promise == promise


@pytest.mark.parametrize("events", KEPT)
def test_a_kept_promise_is_not_complained_about(events: list[tuple[int, Effect]]) -> None:
    assert feed(*events)


def test_a_vote_on_disk_is_a_vote() -> None:
    checker = Checker()
    checker.written(StoredNode(KEYS[0], 2, 10))
    with pytest.raises(Violation, match="votes for 11 after 10 in term 2"):
        checker.effect(0, node(0), sends(Elect(2, 11, 10)))


def test_a_term_that_was_said_is_not_forgotten() -> None:
    checker = Checker()
    checker.effect(0, node(0), sends(Pong("5.1", 10, 0)))
    checker.after_event(0, node(0, term=5))
    with pytest.raises(Violation, match="went back from term 5 to 4"):
        checker.after_event(0, node(0, term=4))


def test_only_the_promise_that_is_asked_for_matters() -> None:
    checker = Checker(only="something else")
    checker.effect(0, node(0), ConnectIrc())
    checker.effect(1, node(1), ConnectIrc())


def test_a_node_that_stood_still_may_not_go_on_there_beside_another() -> None:
    checker = Checker()
    checker.effect(0, node(0), ConnectIrc())
    checker.stands_still(0)
    assert checker.holds_irc(0)
    checker.effect(1, node(1), ConnectIrc())
    with pytest.raises(Violation, match="node 0 says m while node 1 is there"):
        checker.effect(0, node(0), Say("JOIN #c", "m"))
    with pytest.raises(Violation, match="node 0 goes on there beside node 1"):
        checker.after_event(0, node(0))


def test_a_node_that_stood_still_and_leaves_or_is_alone_breaks_nothing() -> None:
    checker = Checker()
    checker.effect(0, node(0), ConnectIrc())
    checker.stands_still(0)
    checker.after_event(0, node(0))
    assert checker.on_irc == 0
    checker.stands_still(0)
    checker.effect(1, node(1), ConnectIrc())
    checker.effect(0, node(0), LeaveIrc("x"))
    checker.after_event(0, node(0))
    assert checker.on_irc == 1
