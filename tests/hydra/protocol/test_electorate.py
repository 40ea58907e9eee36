"""Electorates: majorities, what follows what, and how they are spelled."""

from itertools import combinations

import pytest

from hydra.protocol.electorate import MAX_VOTERS, NO_STAMP, Electorate, parse_electorate

KEYS = [f"{number:016x}" for number in range(8)]


def of(*voters: str) -> Electorate:
    return Electorate(3, 5, frozenset(voters))


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half(voters: int, quorum: int) -> None:
    electorate = of(*KEYS[:voters])
    assert electorate.quorum == quorum
    assert electorate.agrees(KEYS[:quorum])
    assert not electorate.agrees(KEYS[: quorum - 1])


def test_members_without_a_vote_do_not_count() -> None:
    assert not of(*KEYS[:3]).agrees([KEYS[0], *KEYS[3:]])


def test_any_two_majorities_of_neighbouring_electorates_have_a_voter_in_common() -> None:
    for size in range(1, 7):
        old = of(*KEYS[:size])
        new = old.with_voter(KEYS[size])
        for some in combinations(old.voters, old.quorum):
            for others in combinations(new.voters, new.quorum):
                assert set(some) & set(others)


def test_a_change_is_the_next_version() -> None:
    electorate = of(*KEYS[:2])
    assert electorate.with_voter(KEYS[2]) == Electorate(3, 6, frozenset(KEYS[:3]))
    assert electorate.without_voter(KEYS[1]) == Electorate(3, 6, frozenset(KEYS[:1]))


def test_a_later_term_outranks_any_version() -> None:
    electorate = of(KEYS[0])
    assert NO_STAMP < electorate.stamp < electorate.with_voter(KEYS[1]).stamp < electorate.confirmed(4).stamp


def test_an_electorate_is_read_as_it_was_written() -> None:
    electorate = of(*KEYS[:3])
    assert str(electorate) == "3.5:0000000000000000,0000000000000001,0000000000000002"
    assert parse_electorate(str(electorate)) == electorate


@pytest.mark.parametrize(
    "text",
    ["", "3.5", "3.5:", "3:" + KEYS[0], "3.5:" + KEYS[0] + ",", "3.5:" + KEYS[0].upper() + "A", "3.5:00",
     f"9223372036854775808.1:{KEYS[0]}", "3.5:" + ",".join(f"{n:016x}" for n in range(MAX_VOTERS + 1))],
)  # fmt: skip
def test_an_invalid_electorate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="electorate"):
        parse_electorate(text)
