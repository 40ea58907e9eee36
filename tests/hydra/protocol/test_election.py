"""Elections: who is pledged to and when, who is voted for, who leads."""

from random import Random

import pytest

from hydra.protocol.effects import LeaveIrc, Persist, StoredNode, Transmit
from hydra.protocol.farewell import digest
from hydra.protocol.messages import Pledge
from hydra.protocol.roles import Role
from hydra.protocol.times import Times
from tests.hydra.protocol.driver import OTHERS, VOTER, Driven, electorate, leader_of_three, neighbour, voter_of_three

B, C, D, E = OTHERS
OURS = f"3.5:{VOTER},{B},{C}"


def joined() -> Driven:
    driven = voter_of_three()
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    return driven


def nominate(driven: Driven, term: int = 4, electorate: str = OURS) -> list[str]:
    return driven.hear(1, f"@voter={B};electorate={electorate} NOMINATE {term} 11")


def pledges(driven: Driven, link: int = 1) -> list[str]:
    return [line.partition(" ")[2] for line in driven.sent[link] if "PLEDGE" in line]


def test_the_first_nominee_of_a_term_is_pledged_to_and_no_other() -> None:
    driven = joined()
    assert nominate(driven) == [f"@voter={VOTER} PLEDGE 4 11 {driven.id}"]
    assert driven.sent[2] == [f"@voter={B};electorate={OURS} NOMINATE 4 11", f"@voter={VOTER} PLEDGE 4 11 {driven.id}"]
    driven.clear()
    driven.hear(2, f"@voter={C};electorate={OURS} NOMINATE 4 12")
    assert pledges(driven) == pledges(driven, 2) == []


def test_a_pledge_is_on_disk_before_it_is_said() -> None:
    driven = voter_of_three(disk=False)
    neighbour(driven, 1, 11, B)
    assert nominate(driven) == []
    (write,) = driven.writes
    assert (write.stored.term, write.stored.pledge) == (4, 11)
    driven.answer_disk()
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


@pytest.mark.parametrize(("term", "expected"), [(3, []), (4, []), (5, ["PLEDGE 5 11 {id}"])])
def test_after_a_restart_no_other_node_is_pledged_to_in_the_same_term(term: int, expected: list[str]) -> None:
    driven = Driven(StoredNode(VOTER, 4, 99, electorate(VOTER, B, C)))
    driven.node.core.promise_until = driven.now
    neighbour(driven, 1, 11, B)
    nominate(driven, term)
    assert pledges(driven) == [line.format(id=driven.id) for line in expected]


def test_after_a_restart_there_is_no_pledge_for_max_ping() -> None:
    driven = Driven(StoredNode(VOTER, 3, None, electorate(VOTER, B, C)))
    neighbour(driven, 1, 11, B)
    nominate(driven)
    driven.wait(9.9)
    assert pledges(driven) == []
    driven.wait(0.2)
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


def following(**times: bool) -> Driven:
    """In term 3, under node 12 on link 2; node 11 is on link 1."""
    driven = voter_of_three(times=Times(**times))
    neighbour(driven, 1, 11, B)
    neighbour(driven, 2, 12, C)
    driven.hear(2, f"@voter={C};next=0 PING 3 3.1 12")
    assert driven.node.role is Role.FOLLOWING
    driven.clear()
    return driven


def test_a_pledge_waits_until_the_leaders_lease_is_over() -> None:
    driven = following()
    driven.wait(5)
    nominate(driven)
    driven.wait(4.9)
    assert pledges(driven) == []
    driven.wait(0.2)
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


def test_a_pledge_does_not_wait_if_the_setting_says_so() -> None:
    driven = following(wait_for_lease=False)
    nominate(driven)
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


def test_a_pledge_does_not_wait_when_the_leader_has_pledged_itself() -> None:
    driven = following()
    nominate(driven)
    driven.hear(2, f"@voter={C} PLEDGE 4 11 12")
    assert f"PLEDGE 4 11 {driven.id}" in pledges(driven)


def test_a_leader_that_leaves_need_not_be_waited_for() -> None:
    driven = following()
    driven.hear(2, "DROP 12 the leader leaves")
    assert driven.node.leader is None
    nominate(driven)
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


def test_a_leader_that_proves_that_it_leaves_need_not_be_waited_for() -> None:
    driven = announced()
    proof = "5" * 32
    driven.hear(1, f"@proof={proof} DROP 12 the leader leaves")
    assert driven.node.leader is None
    nominate(driven)
    assert pledges(driven) == [f"PLEDGE 4 11 {driven.id}"]


