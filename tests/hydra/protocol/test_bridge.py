"""Lines between IRC and the nodes: in order, without gaps, and said once or never."""

import pytest

from hydra.protocol.effects import ConnectIrc, Missed, Refused
from tests.hydra.protocol.driver import OTHERS, VOTER, Driven, answer, leader_of_three, neighbour, voter_of_three

B, C, _, _ = OTHERS
SAY = "PRIVMSG #c :hi"


def follower() -> Driven:
    """In term 3 under node 12 on link 2, whose next line is 4."""
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.hear(2, f"@voter={C};next=4 PING 3 3.1 12")
    driven.clear()
    return driven


def heartbeat(driven: Driven, number: int, next_line: int) -> list[str]:
    return driven.hear(2, f"@voter={C};next={next_line} PING 3 3.{number} 12")


def test_the_leader_counts_lines_from_0_in_each_term() -> None:
    driven = leader_of_three()
    driven.call("irc_line", ":x!y@z " + SAY)
    driven.call("irc_line", ":x!y@z JOIN #c")
    assert driven.sent[1] == ["@term=4 RECV 0 :x!y@z PRIVMSG #c :hi", "@term=4 RECV 1 :x!y@z JOIN #c"]
    assert driven.delivered == [(4, 0, ":x!y@z PRIVMSG #c :hi"), (4, 1, ":x!y@z JOIN #c")]


def test_lines_are_relayed_once_and_delivered_in_order() -> None:
    driven = follower()
    driven.hear(2, "@term=3 RECV 5 JOIN #b")
    assert driven.delivered == []
    driven.hear(2, "@term=3 RECV 4 JOIN #a", "@term=3 RECV 4 JOIN #a")
    assert driven.delivered == [(3, 4, "JOIN #a"), (3, 5, "JOIN #b")]
    assert driven.sent[1] == ["@term=3 RECV 5 JOIN #b", "@term=3 RECV 4 JOIN #a"]


def test_missing_lines_are_asked_for_and_given() -> None:
    driven = follower()
    assert heartbeat(driven, 2, 6)[-1] == "ASK 3 4"
    driven.hear(2, "@term=3 RECV 4 JOIN #a", "@term=3 RECV 5 JOIN #b")
    assert [idx for _, idx, _ in driven.delivered] == [4, 5]
    assert not any(line.startswith("ASK") for line in heartbeat(driven, 3, 6))
    assert driven.hear(1, "ASK 3 5") == ["@term=3 RECV 5 JOIN #b"]
    assert driven.hear(1, "ASK 3 2") == ["@term=3;first=4 RECV 4 JOIN #a", "@term=3 RECV 5 JOIN #b"]


def test_lines_that_no_node_has_any_more_are_reported_as_missed() -> None:
    driven = follower()
    heartbeat(driven, 2, 9)
    driven.hear(1, "@term=3;first=8 RECV 8 JOIN #h")
    assert driven.delivered == []
    driven.hear(2, "@term=3;first=7 RECV 7 JOIN #g")
    assert [effect for effect in driven.log if isinstance(effect, Missed)] == [Missed(3, 4, 6)]
    assert driven.delivered == [(3, 7, "JOIN #g"), (3, 8, "JOIN #h")]


def test_a_restarted_node_asks_for_what_it_missed() -> None:
    driven = voter_of_three(position=(3, 1))
    neighbour(driven, 1, 11, B)
    assert driven.hear(1, f"@voter={B};next=4 PING 3 3.1 11")[-1] == "ASK 3 2"


@pytest.mark.parametrize("line", ["RECV 4 JOIN #a", "@term=4 RECV 0 JOIN #a", "@term=2 RECV 0 JOIN #a"])
def test_a_line_of_no_term_or_of_another_is_not_taken(line: str) -> None:
    driven = follower()
    driven.hear(2, line)
    assert driven.delivered == []


def test_a_line_for_irc_goes_to_the_leader_under_its_term() -> None:
    driven = follower()
    driven.call("submit", "m1", SAY)
    assert driven.sent[1] == [f"@term=3;message={VOTER}/m1 SEND {driven.id} {SAY}"]
    driven.call("submit", "m1", SAY)
    assert len(driven.sent[1]) == 1


def test_the_leader_says_a_line_once_whatever_ways_it_comes() -> None:
    driven = leader_of_three()
    for link in (1, 2, 1):
        driven.hear(link, f"@term=4;message={B}/m1 SEND 11 {SAY}")
    driven.lead_on(5)
    driven.hear(2, f"@term=4;message={B}/m1 SEND 11 {SAY}")
    assert driven.said == [SAY]
    driven.hear(1, f"@term=4;message={B}/m2 SEND 11 {SAY}")
    assert driven.said == [SAY, SAY]


def test_a_line_of_another_term_is_never_said() -> None:
    driven = leader_of_three()
    driven.hear(1, f"@term=3;message={B}/m1 SEND 11 {SAY}", f"@term=5;message={B}/m2 SEND 11 {SAY}")
    assert driven.said == []


def test_the_leader_says_its_own_lines_itself() -> None:
    driven = leader_of_three()
    driven.call("submit", "m1", SAY)
    assert driven.said == [SAY]
    assert driven.sent[1] == []


def test_lines_wait_for_a_leader_but_not_too_many() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    for number in range(1001):
        driven.call("submit", f"m{number}", SAY)
    refused = [effect for effect in driven.log if isinstance(effect, Refused)]
    assert refused == [Refused("m1000", "1000 lines wait for a leader already")]
    driven.hear(1, f"@voter={B};next=0 PING 4 4.1 11")
    assert sum(" SEND " in line for line in driven.sent[1]) == 1000


def test_a_forbidden_line_is_refused() -> None:
    driven = leader_of_three()
    driven.call("submit", "m1", "QUIT :bye")
    assert driven.log[-1] == Refused("m1", "no line that may be sent to IRC")
    with pytest.raises(ValueError, match="not 'a b'"):
        driven.call("submit", "a b", SAY)


def test_lines_wait_for_the_connection_and_are_lost_with_the_term() -> None:
    driven = leader_of_three()
    driven.call("irc_lost")
    driven.call("submit", "m1", SAY)
    assert driven.said == []
    driven.wait(2.1)
    answer(driven)
    assert driven.said == [SAY]
    driven.call("irc_lost")
    driven.call("submit", "m2", SAY)
    driven.hear(1, f"@voter={B};next=0 PING 6 6.1 11")
    driven.wait(5)
    assert driven.said == [SAY]


def test_a_line_of_a_term_that_has_ended_is_not_said_in_a_later_one() -> None:
    driven = Driven(founder=True)
    driven.call("irc_lost")
    driven.call("submit", "m1", SAY)
    driven.freeze(9)
    driven.wait(6)
    assert (driven.node.term, driven.on_irc) == (2, True)
    driven.call("submit", "m2", SAY + " again")
    assert driven.said == [SAY + " again"]


def test_a_lost_connection_is_made_again_while_the_lease_lasts() -> None:
    driven = leader_of_three()
    driven.log.clear()
    driven.call("irc_lost")
    assert not any(isinstance(effect, ConnectIrc) for effect in driven.log)
    driven.wait(2.1)
    assert sum(isinstance(effect, ConnectIrc) for effect in driven.log) == 1


def test_lines_from_a_connection_that_is_not_wanted_any_more_are_ignored() -> None:
    driven = leader_of_three()
    driven.hear(1, f"@voter={B};next=0 PING 6 6.1 11")
    driven.call("irc_line", ":x " + SAY)
    driven.call("irc_connected")
    assert driven.delivered == []
