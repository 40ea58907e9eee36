"""The times of rows, which no hash covers: they never fall, and signed anchors bound them."""

from __future__ import annotations

import pytest

from queues.audit.anchoring import anchor_all
from queues.audit.chains import append
from queues.audit.diagnosis import FindingKind
from queues.audit.events import AuditEvent
from tests.queues.audit.conftest import CHAIN, Intruder, Verify, letters


@pytest.fixture
def anchored(ten: list[AuditEvent]) -> list[AuditEvent]:
    """Rows 0 to 9 with an anchor, 10 to 19 with one, 20 to 24 without."""
    anchor_all()
    append(CHAIN, letters(10, first=10))
    anchor_all()
    append(CHAIN, letters(5, first=20))
    return ten


@pytest.mark.parametrize(
    ("altered", "where", "seq"),
    [
        ("at - interval '1 hour'", "seq = 12", 12),
        ("at + interval '1 hour'", "seq = 12", 13),
        ("at - interval '1 microsecond'", "seq = 3", 3),
        # A time that fits its neighbours is found by the anchors.
        ("at + interval '1 hour'", "seq > 8", 9),
        ("at + interval '2 seconds'", "seq > 18", 19),
        ("at - interval '1 hour'", "seq < 25", 10),
        ("at - interval '1 hour'", "seq < 10", None),
        ("at - interval '400 days'", "seq < 20", 10),
    ],
)
def test_an_altered_time_is_found(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder, altered: str, where: str, seq: int | None
) -> None:
    intruder.run(f"update queues_audit set at = {altered} where {where}")
    finding = check().finding
    assert (None if finding is None else (finding.kind, finding.seq)) == (
        None if seq is None else (FindingKind.TIME, seq)
    )


def test_an_altered_time_is_found_where_a_block_ends(
    monkeypatch: pytest.MonkeyPatch, anchored: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", 5)
    assert check().ok
    intruder.run("update queues_audit set at = at + interval '1 hour' where seq = 14")
    finding = check().finding
    assert finding is not None
    assert (finding.kind, finding.seq) == (FindingKind.TIME, 15)


def test_a_clock_that_was_set_back_is_no_finding(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    intruder.run("update queues_audithead set last_at = last_at + interval '2 hours'")
    append(CHAIN, letters(5, first=10))
    anchor_all()
    append(CHAIN, letters(5, first=15))
    anchor_all()
    assert check().ok