@pytest.mark.parametrize(
    "drop", ["DROP 12 too slow", "DROP 12 the leader leaves", f"@proof={'6' * 32} DROP 12 it leaves"]
)
def test_a_member_that_says_that_the_leader_is_dropped_is_not_believed_while_the_leader_is_heard(drop: str) -> None:
    driven = announced()
    assert driven.hear(1, drop) == []
    assert driven.sent[2] == []
    assert (driven.node.leader, driven.node.role) == (12, Role.FOLLOWING)
    assert 2 not in driven.closed
    nominate(driven)
    assert pledges(driven) == []
    driven.wait(10.1)
    driven.hear(1, drop)
    assert 12 not in driven.node.members


def test_the_first_word_of_how_a_leader_will_leave_is_the_one_that_counts() -> None:
    driven = announced()
    driven.hear(1, f"@voter={C};next=0;leave={digest('6' * 32)} PING 3 3.2 12", f"@proof={'6' * 32} DROP 12 it leaves")
    assert driven.node.leader == 12


def announced() -> Driven:
    """It follows 12, which has said how it will leave."""
    driven = joined()
    driven.hear(2, f"@voter={C};next=0;leave={digest('5' * 32)} PING 3 3.1 12")
    driven.clear()
    return driven


def test_an_outdated_electorate_gets_no_pledge_but_a_newer_one_is_taken_over() -> None:
    driven = joined()
    nominate(driven, 4, f"3.4:{VOTER},{B}")
    assert pledges(driven) == []
    assert driven.node.term == 4
    newer = f"4.1:{B},{C},{D}"
    nominate(driven, 5, newer)
    assert str(driven.node.electorate) == newer
    assert driven.stored.electorate == driven.node.electorate
    assert pledges(driven) == [f"PLEDGE 5 11 {driven.id}"]


def test_a_nominee_outside_its_own_electorate_gets_no_pledge() -> None:
    driven = joined()
    nominate(driven, 4, f"3.6:{VOTER},{C}")
    assert pledges(driven) == []


def test_a_lower_term_and_a_term_far_ahead_are_ignored() -> None:
    driven = joined()
    for term in (2, 3 + 100_001, 2**63 - 1):
        assert nominate(driven, term) == []
    assert driven.node.term == 3
    assert driven.sent[2] == []


def stand(driven: Driven) -> None:
    driven.wait(driven.node.election.ends - driven.now + 1e-3)


def test_without_a_leader_a_node_stands_after_a_random_time() -> None:
    ends = set()
    for seed in range(20):
        driven = Driven(StoredNode(VOTER, 3, None, electorate(VOTER, B, C)), rng=Random(seed))
        ends.add(driven.node.election.ends - driven.now)
    assert len(ends) == 20
    assert all(5 <= each <= 15 for each in ends)
    driven = joined()
    stand(driven)
    assert driven.sent[1] == [
        f"@voter={VOTER};electorate={OURS} NOMINATE 4 {driven.id}",
        f"@voter={VOTER} PLEDGE 4 {driven.id} {driven.id}",
    ]


def test_a_nominee_repeats_itself_and_after_max_vote_stands_again() -> None:
    driven = joined()
    stand(driven)
    driven.clear()
    driven.wait(1.3)
    assert [line.split(" ")[1] for line in driven.sent[1]] == ["NOMINATE", "PLEDGE"]
    driven.hear(1, f"@voter={C} PLEDGE 4 12 12")
    stand(driven)
    assert (driven.node.term, driven.node.role) == (5, Role.NOMINEE)


def test_an_election_is_given_max_vote_before_a_nominee_stands_again() -> None:
    driven = joined()
    stand(driven)
    driven.hear(1, f"@voter={C} PLEDGE 4 12 12")
    driven.wait(4.9)
    assert driven.node.term == 4
    driven.wait(10.2)
    assert driven.node.term == 5


def test_a_nominee_without_answers_goes_on_in_the_same_term() -> None:
    driven = joined()
    stand(driven)
    driven.wait(100)
    assert (driven.node.term, driven.node.role) == (4, Role.NOMINEE)
    driven.clear()
    driven.wait(2)
    assert f"PLEDGE 4 {driven.id} {driven.id}" in pledges(driven)
    driven.hear(2, f"@voter={C};next=0 PING 4 4.1 12")
    assert driven.node.leader == 12


