"""Old days are dropped behind a signed anchor, and what is left verifies from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queues.audit import upkeep
from queues.audit.anchor_file import AnchorFile
from queues.audit.anchoring import anchor_all
from queues.audit.chains import append, journal, waiting
from queues.audit.diagnosis import FindingKind
from queues.audit.errors import ChainBusy
from queues.audit.events import AuditEvent
from queues.audit.reading import find_chain, first_seq, snapshot
from queues.audit.retention import AHEAD, drop_old, make_partitions
from queues.audit.verify import verify, verifying
from queues.models import AuditAnchor, AuditRow
from tests.queues.audit.conftest import CHAIN, Intruder, Verify, letters

TODAY = "(now() at time zone 'UTC')::date"


@pytest.fixture
def old(ten: list[AuditEvent], intruder: Intruder) -> list[AuditEvent]:
    """Ten rows: four are five days old, three are three days old, three of today."""
    intruder.run(f"select queues_make_audit_partitions({TODAY} - 5, 3)")
    intruder.run("update queues_audit set at = at - interval '5 days' where seq < 4")
    intruder.run("update queues_audit set at = at - interval '3 days' where seq between 4 and 6")
    return ten


@pytest.fixture(autouse=True)
def no_old_partitions(transactional_db: None, intruder: Intruder) -> Any:
    """Leave the partitions as they were found."""
    yield
    intruder.run(f"select queues_drop_audit_partitions({TODAY})")
    make_partitions()


def partitions(intruder: Intruder) -> list[str]:
    return [
        name for (name,) in intruder.run(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = 'queues_audit'::regclass order by 1"
        )
    ]  # fmt: skip


def seqs() -> list[int]:
    return list(AuditRow.objects.order_by("seq").values_list("seq", flat=True))


def test_rows_that_are_too_old_are_dropped_and_the_rest_verifies_from_the_anchor(
    old: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    before = intruder.rows()
    assert drop_old(4) == 4
    assert seqs() == [4, 5, 6, 7, 8, 9]
    [anchor] = AuditAnchor.objects.all()
    assert (anchor.kind, anchor.seq, bytes(anchor.hash).hex()) == ("retention", 3, before[3][5])
    outcome = check()
    assert (outcome.ok, outcome.rows, outcome.dropped) == (True, 6, 4)
    assert drop_old(4) == 0
    assert drop_old(2) == 3
    assert seqs() == [7, 8, 9]
    assert (check().ok, check().dropped) == (True, 7)


def test_a_chain_of_which_everything_was_dropped_goes_on(
    old: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("update queues_audit set at = at - interval '3 days' where seq > 6")
    assert drop_old(1) == 10
    assert (check().ok, check().rows, check().dropped) == (True, 0, 10)
    append(CHAIN, letters(2, first=10))
    assert (check().ok, check().rows) == (True, 2)
    assert seqs() == [10, 11]


def test_each_chain_gets_an_anchor_for_what_it_loses(old: list[AuditEvent]) -> None:
    append("operators", letters(2))
    assert drop_old(2) == 7
    assert [(anchor.chain.name, anchor.seq) for anchor in AuditAnchor.objects.all()] == [(CHAIN, 6)]
    assert verify("operators").rows == 2


def test_old_rows_in_the_default_partition_are_dropped_too(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("update queues_audit set at = at - interval '9 days' where seq < 4")
    where = intruder.run("select tableoid::regclass::text from queues_audit where seq = 0")
    assert where == [("queues_audit_default",)]
    assert drop_old(4) == 4
    assert (check().ok, check().dropped) == (True, 4)


def test_rows_dropped_without_an_anchor_are_found(old: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    intruder.run(f"select queues_drop_audit_partitions({TODAY} - 4)")
    finding = check().finding
    assert finding is not None
    assert (finding.kind, finding.seq) == (FindingKind.BEGINNING, 0)


def test_more_rows_dropped_than_the_anchor_says_are_found(
    old: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    drop_old(4)
    intruder.run("delete from queues_audit where seq = 4")
    finding = check().finding
    assert finding is not None
    assert (finding.kind, finding.seq) == (FindingKind.BEGINNING, 4)


def test_the_first_row_after_those_dropped_is_held_to_the_anchor(
    old: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    drop_old(4)
    intruder.run("update queues_audit set sender = 'mallory' where seq = 4")
    finding = check().finding
    assert finding is not None
    assert (finding.kind, finding.seq) == (FindingKind.ALTERED, 4)


def test_rows_that_were_rewritten_before_they_were_dropped_are_found_by_an_earlier_anchor(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    anchor_all()
    append(CHAIN, letters(5, first=10))
    intruder.rewrite(4)
    intruder.run("update queues_audit set at = at - interval '5 days' where seq < 10")
    assert drop_old(4) == 10
    finding = check().finding
    assert finding is not None
    assert (finding.kind, finding.seq) == (FindingKind.REWRITTEN, 9)


def test_an_anchor_that_was_made_to_excuse_missing_rows_is_found(
    old: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    anchor_all()
    AnchorFile.default().path.unlink()
    intruder.run("update queues_auditanchor set kind = 'retention'")
    intruder.run("delete from queues_audit")
    assert {finding.kind for finding in check().findings} >= {FindingKind.SIGNATURE, FindingKind.TAIL_CUT}


def test_anchors_of_dropped_rows_are_forgotten_without_a_finding(
    transactional_db: None, check: Verify, intruder: Intruder
) -> None:
    for n in range(5):
        append(CHAIN, letters(2, first=2 * n))
        anchor_all()
    intruder.run(f"select queues_make_audit_partitions({TODAY} - 5, 1)")
    intruder.run("update queues_audit set at = at - interval '5 days' where seq < 7")
    assert drop_old(4) == 7
    kept = [(anchor.number, anchor.seq, anchor.kind) for anchor in AuditAnchor.objects.order_by("number")]
    assert kept == [(3, 5, "manual"), (4, 7, "manual"), (5, 9, "manual"), (6, 6, "retention")]
    assert check().ok
    intruder.run("delete from queues_auditanchor where number = 6")
    assert FindingKind.ANCHOR_MISSING in {finding.kind for finding in check().findings}


def test_partition_changes_do_not_wait_for_a_reader_of_the_whole_chain(
    old: list[AuditEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.audit.retention.LOCK_TIMEOUT", "50ms")
    with snapshot("default") as reader:
        found = find_chain(reader, CHAIN)
        assert found is not None
        first_seq(reader, found.id)
        with pytest.raises(ChainBusy):
            drop_old(4)
        append(CHAIN, letters(1, first=10))
    assert not AuditAnchor.objects.exists()
    assert drop_old(4) == 4


def test_partitions_are_made_ahead_and_take_over_what_the_default_has(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    assert make_partitions() == 0
    [(last,)] = intruder.run(f"select to_char({TODAY} + %s, 'YYYYMMDD')", AHEAD - 1)
    assert f"queues_audit_{last}" in partitions(intruder)
    intruder.run(f"drop table queues_audit_{last}")
    intruder.run("update queues_audit set at = at + %s * interval '1 day' where seq > 7", AHEAD - 1)
    assert make_partitions() == 1
    where = intruder.run("select tableoid::regclass::text from queues_audit where seq = 9")
    assert where == [(f"queues_audit_{last}",)]
    assert check().rows == 10


def test_time_never_falls_as_seq_grows_whatever_the_clock_does(ten: list[AuditEvent], intruder: Intruder) -> None:
    intruder.run("update queues_audithead set last_at = last_at + interval '2 hours'")
    append(CHAIN, letters(1, first=10))
    [(late,)] = intruder.run("select at > now() + interval '1 hour' from queues_audit where seq = 10")
    assert late


def test_upkeep_seals_anchors_and_drops(
    old: list[AuditEvent], check: Verify, settings: Any, intruder: Intruder
) -> None:
    settings.BROKER_AUDIT_DAYS = 4
    journal(CHAIN, letters(2, first=10))
    upkeep.look_after()
    assert waiting() == {}
    assert [(a.kind, a.seq) for a in AuditAnchor.objects.order_by("number")] == [("interval", 11), ("retention", 3)]
    assert (check().ok, check().rows, check().dropped) == (True, 8, 4)
    append(CHAIN, letters(1, first=12))
    upkeep.look_after()
    assert AuditAnchor.objects.count() == 2  # not so soon


def test_a_chain_without_its_head_keeps_no_other_from_its_anchors_and_its_verification(
    old: list[AuditEvent], check: Verify, intruder: Intruder, caplog: pytest.LogCaptureFixture
) -> None:
    append("broken", letters(1))
    chain = "(select id from queues_auditchain where name = 'broken')"
    intruder.run(f"delete from queues_audithead where chain_id = {chain}")
    journal("broken", letters(1, first=1))
    journal(CHAIN, letters(1, first=10))
    upkeep.look_after()
    assert waiting() == {"broken": 1}
    assert AuditAnchor.objects.filter(chain__name=CHAIN).exists()
    assert check().ok
    finding = verify("broken").finding
    assert finding is not None
    assert finding.kind is FindingKind.HEAD
    assert "broken has no head" in caplog.text


def test_a_chain_that_takes_no_rows_keeps_no_other_from_its_seal(
    old: list[AuditEvent], check: Verify, intruder: Intruder, caplog: pytest.LogCaptureFixture
) -> None:
    append("broken", letters(5))
    intruder.run(
        "update queues_audithead set next_seq = 2"
        " where chain_id = (select id from queues_auditchain where name = 'broken')"
    )
    journal("broken", letters(1, first=5))
    journal(CHAIN, letters(1, first=10))
    upkeep.look_after()
    assert waiting() == {"broken": 1}
    assert (check().ok, check().rows) == (True, 11)
    assert "the audit journal of 'broken' is not sealed" in caplog.text


def test_a_chain_that_takes_no_anchor_keeps_no_other_from_its_own(
    old: list[AuditEvent], intruder: Intruder, caplog: pytest.LogCaptureFixture
) -> None:
    append("broken", letters(1))
    intruder.run(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'as told'; end $$"
    )
    intruder.run(
        "create trigger refuse before insert on queues_auditanchor for each row when"
        f" (new.chain_id = {intruder.number('broken')}) execute function refuse()"
    )
    try:
        anchor_all()
        drop_old(4)
    finally:
        intruder.run("drop function refuse cascade")
    chains = set(AuditAnchor.objects.values_list("chain__name", "kind"))
    assert chains == {(CHAIN, "manual"), (CHAIN, "retention")}
    assert "the audit chain 'broken' gets no anchor at seq 0" in caplog.text


def test_upkeep_that_fails_in_one_thing_does_the_others(
    old: list[AuditEvent], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(using: str) -> None:
        raise LookupError("as told")

    settings.BROKER_AUDIT_DAYS = 4
    monkeypatch.setattr(upkeep, "seal", fail)
    with pytest.raises(LookupError, match="as told"):
        upkeep.look_after()
    assert [anchor.kind for anchor in AuditAnchor.objects.order_by("number")] == ["interval", "retention"]
    assert len(seqs()) == 6


def test_a_stop_signs_what_was_written_since_the_last_anchor(old: list[AuditEvent], check: Verify) -> None:
    upkeep.anchor_at_stop()
    journal(CHAIN, letters(1, first=10))
    upkeep.anchor_at_stop()
    upkeep.anchor_at_stop()
    assert [(a.kind, a.seq) for a in AuditAnchor.objects.order_by("number")] == [("interval", 9), ("interval", 10)]
    assert check().ok


def test_a_stop_without_anything_to_sign_makes_no_key(transactional_db: None, home: Path) -> None:
    upkeep.anchor_at_stop()
    assert list(home.iterdir()) == []


def test_upkeep_keeps_everything_when_days_is_0(old: list[AuditEvent], settings: Any) -> None:
    settings.BROKER_AUDIT_DAYS = 0
    upkeep.look_after()
    assert len(seqs()) == 10


def test_upkeep_leaves_a_chain_that_is_being_verified_for_later(
    old: list[AuditEvent], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BROKER_AUDIT_DAYS = 4
    monkeypatch.setattr("queues.audit.retention.LOCK_TIMEOUT", "50ms")
    work = verifying(CHAIN)
    next(work)
    upkeep.look_after()
    assert len(seqs()) == 10
    work.close()
    upkeep.look_after()
    assert len(seqs()) == 6
