"""Values of ranges of numbers."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from queues.intervals import IntervalMap

#: Gaps before and lengths of ranges, from 0 on.
RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8)
CUTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4)), max_size=8)


def test_a_number_between_two_ranges_has_no_value() -> None:
    found: IntervalMap[str] = IntervalMap()
    found.add(range(10, 20), "b")
    found.add(range(1, 3), "a")
    assert [found.find(number) for number in (0, 2, 3, 10, 20)] == [
        None, (range(1, 3), "a"), None, (range(10, 20), "b"), None,
    ]  # fmt: skip


@given(RANGES, st.randoms(use_true_random=False), CUTS)
def test_it_says_what_a_dictionary_of_all_numbers_says(
    ranges: list[tuple[int, int]], rng: Random, cuts: list[tuple[int, int]]
) -> None:
    intervals: IntervalMap[int] = IntervalMap()
    expected: dict[int, int] = {}
    at, added = 0, []
    for gap, length in ranges:
        added.append(range(at + gap, at + gap + length))
        at = added[-1].stop
    rng.shuffle(added)
    for value, numbers in enumerate(added):
        intervals.add(numbers, value)
        expected |= dict.fromkeys(numbers, value)
    for start, length in cuts:
        if (entry := intervals.find(start)) is not None:
            numbers = range(start, min(start + length, entry[0].stop))
            intervals.cut(numbers)
            for number in numbers:
                del expected[number]
    found = {number: intervals.find(number) for number in range(70)}
    assert {number: entry[1] for number, entry in found.items() if entry is not None} == expected
    assert [number for numbers, _ in intervals for number in numbers] == sorted(expected)
