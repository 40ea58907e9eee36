"""Messages in runs are those of a plain deque and a plain dictionary, whatever is taken out and in which order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.consume.message_runs import PrefetchedMessages, Unacked, UnackedMessages
from queues.engine.message import Detail, Message

DETAIL = Detail(key="k")


@given(st.lists(st.tuples(st.sampled_from(["run", "some", "take", "clear"]), st.integers(1, 6)), max_size=30))
def test_prefetched_messages_are_in_order_whatever_way_they_came(steps: list[tuple[str, int]]) -> None:
    prefetched, plain, next_id = PrefetchedMessages(), deque[Message](), 1
    for step, count in steps:
        ids = range(next_id, next_id + count)
        if step == "run":
            bodies = [b"%d" % id for id in ids]
            prefetched.add_run(ids, bodies, DETAIL)
            plain += [(id, body, 0, DETAIL) for id, body in zip(ids, bodies, strict=True)]
            bodies.clear()  # it is the caller's
        elif step == "some":
            messages: list[Message] = [(id, b"%d" % id, id % 2, DETAIL if id % 3 else None) for id in ids]
            prefetched.extend(iter(messages))
            plain += messages
        elif step == "take" and plain:
            first = prefetched.first_run
            alike = {(message[2], message[3]) for message in first}
            taken = prefetched.take(count)
            assert 0 < len(taken) <= count
            assert list(taken) == [plain.popleft() for _ in range(len(taken))]
            assert len(alike) == 1
        elif step == "clear":
            prefetched.clear()
            plain.clear()
        next_id += count
        assert (len(prefetched), list(prefetched), bool(prefetched)) == (len(plain), list(plain), bool(plain))
        assert [prefetched[n] for n in range(len(plain))] == list(plain)
        if plain:
            assert (prefetched[-1], prefetched[0]) == (plain[-1], plain[0])
    with pytest.raises(IndexError):
        prefetched[len(plain)]


steps_of_deliveries = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["release", "again"]), st.integers(0, 40)),
        st.tuples(st.sampled_from(["range", "expire"]), st.tuples(st.integers(0, 40), st.integers(0, 12))),
        st.tuples(st.sampled_from(["tags", "some"]), st.lists(st.integers(0, 40), max_size=12)),
    ),
    max_size=40,
)


@given(steps_of_deliveries)
def test_deliveries_are_released_once_whatever_the_order(steps: list[tuple[str, object]]) -> None:
    unacked, plain, next_tag, time = UnackedMessages(), dict[int, Unacked](), 1, 0.0
    for step, what in steps:
        time += 1
        match step, what:
            case "deliver", int(count):
                tags = range(next_tag, next_tag + count)
                next_tag += count
                ids = [tag * 10 for tag in tags]
                unacked.add_run(tags, ids, 0, time, None)
                plain.update((tag, (tag * 10, 0, time, None)) for tag in tags)
            case "release", int(tag):
                assert unacked.release(tag) == plain.pop(tag, None)
            case "again", int(tag) if 0 < tag < next_tag and tag not in plain:
                unacked.add(tag, (tag * 10 + 1, 1, time, DETAIL))
                plain[tag] = (tag * 10 + 1, 1, time, DETAIL)
            case "range" | "tags", (int(), int()) | list():
                wanted = range(what[0], sum(what)) if isinstance(what, tuple) else what
                released, unknown = list[Unacked](), list[int]()
                for tag in wanted:
                    if (entry := plain.pop(tag, None)) is None:
                        unknown.append(tag)
                    else:
                        released.append(entry)
                expected = [entry[0] for entry in released], [entry[2] for entry in released], unknown
                assert unacked.release_many(wanted) == expected
            case "expire" | "some", (int(), int()) | list():
                wanted = range(what[0], sum(what)) if isinstance(what, tuple) else what
                assert sorted(unacked.among(wanted)) == sorted(tag for tag in wanted if tag in plain)
        assert dict(unacked) == plain
        assert len(unacked) == len(plain)
        assert all((tag in unacked) == (tag in plain) for tag in range(45))
    unacked.clear()
    assert (len(unacked), list(unacked)) == (0, [])
