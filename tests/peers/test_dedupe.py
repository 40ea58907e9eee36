"""Ids that have been consumed lately."""

import pytest

from peers.dedupe import Dedupe


def test_an_id_is_seen_once_it_was_added() -> None:
    dedupe = Dedupe(2)
    assert not dedupe.seen("a")
    dedupe.add("a")
    assert dedupe.seen("a")


def test_no_more_than_its_size_is_remembered() -> None:
    dedupe = Dedupe(3)
    for number in range(100):
        dedupe.add(str(number))
        dedupe.add(str(number))
    assert len(dedupe) == 3
    assert [number for number in range(100) if dedupe.seen(str(number))] == [97, 98, 99]


def test_the_one_used_longest_ago_is_forgotten() -> None:
    dedupe = Dedupe(2)
    dedupe.add("a")
    dedupe.add("b")
    assert dedupe.seen("a")
    dedupe.add("c")
    assert [dedupe.seen(id) for id in "abc"] == [True, False, True]


def test_by_default_ten_thousand_are_remembered() -> None:
    dedupe = Dedupe()
    for number in range(10_001):
        dedupe.add(str(number))
    assert (len(dedupe), dedupe.seen("0"), dedupe.seen("1")) == (10_000, False, True)


@pytest.mark.parametrize("size", [0, -1])
def test_a_cache_without_room_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"^a dedupe cache holds one id or more, not {size}$"):
        Dedupe(size)
