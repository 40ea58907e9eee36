"""A node that knows no IRC server leads only while no other node could."""

from hydra.protocol.roles import Role
from tests.hydra.protocol.driver import OTHERS, Driven, answer, last_val, leader_of_three, neighbour, voter_of_three

B, C, _, _ = OTHERS


def pong(driven: Driven, link: int, irc: int) -> None:
    """Node 11 or 12 answers, and says whether it could be on IRC."""
    voter = OTHERS[link - 1]
    driven.hear(link, f"@voter={voter};stamp=4.5;irc={irc} PONG {last_val(driven)} {10 + link} 0 n{link}")


def test_a_leader_without_irc_makes_way_for_a_voter_that_could_be_on_irc() -> None:
    driven = leader_of_three(irc=False)
    driven.wait(2.5)
    pong(driven, 1, 0)
    assert driven.node.role is Role.LEADING
    pong(driven, 2, 1)
    assert (driven.node.role, driven.node.leader) == (Role.WAITING, None)
    assert 12 in driven.node.members


def test_a_leader_with_irc_makes_way_for_no_other() -> None:
    driven = leader_of_three()
    driven.wait(2.5)
    pong(driven, 2, 1)
    assert driven.node.role is Role.LEADING


def test_one_without_a_vote_is_not_made_way_for() -> None:
    driven = leader_of_three(irc=False)
    driven.connect(3, origin="10.0.0.3")
    driven.hear(3, "KNOCK 13 probe")
    for link in (1, 2):
        driven.hear(link, f"MEET 13 {10 + link}")
    assert 13 in driven.node.members
    driven.node.members.get(13).irc = True  # type: ignore[union-attr]
    answer(driven)
    assert driven.node.role is Role.LEADING


def test_a_node_without_irc_stands_for_election_long_after_nodes_with_irc() -> None:
    driven = voter_of_three(irc=False)
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.hear(1, f"@voter={B};next=0 PING 7 7.1 11")
    driven.hear(2, f"@voter={C};stamp=3.5;irc=1 PONG 7.1 12 0 n2")
    driven.hear(1, "DROP 11 the leader leaves")
    assert driven.node.role is Role.WAITING
    assert driven.node.election.ends - driven.now >= 2 * 15
    driven.wait(2 * 15)
    assert driven.node.role is Role.WAITING


def test_without_any_irc_server_a_node_leads_all_the_same() -> None:
    driven = voter_of_three(irc=False)
    neighbour(driven, 1, 11, B)
    driven.wait(20)
    assert driven.node.role is Role.NOMINEE


def test_a_follower_says_whether_it_could_be_on_irc() -> None:
    for irc in (True, False):
        driven = voter_of_three(irc=irc)
        neighbour(driven, 1, 11, B)
        (line,) = driven.hear(1, f"@voter={B};next=0 PING 7 7.1 11")
        assert f";irc={int(irc)} PONG " in line