def test_a_nominee_leads_with_the_votes_of_a_majority_and_not_with_fewer() -> None:
    driven = joined()
    stand(driven)
    own = driven.id
    driven.hear(1, f"PLEDGE 4 {own} 11")
    assert not any("CALL" in line for line in driven.sent[2])
    driven.clear()
    driven.hear(1, f"@voter={C} PLEDGE 4 {own} 12")
    assert driven.sent[1] == ["CALL 4", f"@voter={VOTER} ELECT 4 {own} {own}"]
    driven.hear(1, "ELECT 4 99 11")
    driven.hear(2, f"@voter={D} ELECT 4 {own} 12", f"ELECT 4 {own} 13")
    assert not any(" PING " in line for line in driven.sent[2])
    driven.hear(1, f"@voter={B} ELECT 4 {own} 11")
    assert driven.node.leader == own
    assert driven.sent[2][-1].endswith(f" PING 4 4.1.{VOTER} {own}")
    assert f";next=0;electorate=4.5:{VOTER},{B},{C};leave=" in driven.sent[2][-1]


def test_one_voter_under_two_ids_is_one_vote() -> None:
    driven = Driven(StoredNode(VOTER, 3, None, electorate(VOTER, B, C, D, E)))
    neighbour(driven, 1, 11, B)
    driven.wait(10.1)
    driven.node.election.ends = driven.now
    driven.wait(0.1)
    own = driven.id
    driven.hear(1, f"@voter={B} ELECT 4 {own} 11", f"@voter={B} ELECT 4 {own} 21", f"@voter={B} ELECT 4 {own} 31")
    assert driven.node.role is Role.NOMINEE


def test_a_leader_resigns_for_a_later_nomination_and_leaves_irc_before_it_pledges() -> None:
    driven = leader_of_three()
    assert driven.on_irc
    driven.log.clear()
    driven.hear(1, f"@voter={B};electorate=4.5:{VOTER},{B},{C} NOMINATE 5 11")
    kinds = [type(effect) for effect in driven.log]
    says = [at for at, each in enumerate(driven.log) if isinstance(each, Transmit) and isinstance(each.message, Pledge)]
    assert kinds.index(LeaveIrc) < kinds.index(Persist) < says[0]
    assert driven.node.role is Role.WAITING


def test_a_call_is_answered_with_the_pledged_vote() -> None:
    driven = joined()
    nominate(driven)
    driven.clear()
    assert driven.hear(1, "CALL 4") == [f"@voter={VOTER} ELECT 4 11 {driven.id}"]
    assert driven.sent[2] == ["CALL 4", f"@voter={VOTER} ELECT 4 11 {driven.id}"]
    assert driven.hear(1, "CALL 3") == []


def test_a_node_without_neighbours_does_not_use_up_terms() -> None:
    driven = voter_of_three()
    driven.wait(300)
    assert (driven.node.term, driven.node.role) == (3, Role.WAITING)


def test_a_newcomer_without_an_electorate_never_stands() -> None:
    driven = Driven(targets=["x"])
    driven.connect(1, target="x")
    driven.hear(1, f"@voter={B} MEET {driven.id} 11", f"WELCOME {driven.id}", f"@voter={B} HELLO {driven.id} 11")
    assert driven.node.role is Role.WAITING
    driven.wait(120)
    assert driven.node.term == 0


def test_a_welcomed_node_without_further_messages_does_not_become_a_network_of_its_own() -> None:
    driven = Driven(targets=["x"])
    driven.connect(1, target="x")
    driven.hear(1, f"WELCOME {driven.id}")
    assert driven.node.role is Role.WAITING
    driven.wait(120)
    assert driven.node.term == 0


def test_a_node_under_a_leader_that_knows_electorates_does_not_elect_without_one() -> None:
    driven = Driven(targets=["x"])
    driven.connect(1, target="x")
    driven.hear(1, f"MEET {driven.id} 777", f"WELCOME {driven.id}", f"PING 3 3.1.{B} 777")
    assert driven.node.role is Role.FOLLOWING
    driven.wait(120)
    assert driven.node.term == 3


def test_a_vote_for_a_nominee_without_an_electorate_bears_no_key() -> None:
    driven = joined()
    driven.connect(3)
    driven.hear(1, f"@voter={B};next=0 PING 4 4.1 11")
    driven.hear(3, "KNOCK 777 probe")
    driven.hear(1, f"@voter={B} MEET 777 11")
    driven.hear(2, f"@voter={C} MEET 777 12")
    driven.clear()
    driven.wait(12)
    driven.hear(3, "NOMINATE 9 777")
    assert driven.sent[1][-1] == f"PLEDGE 9 777 {driven.id}"
