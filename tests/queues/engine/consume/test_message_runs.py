"""Messages in runs are those of a plain deque and a plain dictionary, whatever is taken out and in which order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.consume.memory import OVERHEAD, Memory
from queues.engine.consume.message_runs import PrefetchedMessages, SharedPayloads, Unacked, UnackedMessages
from queues.engine.message import Detail, Message

DETAIL = Detail(key="k")


@given(st.lists(st.tuples(st.sampled_from(["run", "shared", "some", "take", "clear"]), st.integers(1, 6)), max_size=30))
def test_prefetched_messages_are_in_order_whatever_way_they_came(steps: list[tuple[str, int]]) -> None:
    prefetched, plain, next_id, memory = PrefetchedMessages(), deque[Message](), 1, Memory(1000)
    for step, count in steps:
        ids = range(next_id, next_id + count)
        if step == "run":
            bodies = [b"%d" % id for id in ids]
            prefetched.add_run(ids, bodies, DETAIL)
            plain += [(id, body, 0, DETAIL) for id, body in zip(ids, bodies, strict=True)]
            bodies.clear()  # it is the caller's
        elif step == "shared":
            prefetched.add_run(ids, SharedPayloads([b"%d" % id for id in ids], 2, memory), DETAIL)
            plain += [(id, b"%d" % id, 0, DETAIL) for id in ids]
        elif step == "some":
            messages: list[Message] = [(id, b"%d" % id, id % 2, DETAIL if id % 3 else None) for id in ids]
            prefetched.extend(iter(messages))
            plain += messages
        elif step == "take" and plain:
            alike = {(message[2], message[3]) for message in prefetched.first_run}
            taken = list(prefetched.take(count))
            assert 0 < len(taken) <= count
            assert taken == [plain.popleft() for _ in taken]
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
    prefetched.clear()
    assert memory.used == 0


steps_of_deliveries = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 8)),
        st.tuples(st.sampled_from(["release", "again"]), st.integers(0, 40)),
        st.tuples(st.sampled_from(["range", "runs", "expire"]), st.tuples(st.integers(0, 40), st.integers(0, 12))),
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
            case "runs", (int(start), int(count)):
                runs, left = unacked.release_runs(range(start, start + count))
                taken = range(start, start + count - len(left))
                assert [*taken, *left] == [*range(start, start + count)]
                assert [(id, time) for ids, time in runs for id in ids] == [plain[tag][::2] for tag in taken]
                assert all(len(ids) for ids, _ in runs)
                for tag in taken:
                    del plain[tag]
            case "expire" | "some", (int(), int()) | list():
                wanted = range(what[0], sum(what)) if isinstance(what, tuple) else what
                assert sorted(unacked.among(wanted)) == sorted(tag for tag in wanted if tag in plain)
        assert dict(unacked) == plain
        assert len(unacked) == len(plain)
        assert all((tag in unacked) == (tag in plain) for tag in range(45))
    unacked.clear()
    assert (len(unacked), list(unacked)) == (0, [])


def test_payloads_of_several_queues_count_once_until_the_last_one_has_delivered_them() -> None:
    memory = Memory(1 << 20)
    queues = [PrefetchedMessages() for _ in range(3)]
    shared = SharedPayloads([b"x" * 100] * 10, len(queues), memory)
    size = 2 * 1000 + (10 + len(queues)) * OVERHEAD
    for n, queue in enumerate(queues):
        queue.add_run(range(100 * n, 100 * n + 10), shared, None)
    del shared
    first = [queue.take(4) for queue in queues]
    assert first[0].payloads is first[1].payloads is first[2].payloads
    assert [one.size for one in first] == [400] * 3
    for queue in queues:
        assert memory.used == size
        assert [message[1] for message in queue.take(10)] == [b"x" * 100] * 6
    assert memory.used == 0


def test_acknowledged_tags_are_runs_as_they_were_delivered() -> None:
    unacked = UnackedMessages()
    unacked.add_run(range(1, 11), range(101, 111), 0, 1.0, None)
    unacked.add_run(range(11, 21), range(201, 211), 0, 2.0, None)
    assert unacked.release_runs([1, 2]) == ([], [1, 2])
    assert unacked.release_runs(range(1, 5)) == ([(range(101, 105), 1.0)], range(5, 5))
    assert unacked.release_runs(range(5, 14)) == ([(range(105, 111), 1.0), (range(201, 204), 2.0)], range(14, 14))
    assert unacked.release_runs(range(15, 18)) == ([], range(15, 18))
    assert len(unacked) == 7
