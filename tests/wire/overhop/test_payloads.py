"""Names of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from wire.overhop.payloads import AllJobNames, JobNames

UUIDS = [str(UUID(int=n << 96 | 7)) for n in (1, 2)]
STARTS = st.integers(4000, 4200)
IDS = st.one_of(
    st.builds(lambda start, size, step: range(start, start + size * step, step), STARTS, st.integers(1, 20),
              st.sampled_from([1, 1, 1, 2])),
    st.lists(STARTS, min_size=1, max_size=4),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(UUIDS), IDS), max_size=12))
def test_names_that_are_kept_are_those_that_would_be_made(asked: list[tuple[str, Sequence[int]]]) -> None:
    names, given_out = AllJobNames(), list[tuple[list[bytes], list[bytes]]]()
    for uuid, ids in asked:
        expected = [JobNames("q", uuid).jid(id).encode() for id in ids]
        given_out.append((names.jids(names.of("q", uuid), ids), expected))
        assert all(made == expected for made, expected in given_out)  # earlier lists stay as they were


def test_names_of_a_pushed_batch_are_not_made_again() -> None:
    names = AllJobNames()
    queue = names.of("q", UUIDS[0])
    pushed = [*names.jids(queue, range(100, 200)), *names.jids(queue, range(200, 300))]
    answered = names.jids(queue, range(150, 250))
    assert all(one is other for one, other in zip(answered, pushed[50:150], strict=True))
    assert names.of("q", UUIDS[0]) is queue
    assert names.of("other", UUIDS[0]) is not queue
