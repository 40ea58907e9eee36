"""The lines of each term, in order and without gaps."""

from hypothesis import given
from hypothesis import strategies as st

from hydra.protocol.recvlog import ANSWER, EARLY, KEPT, TERMS, RecvLog


def log(position: tuple[int, int] | None = None) -> RecvLog:
    made = RecvLog(position)
    made.continuing = True
    return made


def test_lines_are_handed_on_in_order() -> None:
    lines = log()
    lines.begin(3, 0)
    assert lines.of(3).take(1, "b") == []
    assert lines.missing(3) == 0
    assert lines.of(3).take(0, "a") == [(0, "a"), (1, "b")]
    assert lines.of(3).take(1, "b") == []
    assert lines.missing(3) is None


@given(st.permutations(range(8)), st.lists(st.integers(0, 7)))
def test_in_whatever_order_and_however_often_they_come(order: list[int], again: list[int]) -> None:
    lines = log()
    lines.begin(3, 0)
    found = [line for idx in [*again, *order, *again] for line in lines.of(3).take(idx, str(idx))]
    assert found == [(idx, str(idx)) for idx in range(8)]


def test_a_new_node_begins_at_the_current_index() -> None:
    lines = RecvLog()
    assert lines.of(3).take(6, "g") == []
    assert lines.of(3).take(5, "f") == []
    assert lines.of(3).take(2, "c") == []
    assert lines.begin(3, 5) == [(5, "f"), (6, "g")]
    assert lines.begin(4, 5) == []
    assert lines.missing(4) == 0


def test_a_returning_node_continues_at_its_last_index() -> None:
    lines = RecvLog(position=(3, 6))
    lines.begin(3, 9)
    assert lines.missing(3) == 7
    later = RecvLog(position=(3, 6))
    later.begin(4, 2)
    assert later.missing(4) == 0


def test_a_neighbour_is_given_what_it_misses() -> None:
    lines = log()
    lines.lead(3)
    for number in range(ANSWER + 5):
        assert lines.append(3, str(number)) == number
    found, first = lines.answer(3, 2)
    assert (found[0], len(found), first) == ((2, "2"), ANSWER, None)
    assert lines.answer(3, ANSWER + 5) == ([], None)
    assert lines.answer(2, 0) == ([], None)


def test_only_the_last_lines_and_terms_are_kept() -> None:
    lines = log()
    lines.lead(3)
    for number in range(KEPT + 10):
        lines.append(3, str(number))
    found, first = lines.answer(3, 4)
    assert (found[0][0], first) == (10, 10)
    for term in range(4, 4 + TERMS):
        lines.begin(term, 0)
    assert not lines.knows(3)
    assert lines.knows(4)


def test_lines_far_ahead_do_not_fill_the_memory() -> None:
    lines = log()
    lines.begin(3, 0)
    for idx in range(1, EARLY + 100):
        lines.of(3).take(idx, "x")
    assert len(lines.of(3).early) == EARLY
    assert len(lines.of(3).take(0, "x")) == EARLY + 1
    assert lines.missing(3) == EARLY + 1


def test_an_entry_that_no_neighbour_has_is_given_up() -> None:
    lines = log()
    lines.begin(3, 9)
    lines.of(3).take(6, "g")
    assert lines.refused(3, link=1, first=6, links=2) is None
    assert lines.refused(3, link=1, first=6, links=2) is None
    assert lines.refused(3, link=2, first=5, links=2) == (0, 4)
    assert lines.of(3).take(5, "f") == [(5, "f"), (6, "g")]


def test_an_entry_that_a_neighbour_has_is_not_given_up() -> None:
    lines = log()
    lines.begin(3, 9)
    lines.refused(3, link=1, first=6, links=2)
    assert lines.of(3).take(0, "a") == [(0, "a")]
    assert lines.refused(3, link=2, first=5, links=2) is None
    assert lines.refused(3, link=2, first=1, links=2) is None


def test_a_neighbour_is_told_of_a_gap_that_was_given_up() -> None:
    lines = log()
    lines.begin(3, 9)
    lines.of(3).take(0, "a")
    assert lines.refused(3, link=1, first=5, links=1) == (1, 4)
    lines.of(3).take(5, "f")
    assert lines.answer(3, 0) == ([(5, "f")], 5)
