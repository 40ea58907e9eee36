"""The frames that are put together from parts are those that the codec writes from values."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.uuids import first_id, message_uuid
from wire.overhop.codec import encoder
from wire.overhop.codec.hot_frames import QuestWriter, empty_ok, empty_oks, jid_oks
from wire.overhop.codec.names import PUSH_RID, Type
from wire.overhop.payloads import JobNames

UUID_OF_QUEUE = UUID("be544b35-112b-4f6e-8a3c-0123456789ab")
IDS = st.integers(min_value=4096, max_value=2**55)
RIDS = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
QUEUES = st.text(min_size=1, max_size=255).filter(lambda text: text.isprintable())


@given(IDS, QUEUES)
def test_a_jid_is_the_uuid_of_the_message(id: int, queue: str) -> None:
    jid = JobNames(queue, str(UUID_OF_QUEUE)).jid(id)
    name, _, uuid = jid.rpartition(":")
    assert (name, UUID(uuid)) == (queue, message_uuid(UUID_OF_QUEUE, id))
    assert str(UUID(uuid)) == uuid
    assert first_id(UUID(uuid)) == id


@given(QUEUES, st.lists(IDS, min_size=1, max_size=6) | IDS.map(lambda id: range(id, id + 5000)))
def test_jids_are_made_together_as_one_by_one(queue: str, ids: Sequence[int]) -> None:
    names = JobNames(queue, str(UUID_OF_QUEUE))
    assert names.jids(ids) == [names.jid(id).encode() for id in ids]


@given(RIDS, QUEUES, st.lists(st.tuples(IDS, st.booleans()), min_size=1, max_size=4))
def test_oks_are_those_of_the_codec(rid: str, queue: str, jobs: list[tuple[int, bool]]) -> None:
    names = JobNames(queue, str(UUID_OF_QUEUE))
    jids, rids = [names.jid(id) for id, _ in jobs], [rid[::-1] if other else rid for _, other in jobs]
    packed = [each.encode() for each in rids]
    assert empty_ok(rid) == encoder.ok(rid)
    assert empty_oks(packed) == b"".join(encoder.ok(each) for each in rids)
    oks = jid_oks(packed, names.head, names.jids([id for id, _ in jobs]))
    assert oks == b"".join(encoder.ok(each, {"jid": jid}) for each, jid in zip(rids, jids, strict=True))


@pytest.mark.parametrize("attempt", [1, 2, 200, 30_000])
@pytest.mark.parametrize("most", [0, 5, 300])
@pytest.mark.parametrize("deadline", ["2026-11-21T20:00:00.000001+00:00", None])
@given(
    queue=QUEUES, ids=st.lists(IDS, min_size=1, max_size=3),
    payload=st.dictionaries(st.text(max_size=5), st.integers(-5, 2**40), max_size=3),
)  # fmt: skip
def test_quests_are_those_of_the_codec(
    attempt: int, most: int, deadline: str | None, queue: str, ids: list[int], payload: dict[str, int]
) -> None:
    names = JobNames(queue, str(UUID_OF_QUEUE))
    sid = "0a1b2c3d-0000-4000-8000-000000000000"
    payloads = [encoder.encode_value(payload | {"n": n}) for n in range(len(ids))]
    written = QuestWriter(sid, queue).write(deadline, attempt, most, names.head, names.jids(ids), payloads)
    known = {"sid": sid, "q": queue, "attempt": attempt, "max_attempts": most, "deadline": deadline}
    assert written == b"".join(
        encoder.encode(Type.QUEST, PUSH_RID, known | {"jid": names.jid(id), "job_payload": payload | {"n": n}})
        for n, id in enumerate(ids)
    )
