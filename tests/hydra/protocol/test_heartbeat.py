"""The term: heartbeats, the lease, the drop of the silent, the electorate."""

import pytest

from hydra.protocol.electorate import Electorate
from hydra.protocol.roles import Role
from tests.hydra.protocol.driver import (
    OTHERS,
    VOTER,
    Driven,
    answer,
    electorate,
    last_val,
    leader_of_three,
    neighbour,
    voter_of_three,
)

B, C, D, E = OTHERS


def follower() -> Driven:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    return driven


def test_a_heartbeat_is_answered_and_relayed_once() -> None:
    driven = follower()
    ping = f"@voter={C};next=0 PING 3 3.1 12"
    assert driven.hear(2, ping) == [f"@voter={VOTER};stamp=3.5;irc=1 PONG 3.1 {driven.id} 0 alpha"]
    assert driven.sent[1] == [ping, f"@voter={VOTER};stamp=3.5;irc=1 PONG 3.1 {driven.id} 0 alpha"]
    driven.clear()
    assert driven.hear(1, ping) == driven.hear(2, ping) == []


def test_a_later_term_is_on_disk_before_its_heartbeat_is_answered() -> None:
    driven = voter_of_three(disk=False)
    neighbour(driven, 1, 11, B)
    assert driven.hear(1, f"@voter={B};next=0 PING 7 7.1 11") == []
    assert driven.writes[-1].stored.term == 7
    driven.answer_disk()
    assert len(driven.sent[1]) == 1


def test_the_heartbeats_of_an_earlier_term_and_of_a_second_leader_are_ignored() -> None:
    driven = follower()
    driven.hear(2, f"@voter={C};next=0 PING 5 5.1 12")
    driven.clear()
    assert driven.hear(1, f"@voter={B};next=0 PING 4 4.9 11", f"@voter={B};next=0 PING 5 5.9 11") == []
    assert driven.sent[2] == []
    assert driven.node.leader == 12


def test_strangers_are_not_believed() -> None:
    driven = follower()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    for line in ("PING 9 x 99", "PONG x 99 0", "NOMINATE 9 99", "PLEDGE 9 99 99", "DROP 11"):
        driven.hear(3, line)
    assert driven.node.term == 3
    assert 11 in driven.node.members
    driven.connect(4)
    driven.hear(4, "PING 9 x 11", "NOMINATE 9 11")
    assert driven.node.term == 3


def test_answers_are_relayed_with_one_hop_more_and_show_the_closest_neighbour() -> None:
    driven = follower()
    driven.hear(1, f"@voter={D} PONG 3.1 14 2 delta")
    assert driven.sent[2] == [f"@voter={D} PONG 3.1 14 3 delta"]
    member = driven.node.members.get(14)
    assert member is not None
    assert (member.link, member.hops, member.name, member.voter) == (1, 3, "delta", D)
    driven.clear()
    driven.hear(2, f"@voter={D} PONG 3.1 14 0 delta")
    assert driven.sent[1] == []
    assert (member.link, member.hops) == (2, 1)


def test_a_follower_waits_when_the_leader_is_silent_for_max_ping() -> None:
    driven = follower()
    driven.hear(2, f"@voter={C};next=0 PING 3 3.1 12")
    driven.wait(9.9)
    assert driven.node.role is Role.FOLLOWING
    driven.wait(0.2)
    assert (driven.node.role, driven.node.leader) == (Role.WAITING, None)
    assert driven.node.election.ends - driven.now <= 5


def test_a_leader_whom_a_majority_answers_stays() -> None:
    driven = leader_of_three()
    for _ in range(20):
        driven.wait(2.5)
        answer(driven, 1)
    assert (driven.node.role, driven.on_irc) == (Role.LEADING, True)


def test_a_leader_without_answers_leaves_irc_before_any_node_may_pledge_to_another() -> None:
    driven = leader_of_three()
    begin = driven.now
    while driven.on_irc:
        driven.wait(0.1)
    assert driven.now - begin <= 8.2
    assert driven.node.role is not Role.LEADING


def test_a_leader_that_was_stopped_leaves_irc_before_anything_else() -> None:
    driven = leader_of_three()
    driven.freeze(9)
    driven.hear(1, "@term=4;message=m/1 SEND 11 PRIVMSG #c :late")
    assert driven.said == []
    assert not driven.on_irc


def test_a_node_that_does_not_answer_is_dropped_and_its_vote_stays_until_a_majority_is_smaller_without_it() -> None:
    driven = leader_of_three()
    for _ in range(6):
        driven.wait(2.5)
        answer(driven, 1)
    assert 12 not in driven.node.members
    assert driven.closed[2] == "node 12 was dropped"
    assert driven.node.electorate == electorate(VOTER, B, C, term=4)


