"""Inductions: who is asked, who is welcomed, and what ends them."""

from hydra.protocol.effects import StoredNode
from hydra.protocol.links import State
from hydra.protocol.roles import Role
from hydra.protocol.times import Times
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


def test_the_mediator_asks_all_others_and_welcomes_when_all_have_met() -> None:
    driven = leader_of_three()
    driven.connect(3)
    assert driven.hear(3, "KNOCK 13 probe") == [f"MEET 13 {driven.id}"]
    assert driven.sent[1] == driven.sent[2] == ["KNOCK 13 probe"]
    driven.clear()
    driven.hear(1, f"@voter={B} MEET 13 11")
    assert driven.sent[3] == ["MEET 13 11"]
    assert driven.sent[2] == [f"@voter={B} MEET 13 11"]
    driven.clear()
    driven.hear(2, f"@voter={C} MEET 13 12")
    assert driven.sent[3] == ["MEET 13 12", "WELCOME 13", f"HELLO 13 {driven.id}"]
    assert driven.sent[1][-2:] == ["WELCOME 13", f"@voter={VOTER} HELLO 13 {driven.id}"]
    assert 13 in driven.node.members


def test_an_induction_that_not_all_agree_to_ends_after_max_meet() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11")
    for _ in range(4):
        driven.wait(2.4)
        answer(driven)
    assert 3 not in driven.closed
    driven.wait(0.5)
    assert driven.closed[3] == "1 nodes have not agreed within MAX_MEET"
    assert 13 not in driven.node.members


def test_the_agreement_of_a_node_that_is_dropped_is_not_waited_for() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11", "DROP 12 dead")
    assert driven.sent[3][-2:] == ["WELCOME 13", f"HELLO 13 {driven.id}"]


def test_an_induction_through_a_follower_does_not_wait_for_a_member_that_answers_no_heartbeat() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.node.members.register(14, D, driven.now)  # of whom the leader has never heard
    for number in range(6):
        driven.hear(2, f"@voter={C};next=0 PING 3 3.{number} 12")
        driven.hear(1, f"@voter={B} PONG 3.{number} 11 0")
        driven.wait(2.5)
    assert 14 in driven.node.members
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11")
    driven.hear(2, f"@voter={C} MEET 13 12")
    assert driven.sent[3][-2:] == ["WELCOME 13", f"HELLO 13 {driven.id}"]


def test_a_member_that_falls_silent_during_an_induction_is_waited_for_no_longer_than_max_ping() -> None:
    driven = voter_of_three(times=Times(max_meet=30.0))
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.hear(2, f"@voter={C};next=0 PING 3 3.0 12")
    driven.node.members.register(14, D, driven.now)
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11")
    driven.hear(2, f"@voter={C} MEET 13 12")
    for number in range(1, 6):
        assert 13 not in driven.node.members
        driven.hear(2, f"@voter={C};next=0 PING 3 3.{number} 12")
        driven.wait(2.5)
    driven.hear(2, f"@voter={C};next=0 PING 3 3.6 12")
    assert 13 in driven.node.members


def test_a_mediator_takes_one_server_after_the_other() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.connect(4)
    driven.hear(3, "KNOCK 13 probe")
    assert driven.hear(4, "KNOCK 14 probe") == []
    driven.hear(1, f"@voter={B} MEET 13 11")
    driven.hear(2, f"@voter={C} MEET 13 12")
    assert driven.sent[4] == [f"MEET 14 {driven.id}"]


def test_a_server_that_knocks_with_another_id_is_let_in_once() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    assert driven.hear(3, "KNOCK 14 probe") == [f"MEET 14 {driven.id}"]
    for ind in 13, 14:
        driven.hear(1, f"@voter={B} MEET {ind} 11")
        driven.hear(2, f"@voter={C} MEET {ind} 12")
    assert 13 not in driven.node.members
    assert 14 in driven.node.members


def test_a_plain_node_that_knocks_again_is_not_dropped_for_the_silence_before() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11")
    driven.hear(2, f"@voter={C} MEET 13 12")
    driven.lose(3)
    silence = Times().max_ping
    driven.lead_on(int(silence / 2.5) - 1)
    driven.connect(4)
    driven.hear(4, "KNOCK 13 probe")
    driven.lead_on(2)
    assert 13 in driven.node.members
    driven.lead_on(int(silence / 2.5) + 1)
    assert 13 not in driven.node.members


def test_an_asked_member_agrees_once_and_greets_when_all_have_agreed() -> None:
    driven = leader_of_three()
    assert driven.hear(1, "KNOCK 14 probe") == [f"@voter={VOTER} MEET 14 {driven.id}"]
    assert driven.sent[2] == ["KNOCK 14 probe", f"@voter={VOTER} MEET 14 {driven.id}"]
    assert driven.hear(2, "KNOCK 14 probe") == []
    assert 14 not in driven.node.members
    assert driven.hear(1, "WELCOME 14") == [f"@voter={VOTER} HELLO 14 {driven.id}"]
    assert 14 in driven.node.members
    assert driven.hear(1, "WELCOME 15", f"@voter={B} HELLO 15 11") == []
    assert 15 not in driven.node.members


def test_a_greeting_registers_the_knocking_node() -> None:
    driven = leader_of_three()
    driven.hear(1, "KNOCK 14 probe")
    driven.hear(2, f"@voter={C} HELLO 14 12")
    assert 14 in driven.node.members


