"""Operators' requests to a node."""

from hydra.protocol.roles import Role
from tests.hydra.protocol.driver import OTHERS, leader_of_three, neighbour, voter_of_three

B, C, _, _ = OTHERS


def test_a_leader_that_is_asked_to_step_down_is_off_irc_and_remains_a_node() -> None:
    driven = leader_of_three()
    assert driven.on_irc
    links = driven.node.core.links.joined
    driven.call("step_down")
    assert (driven.node.role, driven.on_irc, driven.node.leader) == (Role.WAITING, False, None)
    assert driven.node.core.links.joined == links


def test_stepping_down_has_no_effect_on_a_follower() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    driven.hear(1, f"@voter={B};next=0 PING 7 7.1 11")
    driven.call("step_down")
    assert (driven.node.role, driven.node.leader) == (Role.FOLLOWING, 11)


def test_a_member_that_is_dropped_by_hand_is_gone_for_all_and_its_link_is_closed() -> None:
    driven = leader_of_three()
    driven.clear()
    driven.call("drop", 11, "by an operator")
    assert 11 not in driven.node.members
    assert "DROP 11 by an operator" in driven.sent[2]
    assert driven.closed[1] == "node 11 was dropped"


def test_after_an_operator_drops_the_leader_a_node_waits_for_another() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.hear(1, f"@voter={B};next=0 PING 7 7.1 11")
    driven.call("drop", 11, "by an operator")
    assert (driven.node.role, driven.node.leader) == (Role.WAITING, None)


def test_dropping_an_unknown_member_sends_nothing() -> None:
    driven = leader_of_three()
    driven.clear()
    driven.call("drop", 99, "by an operator")
    assert driven.sent == {}


def test_a_link_that_is_closed_by_hand_is_closed_with_the_reason() -> None:
    driven = leader_of_three()
    driven.call("disconnect", 2, "closed by an operator")
    assert driven.closed == {2: "closed by an operator"}
    driven.call("disconnect", 77, "closed by an operator")
    assert 77 not in driven.closed
