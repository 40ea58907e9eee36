"""Snapshots of a node, and the events between two of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra.protocol.effects import StoredNode
from hydra.snapshot import FARTHEST, LinkStatus, MemberStatus, NodeSnapshot, occurrences
from tests.hydra.protocol.driver import OTHERS, VOTER, Driven, leader_of_three, neighbour, voter_of_three
from tests.hydra.rows import look_at


def texts(before: NodeSnapshot | None, after: NodeSnapshot) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in occurrences(before, after)]


def test_a_node_that_knows_no_other() -> None:
    driven = Driven(StoredNode(VOTER))
    status = look_at(driven)
    assert (status.name, status.id, status.voter) == ("alpha", driven.id, VOTER)
    assert (status.role, status.term, status.leader, status.leader_name) == ("outside", 0, None, "")
    assert (status.lease_until, status.irc, status.electorate) == (None, "off", "")
    assert (status.links, status.members) == ((), ())


def test_a_leader_its_links_and_the_nodes_that_follow() -> None:
    driven = leader_of_three()
    driven.connect(3, target="10.0.0.3:6174")
    status = look_at(driven)
    assert (status.role, status.term, status.leader, status.leader_name) == ("leading", 4, driven.id, "alpha")
    assert status.lease_until is not None
    assert 7.9 < status.lease_until - status.now <= 8.0
    assert (status.irc, status.electorate) == ("on", f"4.5:{VOTER},{OTHERS[0]},{OTHERS[1]}")
    first, _, dialled = status.links
    assert first == LinkStatus(1, "", "10.0.0.1", 11, "n1", "joined", True, first.opened)
    assert dialled == LinkStatus(3, "10.0.0.3:6174", "", None, "", "knocking", False, driven.now)
    member = status.members[0]
    assert member == MemberStatus(11, OTHERS[0], "n1", 1, 1, driven.now, True)


def test_a_follower_names_its_leader_and_does_not_know_when_others_answered() -> None:
    driven = voter_of_three()
    neighbour(driven, 1, 11, OTHERS[0])
    val = f"4.1.{OTHERS[0]}"
    driven.hear(1, f"@voter={OTHERS[0]};next=0 PING 4 {val} 11", f"PONG {val} 11 0 beta@{OTHERS[0]}")
    status = look_at(driven)
    assert (status.role, status.leader, status.leader_name) == ("following", 11, "beta")
    assert status.members[0].answered is None
    assert status.members[0].tag == "beta"


def test_a_node_that_is_in_no_electorate_has_no_vote() -> None:
    driven = leader_of_three()
    driven.connect(3, origin="10.0.0.3")
    driven.hear(3, f"KNOCK 13 n3@{OTHERS[2]}")
    for link, id in ((1, 11), (2, 12)):
        driven.hear(link, f"@voter={OTHERS[link - 1]} MEET 13 {id}")
    assert {member.id: member.voting for member in look_at(driven).members} == {11: True, 12: True, 13: False}


def test_any_number_of_hops_that_a_neighbour_claims_fits_into_the_tables() -> None:
    driven = leader_of_three()
    driven.node.members._by_id[11].hops = 2**63
    assert look_at(driven).members[0].hops == FARTHEST


def test_events_since_the_last_snapshot() -> None:
    driven = voter_of_three()
    outside = look_at(driven)
    assert texts(None, outside) == [
        ("role", "waits in term 3: there is no leader"),
        ("electorate", f"3.5: {OTHERS[0]}, {OTHERS[1]}, alpha"),
    ]
    leader = look_at(leader_of_three())
    assert texts(outside, leader)[0] == ("role", "leads term 4")
    assert occurrences(outside, leader)[0].term == 4
    assert texts(leader, leader) == []
    later = dataclasses.replace(leader, now=leader.now + 5, lease_until=leader.now + 12, links=())
    assert texts(leader, later) == []


def test_joins_and_leaves_are_reported_by_name() -> None:
    leader = look_at(leader_of_three())
    one_less = dataclasses.replace(leader, members=leader.members[:1], electorate=f"4.6:{VOTER},{OTHERS[1]}")
    assert texts(leader, one_less) == [
        ("left", "n2 (12) is no node of the network any more"),
        ("electorate", "4.6: alpha, n2"),
    ]
    assert texts(one_less, leader) == [
        ("joined", "n2 (12) is a node of the network"),
        ("electorate", "4.5: alpha, n1, n2"),
    ]


def test_every_role_is_told_in_words() -> None:
    status = look_at(leader_of_three())
    before = dataclasses.replace(status, term=1)

    def role(**changes: Any) -> str:
        return texts(before, dataclasses.replace(status, **changes))[0][1]

    assert role(role="following", leader_name="beta") == "follows beta in term 4"
    assert role(role="following", leader_name="", leader=11) == "follows 11 in term 4"
    assert role(role="outside") == "is outside the network"
    assert role(role="nominee") == "stands for election in term 4"
    assert role(role="calling") == "stands for election in term 4, calls for the votes"


def test_another_id_and_an_electorate_that_is_gone_are_told() -> None:
    status = look_at(leader_of_three())
    other = dataclasses.replace(status, id=7, electorate="")
    assert texts(status, other) == [
        ("id", f"7 from now on, {status.id} before"),
        ("electorate", "no electorate is agreed"),
    ]