def test_an_induction_of_others_is_forgotten_after_max_meet() -> None:
    driven = leader_of_three()
    driven.hear(1, "KNOCK 14 probe")
    for _ in range(5):
        driven.wait(2.1)
        answer(driven)
    driven.hear(1, "WELCOME 14")
    assert 14 not in driven.node.members


def test_an_id_that_is_taken_is_refused() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 11 probe")
    assert driven.closed[3] == "11 is another node's id"
    driven.connect(4)
    driven.hear(4, f"KNOCK {driven.id} probe")
    assert driven.closed[4] == f"{driven.id} is this node"


def test_a_voter_that_comes_back_is_let_in_at_once_also_without_a_leader() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    driven.connect(2)
    assert driven.node.leader is None
    own = driven.id
    expected = [f"@voter={VOTER} MEET 12 {own}", "WELCOME 12", f"@voter={VOTER} HELLO 12 {own}"]
    assert driven.hear(2, f"KNOCK 12 gamma@{C}")[:3] == expected
    assert driven.hear(2, f"KNOCK 12 gamma@{C}") == expected


def test_a_second_link_of_a_node_is_joined_at_once() -> None:
    driven = leader_of_three()
    driven.connect(3)
    own = driven.id
    expected = [f"@voter={VOTER} MEET 11 {own}", "WELCOME 11", f"@voter={VOTER} HELLO 11 {own}"]
    assert driven.hear(3, f"KNOCK 11 n11@{B}") == expected
    assert driven.sent[2] == []


def test_without_a_leader_a_stranger_waits() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    driven.connect(2)
    assert driven.hear(2, "KNOCK 13 probe") == []
    driven.hear(1, f"@voter={B};next=0 PING 4 4.1 11")
    assert driven.sent[2] == [f"MEET 13 {driven.id}"]


def test_after_long_without_a_leader_a_newcomer_is_let_in_without_a_vote() -> None:
    driven = voter_of_three()
    driven.connect(2)
    assert driven.hear(2, f"KNOCK 14 delta@{D}") == []
    driven.wait(15)
    assert driven.sent[2][:2] == [f"@voter={VOTER} MEET 14 {driven.id}", "WELCOME 14"]
    assert driven.node.electorate == electorate(VOTER, B, C)


def test_a_node_outside_a_network_knocks_back() -> None:
    driven = Driven()
    driven.connect(1)
    assert driven.hear(1, f"KNOCK 11 beta@{B}") == [f"KNOCK {driven.id} alpha@{VOTER}"]
    driven.hear(1, f"@voter={B} MEET {driven.id} 11", f"WELCOME {driven.id}")
    assert driven.node.role is Role.WAITING
    (link,) = driven.node.core.links
    assert (link.state, link.extended, link.peer) == (State.JOINED, True, 11)


def test_two_that_are_outside_do_not_knock_back_at_each_other_without_end() -> None:
    driven = Driven(targets=["x"])
    driven.connect(1, target="x")
    for _ in range(10):
        assert driven.hear(1, f"KNOCK 11 beta@{B}") == []


def test_a_knock_is_repeated_and_a_link_without_an_admission_is_closed() -> None:
    driven = Driven(targets=["x"])
    driven.connect(1, target="x")
    driven.connect(2)
    driven.wait(29.9)
    assert len(driven.sent[1]) == 12
    assert driven.closed == {}
    driven.wait(0.2)
    assert driven.closed == {1: "no induction in time", 2: "no induction in time"}


def test_an_address_is_dialled_again_until_it_is_there() -> None:
    driven = Driven(targets=["x", "y"])
    assert driven.dialled == ["x", "y"]
    driven.connect(1, target="x")
    driven.wait(10)
    assert driven.dialled.count("x") == 1
    assert 4 <= driven.dialled.count("y") <= 11
    driven.lose(1)
    driven.wait(1.1)
    assert driven.dialled.count("x") == 2


def test_every_attempt_to_come_in_is_made_with_another_id() -> None:
    driven = Driven(targets=["x"])
    ids = set()
    for link in range(3):
        driven.connect(link, target="x")
        ids.add(driven.id)
        driven.lose(link)
    assert len(ids) == 3


def test_through_a_neighbour_without_attributes_no_node_gets_a_vote() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, "KNOCK 13 probe")
    driven.hear(1, f"@voter={B} MEET 13 11")
    driven.hear(2, f"@voter={C} MEET 13 12")
    driven.hear(3, f"KNOCK 14 delta@{D}", "WELCOME 14", f"@voter={E} PONG 4.1 15 0 x")
    driven.lead_on(1)
    driven.hear(3, f"@voter={D};stamp=4.5 PONG {last_val(driven)} 14 0 delta")
    assert 14 in driven.node.members
    assert 15 not in driven.node.members
    assert driven.node.electorate == electorate(VOTER, B, C, term=4)


def test_a_founder_leads_at_once_and_a_restarted_one_too() -> None:
    driven = Driven(founder=True)
    assert (driven.node.role, driven.node.term, driven.on_irc) == (Role.LEADING, 1, True)
    again = Driven(driven.stored, founder=True)
    assert (again.node.role, again.node.term) == (Role.LEADING, 2)
    other = Driven(StoredNode(VOTER))
    other.wait(100)
    assert other.node.role is Role.OUTSIDE
