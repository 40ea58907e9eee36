"""Whoever has a message of an audited queue is known until it leaves, however it came and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queues.engine.settle.recipients import Recipients

#: Deliveries: ids of messages that nobody has, together as a range or as a list, and a key.
COUNTS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3), st.booleans(), st.sampled_from([None, 1, 2])))


@given(COUNTS, st.data())
def test_each_message_has_the_key_that_it_was_delivered_to(
    counts: list[tuple[int, int, bool, int | None]], data: st.DataObject
) -> None:
    known, model, first = Recipients(), dict[int, int | None](), 0
    for count, gap, together, key in counts:
        ids = range(first + gap, first + gap + count)
        first = ids.stop
        known.add(ids if together else [*ids], key)
        model |= dict.fromkeys(ids, key)
        start = data.draw(st.integers(0, first))
        some: range | list[int] = range(start, start + data.draw(st.integers(1, 9)))
        if data.draw(st.booleans()):
            some = data.draw(st.permutations(some))
        assert known.take(some) == [model.pop(id, None) for id in some]
        assert len(known) == len(model)
    assert known.take(range(first)) == [model.get(id) for id in range(first)]
    assert len(known) == 0


def test_a_run_that_comes_before_others_is_found() -> None:
    known = Recipients()
    for first, key in ((20, 1), (0, 2), (10, None)):
        known.add(range(first, first + 5), key)
    assert [known.together(range(first + 1, first + 5), 2) for first in (0, 10, 20)] == [True, False, False]
    assert known.together(range(10, 15), None)
    assert not known.together(range(12, 17), None)  # it has more
    assert not known.together(range(5, 9), None)
    assert known.take([21, 0, 12, 7]) == [1, 2, None, None]
    assert known.take(range(20, 25)) == [1, None, 1, 1, 1]


def test_nothing_is_known_after_the_end_of_all_leases() -> None:
    known = Recipients()
    known.add(range(5), 1)
    known.add([7], 2)
    known.clear()
    assert (known.take(range(9)), len(known)) == ([None] * 9, 0)
