"""One message for one queue is planned by itself as it would be among all others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.message import Content, DetailedMessage
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination
from queues.engine.publish.insert_plan import Plan
from queues.engine.publish.publisher import PublishGroup
from queues.engine.publish.routing import Targets

POLICY = QueuePolicy(1, "q", False, False, None, 5, 1.0, 60.0, 60.0, None, None, "reject", "metadata", None)
ONE = Targets((1,), (), frozenset(), 1)
TARGETS = st.just(ONE) | st.builds(
    Targets, stored=st.sampled_from([(1,), (1,), (1,), (), (1, 2)]), transient=st.sampled_from([(), (), (2,)]),
    subscribed=st.sampled_from([frozenset[int](), frozenset[int](), frozenset({1})]), own=st.sampled_from([1, 2, None]),
    audited=st.sampled_from([(), ((1, "q"),)]), routes=st.sampled_from([(), (7,)]),
)  # fmt: skip


@st.composite
def groups(draw: st.DrawFn) -> PublishGroup:
    count, detailed = draw(st.sampled_from([1, 1, 1, 2])), draw(st.integers(0, 2)) == 0
    bodies = [b"%d" % n for n in range(count)]
    transient = not detailed and draw(st.integers(0, 4)) == 0
    return PublishGroup(
        draw(st.sampled_from([None, 3])), transient=transient, detailed=detailed, content=Content.MSGPACK,
        answered=draw(st.booleans()), bodies=bodies,
        outgoing=[DetailedMessage(body, key="k") for body in bodies] if detailed else [],
        producers=[None] * count, tokens=[*range(count)],  # type: ignore[list-item]
    )  # fmt: skip


def described(plan: Plan) -> dict[str, Any]:
    """All that a plan holds; writes by what they are, in place of themselves."""
    facts = {name: getattr(plan, name) for name in ("limited", "drop_oldest", "audited", "carried", "transient")}
    writes = [
        (write.group, write.key, write.queues, write.buffers, write.ttl, write.packed, write.single)
        for write in plan.writes
    ]
    answers = [(plan.writes.index(write), queue) for write, queue in plan.answers]
    rejected = [(group, type(error)) for group, error in plan.rejected]
    return facts | {"writes": writes, "answers": answers, "rejected": rejected, "unroutable": plan.unroutable}


@pytest.mark.parametrize("segment_messages", [0, 1, 8])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"message_ttl": 5.0}, {"max_length": 9}, {"max_length": 9, "overflow": "drop-oldest"},
        {"retention": "full"}, {"concurrency_limit": 3}, {"allow_job_overrides": False},
    ],
)  # fmt: skip
@given(
    st.lists(st.tuples(groups(), TARGETS, st.sampled_from(["queue", "topic"])), min_size=1, max_size=4),
    st.sampled_from([None, 0, 2, 9]),
)
def test_it_is_the_same_plan(
    segment_messages: int, changes: dict[str, Any], added: list[tuple[PublishGroup, Targets, str]], wanted: int | None
) -> None:
    policies = {1: replace(POLICY, **changes), 2: replace(POLICY, id=2, name="other")}
    buffers: Any = {} if wanted is None else {1: SimpleNamespace(prefetch=SimpleNamespace(wanted=lambda now: wanted))}
    plans = []
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            plan = Plan(segment_messages)
            for group, targets, kind in added:
                plan.add(group, Destination(kind, b"q"), targets, 5, policies, buffers, 0.0)
            plans.append(described(plan))
            patch.setattr(Plan, "_add_one", lambda *_: False)
    assert plans[0] == plans[1]
