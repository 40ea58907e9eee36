"""The frames that are put together from parts are those that the codec writes from values."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.uuids import first_id, message_uuid
from wire.overhop.codec import decoder
from wire.overhop.codec.hot_frames import JOB_PAYLOAD, OkWriter, QuestWriter
from wire.overhop.payloads import DIGITS, HEX, JobNames

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


@given(RIDS, QUEUES, st.lists(IDS, min_size=1, max_size=4))
def test_oks_are_those_of_the_codec_whatever_was_written_before(rid: str, queue: str, ids: list[int]) -> None:
    oks, names = OkWriter(), JobNames(queue, str(UUID_OF_QUEUE))
    for id in ids:
        for each in (rid, "b", rid):
            assert oks.empty(each) == decoder.ok(each)
            whole = decoder.ok(each, {"jid": names.jid(id)})
            assert oks.jid(each, names.packed(id)) == whole
            before, behind = oks.around_jid(each, names.pack(names.start(id)))
            assert before + DIGITS[id & 4095] + behind == whole


@pytest.mark.parametrize("attempt", [1, 2, 200, 30_000])
@pytest.mark.parametrize("most", [0, 5, 300])
@given(queue=QUEUES, id=IDS, payload=st.dictionaries(st.text(max_size=5), st.integers(-5, 2**40), max_size=3))
def test_quests_are_those_of_the_codec(attempt: int, most: int, queue: str, id: int, payload: dict[str, int]) -> None:
    names, deadline = JobNames(queue, str(UUID_OF_QUEUE)), "2026-11-21T20:00:00.000001+00:00"
    sid = "0a1b2c3d-0000-4000-8000-000000000000"
    packed = decoder.encode_value(payload)
    whole = decoder.quest(sid, names.jid(id), queue, packed, attempt, most, deadline)
    burst = QuestWriter(sid, queue).burst(deadline, most)
    assert burst.write(names.packed(id), packed, attempt, most) == whole
    if attempt == 1:
        jid = names.pack(names.start(id)) + HEX[id & 4095].encode()
        size = (burst.rest + len(jid) - 3 + len(packed)).to_bytes(4, "big")
        assert b"".join((size, burst.first, jid, JOB_PAYLOAD, packed, burst.usual)) == whole


def test_a_job_without_a_deadline_has_a_nil() -> None:
    names = JobNames("q", str(UUID_OF_QUEUE))
    frame = QuestWriter("sid", "q").burst(None, 5).write(names.packed(5000), b"\xc0", 1, 5)
    [message] = decoder.Decoder.for_client().feed(frame)
    assert message.p["deadline"] is None
