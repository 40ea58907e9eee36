"""The lease, and the changes of the electorate."""

import pytest

from hydra.protocol.electorate import Electorate
from hydra.protocol.leader_term import REMEMBERED, LeaderTerm
from hydra.protocol.times import Times

A, B, C, D, E = (f"{digit * 16}" for digit in "abcde")
THREE = Electorate(4, 1, frozenset({A, B, C}))


def leader_term(now: float = 100.0) -> LeaderTerm:
    return LeaderTerm(4, A, Times(), now, "0" * 32)


def test_a_leader_without_any_answer_has_no_lease_and_ends_in_time() -> None:
    term = leader_term()
    term.beat(100.0, THREE)
    assert (term.leased, term.lease_until) == (False, 108.0)


def test_a_majority_renews_the_lease_from_when_the_heartbeat_was_sent() -> None:
    term = leader_term()
    val = term.beat(102.0, THREE)
    term.beat(104.5, THREE)
    assert term.answered(val, B, None, THREE)
    assert (term.leased, term.lease_until) == (True, 110.0)


def test_answers_to_different_heartbeats_are_no_majority() -> None:
    five = Electorate(4, 1, frozenset({A, B, C, D, E}))
    term = leader_term()
    first, second = term.beat(100.0, five), term.beat(102.5, five)
    term.answered(first, B, None, five)
    term.answered(second, C, None, five)
    assert not term.leased
    term.answered(first, C, None, five)
    assert term.lease_until == 108.0
    assert term.leased


def test_a_heartbeat_of_a_member_without_a_vote_renews_nothing() -> None:
    term = leader_term()
    val = term.beat(100.0, THREE)
    for voter in (D, E, "#7"):
        term.answered(val, voter, None, THREE)
    assert not term.leased


def test_a_voter_alone_has_its_lease_at_once() -> None:
    term = leader_term()
    term.beat(101.0, Electorate(4, 1, frozenset({A})))
    assert (term.leased, term.lease_until) == (True, 109.0)


def test_an_answer_to_nothing_of_this_term_is_refused() -> None:
    term = leader_term()
    assert not term.answered("3.1", B, None, THREE)
    first = term.beat(100.0, THREE)
    for _ in range(REMEMBERED):
        term.beat(100.0, THREE)
    assert not term.answered(first, B, None, THREE)


def test_no_two_heartbeats_have_the_same_val() -> None:
    term = leader_term()
    assert len({term.beat(100.0, THREE) for _ in range(50)}) == 50


def agreed(term: LeaderTerm, electorate: Electorate, *voters: str) -> None:
    val = term.beat(100.0, electorate)
    for voter in voters:
        term.answered(val, voter, electorate.stamp, electorate)


def test_nothing_is_changed_before_a_majority_has_the_electorate_on_disk() -> None:
    term = leader_term()
    val = term.beat(100.0, THREE)
    term.answered(val, B, (3, 9), THREE)
    term.answered(val, C, (3, 9), THREE)
    term.answered(val, D, (3, 9), THREE)
    assert term.next_electorate(THREE, {B, C, D}) is None
    term.answered(val, C, THREE.stamp, THREE)
    assert term.next_electorate(THREE, {B, C, D}) == THREE.with_voter(D)


def test_a_newcomer_gets_a_vote_when_it_has_answered() -> None:
    term = leader_term()
    agreed(term, THREE, B)
    assert term.next_electorate(THREE, {B, C, D}) is None
    agreed(term, THREE, D)
    assert term.next_electorate(THREE, {B, C, D}) == THREE.with_voter(D)


@pytest.mark.parametrize(
    ("voters", "present", "expected"),
    [
        ({A, B, C}, {B}, None),
        ({A, B, C, D}, {B, C}, D),
        ({A, B, C, D, E}, {B, C, D}, None),
        ({A, B, C, D, E}, {B, C}, D),
        ({A, B, C}, {B, C}, None),
    ],
    ids=["one of three stays", "one of four goes", "one of five stays", "two of five go", "no voter is absent"],
)
def test_the_absent_lose_their_vote_when_that_makes_a_majority_smaller(
    voters: set[str], present: set[str], expected: str | None
) -> None:
    electorate = Electorate(4, 1, frozenset(voters))
    term = leader_term()
    agreed(term, electorate, *present)
    changed = term.next_electorate(electorate, present)
    assert changed == (None if expected is None else electorate.without_voter(expected))


def test_a_leader_never_takes_its_own_vote() -> None:
    electorate = Electorate(4, 1, frozenset({A, B}))
    term = leader_term()
    agreed(term, electorate, B)
    assert term.next_electorate(electorate, {B}) is None
