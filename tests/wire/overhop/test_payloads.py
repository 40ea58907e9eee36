"""Names of jobs."""

from __future__ import annotations

from uuid import UUID

from wire.overhop.payloads import job_names

UUIDS = [str(UUID(int=n << 96 | 7)) for n in (1, 2)]


def test_a_queue_that_is_made_anew_has_other_names_and_each_has_always_the_same() -> None:
    first, anew = job_names("q", UUIDS[0]), job_names("q", UUIDS[1])
    assert job_names("q", UUIDS[0]) is first
    assert job_names("q", UUIDS[1]) is anew
    assert first.jid(5000) != anew.jid(5000)
    assert job_names("other", UUIDS[0]).jid(5000) == first.jid(5000).replace("q:", "other:")