def test_a_newcomer_gets_a_vote_when_a_majority_has_the_electorate() -> None:
    driven = leader_of_three()
    answer(driven, 1, 2)
    driven.hear(1, "KNOCK 14 delta@" + D, f"@voter={B} MEET 14 11")
    driven.hear(1, "WELCOME 14")
    driven.wait(2.5)
    answer(driven, 1, 2)
    driven.hear(1, f"@voter={D};stamp=4.5 PONG {driven.node.term}.{99} 14 1 delta")
    assert driven.node.electorate == electorate(VOTER, B, C, term=4)
    driven.hear(1, f"@voter={D};stamp=4.5 PONG {last_val(driven)} 14 1 delta")
    expected = Electorate(4, 6, frozenset({VOTER, B, C, D}))
    assert driven.node.electorate == expected
    assert driven.stored.electorate == expected
    assert f"electorate={expected};leave=" in driven.sent[1][-1]


def test_a_second_leader_in_the_same_term_makes_the_first_stand_again() -> None:
    driven = leader_of_three()
    driven.hear(1, f"@voter={B};next=0 PING 4 4.7 11")
    assert (driven.node.role, driven.node.term, driven.on_irc) == (Role.NOMINEE, 5, False)


def test_a_leader_follows_a_later_term() -> None:
    driven = leader_of_three()
    driven.hear(1, f"@voter={B};next=0 PING 6 6.1 11")
    assert (driven.node.role, driven.node.leader, driven.on_irc) == (Role.FOLLOWING, 11, False)


def test_a_node_that_is_dropped_takes_another_id_and_still_has_its_vote() -> None:
    driven = follower()
    before = driven.id
    driven.hear(1, f"DROP {before} too slow")
    assert driven.id != before
    assert driven.closed == {1: "dropped: too slow", 2: "dropped: too slow"}
    assert driven.sent[2] == [f"DROP {before} too slow"]
    assert driven.node.role is Role.WAITING


def test_a_dropped_node_that_answers_a_heartbeat_is_told_that_it_was_dropped() -> None:
    driven = follower()
    driven.hear(2, "DROP 14 gone")
    assert driven.hear(1, f"@voter={D} PONG 3.1 14 0") == ["DROP 14 dropped before"]


def test_a_node_that_leaves_says_so_and_is_off_irc() -> None:
    driven = leader_of_three()
    assert driven.node.heartbeat.leader_term is not None
    proof = driven.node.heartbeat.leader_term.proof
    driven.call("leave")
    assert not driven.on_irc
    assert driven.sent[1] == driven.sent[2] == [f"@proof={proof} DROP {driven.id} the leader leaves"]


@pytest.mark.parametrize("line", ["DROP {id}", "DROP {id} the leader leaves", "@proof=%s DROP {id} gone" % ("0" * 32)])
def test_a_leader_whom_a_majority_answers_does_not_resign_because_a_member_says_so(line: str) -> None:
    driven = leader_of_three()
    assert driven.hear(1, line.format(id=driven.id)) == []
    assert driven.sent[2] == []
    assert (driven.node.role, driven.on_irc, driven.closed) == (Role.LEADING, True, {})


def test_a_leader_whom_no_majority_has_answered_yet_is_dropped_like_any_node() -> None:
    driven = leader_of_three()
    assert driven.node.heartbeat.leader_term is not None
    driven.node.heartbeat.leader_term.leased = False
    driven.hear(1, f"DROP {driven.id} gone")
    assert driven.node.role is Role.WAITING


def test_a_leader_that_dials_a_node_by_which_it_was_dropped_goes_on() -> None:
    driven = leader_of_three()
    driven.connect(3, target="there:1")
    driven.hear(3, f"DROP {driven.id} dropped before")
    assert driven.closed == {3: "it takes this leader for dropped: dropped before"}
    assert (driven.node.role, driven.on_irc) == (Role.LEADING, True)


def test_a_leader_that_was_dropped_in_an_earlier_term_is_followed() -> None:
    driven = follower()
    driven.hear(2, "DROP 14 gone")
    assert driven.hear(1, f"@voter={D};next=0 PING 3 3.1 14") == ["DROP 14 dropped before"]
    driven.hear(1, f"@voter={D};next=0 PING 4 4.1 14")
    assert driven.node.leader == 14


def test_a_follower_forgets_a_member_that_its_leader_does_not_know_and_would_never_drop() -> None:
    driven = follower()
    driven.node.members.register(13, D, driven.now)
    for number in range(9):
        driven.hear(2, f"@voter={C};next=0 PING 3 3.{number} 12")
        driven.hear(1, f"@voter={B} PONG 3.{number} 11 0")
        assert 13 in driven.node.members
        driven.wait(2.5)
    driven.hear(2, f"@voter={C};next=0 PING 3 3.9 12")
    assert {member.id for member in driven.node.members} == {11, 12}
    assert driven.hear(1, f"@voter={D} PONG 3.9 13 1") == []
    assert 13 in driven.node.members, "it is heard from again"
