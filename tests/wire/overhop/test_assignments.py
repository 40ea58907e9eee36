"""The jobs of a worker, beside a dictionary of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wire.overhop.assignments import Assignment, Assignments, Pushed
from wire.overhop.codec.columns import AlikeTexts


@dataclass(eq=False)
class Subscription:
    """A consumer."""

    queue: str
    buffer: Any = None


CONSUMERS: list[Any] = [Subscription("orders"), Subscription("images")]
#: Which of the jobs that there are, from where on, and how many.
PARTS = st.tuples(st.integers(0, 30), st.integers(1, 12))
TWISTS = st.sampled_from(["", "", "", "twice", "gone"])


def columns(jids: list[bytes]) -> AlikeTexts:
    """The same, as jids of a batch come; those of images in another form."""
    texts, size = b"".join(jids), len(jids[0])
    return AlikeTexts.read(texts, 0, size, size, range(0 if b"images" in texts else size - 3, size))


class Jobs(RuleBasedStateMachine):
    """Jobs are pushed, and taken out in all ways."""

    def __init__(self) -> None:
        super().__init__()
        self.assignments = Assignments[Any]()
        self.model: dict[bytes, Assignment[Any]] = {}
        self.number = 0

    @rule(consumer=st.sampled_from(CONSUMERS), count=st.integers(1, 9), as_range=st.booleans())
    def push(self, consumer: Any, count: int, as_range: bool) -> None:
        tags: Sequence[int] = range(self.number, self.number + count)
        jids = [b"%s:%03d" % (consumer.queue.encode(), tag) for tag in tags]
        given = columns(jids) if as_range and count > 2 else jids
        pushed = Pushed(consumer, 1, float(self.number), None)
        self.number += count
        self.assignments.add(pushed, tags if as_range else [*tags], given)
        self.model.update((jid, (pushed, tag)) for jid, tag in zip(jids, tags, strict=True))

    def part(self, part: tuple[int, int], consumer: Any) -> list[bytes]:
        first, count = part
        own = [jid for jid, (pushed, _) in self.model.items() if consumer in (None, pushed.consumer)]
        return own[first : first + count]

    @rule(part=PARTS, consumer=st.sampled_from([*CONSUMERS, None]), twist=TWISTS, as_columns=st.booleans())
    def take_together(self, part: tuple[int, int], consumer: Any, twist: str, as_columns: bool) -> None:
        jids = self.part(part, consumer)
        if not jids:
            return
        if twist:
            jids += jids if twist == "twice" else [b"orders:xyz"]
        consumers = {self.model[jid][0].consumer for jid in jids if jid in self.model}
        expected: Any = None
        if not twist and len(consumers) == 1:
            expected = consumers.pop(), [self.model.pop(jid)[1] for jid in jids]
        taken = self.assignments.take_together(columns(jids) if as_columns else jids)
        tags: list[int] = [] if taken is None else [tag for some in taken[1] for tag in some]
        assert (taken and (taken[0], tags)) == expected

    @rule(first=st.integers(0, 30))
    def take(self, first: int) -> None:
        [jid] = self.part((first, 1), None) or [b"gone"]
        assert self.assignments.take(jid) == self.model.pop(jid, None)

    @rule(first=st.integers(0, 30))
    def beat(self, first: int) -> None:
        [jid] = self.part((first, 1), None) or [b"gone"]
        found = self.assignments.get(jid)
        assert found == self.model.get(jid)
        if found is not None:
            moved = Pushed(found[0].consumer, 1, found[0].since, 5.0), found[1]
            self.assignments.replace(jid, moved)
            self.model[jid] = moved

    @rule(part=PARTS, consumer=st.sampled_from(CONSUMERS))
    def expire(self, part: tuple[int, int], consumer: Any) -> None:
        tags = [self.model[jid][1] for jid in self.part(part, None)]
        own = [jid for jid, (pushed, tag) in self.model.items() if pushed.consumer is consumer and tag in tags]
        assert self.assignments.take_tags(consumer, tags) == len(own)
        for jid in own:
            del self.model[jid]

    @rule()
    def take_all(self) -> None:
        assert self.assignments.take_all() == self.by_age()
        self.model.clear()

    def by_age(self) -> list[Assignment[Any]]:
        return sorted(self.model.values(), key=lambda job: job[1])

    @invariant()
    def same(self) -> None:
        assert len(self.assignments) == len(self.model)
        for most in (3, 1000):
            oldest = self.assignments.oldest(most)
            assert [job for _, job in oldest] == self.by_age()[:most]
            assert all(self.model[jid] == job for jid, job in oldest)


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=30)
