"""Verifying: a chain that was left alone is right, and every way to tamper with one is found and named."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from queues.audit import verify as verify_module
from queues.audit.anchoring import anchor_all
from queues.audit.chains import append, journal
from queues.audit.diagnosis import FindingKind
from queues.audit.errors import NoSuchChain
from queues.audit.events import AuditEvent, hash_block
from queues.audit.verify import Verification, VerificationProgress, chain_names, read_copies, verify, verifying
from queues.models import AuditVerification
from tests.queues.audit.conftest import CHAIN, Intruder, Verify, letters, reference_hashes


def found(outcome: Verification) -> tuple[FindingKind, int] | None:
    """The kind and seq of the first finding."""
    return (outcome.finding.kind, outcome.finding.seq) if outcome.finding else None


# Right chains.


def test_a_chain_that_was_left_alone_is_right(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    outcome = check()
    assert (outcome.ok, outcome.rows, outcome.dropped, found(outcome)) == (True, 10, 0, None)
    assert [row[5] for row in intruder.rows()] == reference_hashes(ten)


def test_an_outcome_is_kept_with_its_chain(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    check()
    intruder.run("update queues_audit set sender = 'mallory' where seq = 3")
    check()
    right, wrong = AuditVerification.objects.order_by("id")
    assert (right.ok, right.rows, right.broken_seq, right.finding) == (True, 10, None, "")
    assert (wrong.ok, wrong.rows, wrong.broken_seq) == (False, 3, 3)
    assert wrong.finding.startswith("altered row: ")


def test_special_characters_and_other_alphabets_verify(check: Verify) -> None:
    append(CHAIN, [AuditEvent("send", 'a"b\\<&>', "Zoë\n", "\u2028\U0001f600\t"), *letters(3)])
    append(CHAIN, [AuditEvent("send", "x,y{}\x7f", "", "'")])
    assert (check().ok, check().rows) == (True, 5)


def test_a_row_altered_among_rows_with_special_characters_is_found(check: Verify, intruder: Intruder) -> None:
    append(CHAIN, [AuditEvent("send", f"<{n}>", "a\x1fb", '"') for n in range(6)])
    assert check().ok
    intruder.run("update queues_audit set recipient = '\\' where seq = 4")
    assert found(check()) == (FindingKind.ALTERED, 4)


def finish(work: Generator[VerificationProgress, None, Verification]) -> tuple[list[tuple[int, int]], Verification]:
    """The steps that were left, and the outcome."""
    steps: list[tuple[int, int]] = []
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            return steps, end.value
        steps.append((step.done, step.total))


def test_a_chain_of_several_blocks_is_right(monkeypatch: pytest.MonkeyPatch, ten: list[AuditEvent]) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", 5)
    steps, outcome = finish(verifying(CHAIN))
    assert steps == [(0, 10), (5, 10), (10, 10)]
    assert (outcome.ok, outcome.rows) == (True, 10)


def test_the_next_block_is_asked_for_before_one_is_checked(
    monkeypatch: pytest.MonkeyPatch, ten: list[AuditEvent]
) -> None:
    asked: list[int] = []
    execute = psycopg.Connection.execute

    def note(self: psycopg.Connection[Any], query: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(parameters, dict) and "low" in parameters:
            asked.append(parameters["low"])
        return execute(self, query, parameters, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", note)
    monkeypatch.setattr("queues.audit.reading.BLOCK", 5)
    checked: list[list[int]] = []

    def check_and_note(before: str, events: bytes, stored: bytes) -> bytes:
        checked.append(asked[:])
        return hash_block(before, events, stored)

    monkeypatch.setattr(verify_module, "hash_block", check_and_note)
    assert verify(CHAIN).ok
    assert checked == [[0, 5], [0, 5, 10]]


def test_rows_appended_during_a_verification_are_no_finding(
    monkeypatch: pytest.MonkeyPatch, ten: list[AuditEvent]
) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", 3)
    work = verifying(CHAIN)
    next(work)
    append(CHAIN, letters(5, first=10))
    _, outcome = finish(work)
    assert (outcome.ok, outcome.rows) == (True, 10)
    assert verify(CHAIN).rows == 15


def test_events_in_the_journal_are_verified_too(ten: list[AuditEvent], check: Verify) -> None:
    journal(CHAIN, letters(2, first=10))
    assert check().rows == 12


def test_a_verification_that_is_stopped_leaves_nothing(monkeypatch: pytest.MonkeyPatch, ten: list[AuditEvent]) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", 3)
    with connection.cursor() as cursor:
        others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        work = verifying(CHAIN)
        next(work)
        cursor.execute(others + " and state = 'idle in transaction'")
        assert cursor.fetchone()[0] == 1
        work.close()
        cursor.execute(others + " and state = 'idle in transaction'")
        assert cursor.fetchone()[0] == 0
    assert not AuditVerification.objects.exists()


def test_a_chain_that_there_is_not_is_refused(transactional_db: None) -> None:
    with pytest.raises(NoSuchChain, match="'nope'"):
        verify("nope")


def test_each_chain_is_verified_by_itself(ten: list[AuditEvent], intruder: Intruder) -> None:
    append("operators", letters(3))
    intruder.run("update queues_audit set sender = 'x' where seq = 1 and chain_id = %s", intruder.number("operators"))
    assert chain_names() == ["operators", CHAIN]
    assert verify(CHAIN).ok
    assert found(verify("operators")) == (FindingKind.ALTERED, 1)


# Rows tampered with.


@pytest.mark.parametrize("column", ["event", "record_id", "sender", "recipient"])
@pytest.mark.parametrize("seq", [0, 3, 9])
def test_one_character_changed_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder, column: str, seq: int
) -> None:
    intruder.run(f"update queues_audit set {column} = overlay({column} placing 'X' from 1) where seq = %s", seq)
    assert found(check()) == (FindingKind.ALTERED, seq)
    assert check().rows == seq


def test_one_bit_changed_in_a_hash_is_found_and_told_from_a_changed_event(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("update queues_audit set hash = set_bit(hash, 7, 1 - get_bit(hash, 7)) where seq = 3")
    outcome = check()
    assert found(outcome) == (FindingKind.ALTERED, 3)
    assert "the hash of row 3 was altered" in str(outcome.finding)


@pytest.fixture
def hashes_of_any_length(ten: list[AuditEvent], intruder: Intruder) -> Iterator[None]:
    """Without the table's constraint on the length of hashes."""
    intruder.run("alter table queues_audit drop constraint audit_hash")
    yield
    intruder.run("delete from queues_audit")
    intruder.run("alter table queues_audit add constraint audit_hash check (octet_length(hash) = 32)")


@pytest.mark.parametrize("block", [2, 5, 100])
@pytest.mark.parametrize("seq", [0, 4, 9])
@pytest.mark.parametrize("hash", ["''", "substr(hash, 1, 31)", "hash || hash"])
def test_a_hash_of_another_length_is_found(
    monkeypatch: pytest.MonkeyPatch,
    hashes_of_any_length: None,
    check: Verify,
    intruder: Intruder,
    block: int,
    seq: int,
    hash: str,
) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", block)
    intruder.run(f"update queues_audit set hash = {hash} where seq = %s", seq)
    assert found(check()) == (FindingKind.ALTERED, seq)


def test_a_byte_moved_from_one_hash_to_the_next_is_found(
    hashes_of_any_length: None, check: Verify, intruder: Intruder
) -> None:
    intruder.run(
        "update queues_audit set hash = (select substr(hash, 32) from queues_audit where seq = 3) || hash where seq = 4"
    )
    intruder.run("update queues_audit set hash = substr(hash, 1, 31) where seq = 3")
    assert found(check()) == (FindingKind.ALTERED, 3)


def test_an_event_that_was_changed_with_its_hash_is_found_at_the_next_row(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    before = intruder.rows()[2][5]
    forged = reference_hashes([ten[3]._replace(recipient="eve")], before)[0]
    intruder.run("update queues_audit set recipient = 'eve', hash = decode(%s, 'hex') where seq = 3", forged)
    assert found(check()) == (FindingKind.ALTERED, 4)


def test_an_altered_row_is_not_taken_for_a_swapped_one_because_an_equal_event_follows(
    check: Verify, intruder: Intruder
) -> None:
    again = AuditEvent("deliver", "m1", "alice", "bob")
    append(CHAIN, [AuditEvent("send", "m1", "alice", "bob"), again, again, again])
    intruder.run("update queues_audit set recipient = 'eve' where seq = 1")
    assert found(check()) == (FindingKind.ALTERED, 1)


def test_a_row_that_was_altered_in_a_later_block_is_found(
    monkeypatch: pytest.MonkeyPatch, ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", 4)
    intruder.run("update queues_audit set sender = 'mallory' where seq = 8")
    assert found(check()) == (FindingKind.ALTERED, 8)


@pytest.mark.parametrize(("first", "last", "words"), [(4, 4, "row 4 is missing"), (4, 6, "rows 4 to 6 are missing")])
@pytest.mark.parametrize("block", [2, 4, 100])
def test_rows_taken_out_are_found(
    monkeypatch: pytest.MonkeyPatch,
    ten: list[AuditEvent],
    check: Verify,
    intruder: Intruder,
    first: int,
    last: int,
    words: str,
    block: int,
) -> None:
    monkeypatch.setattr("queues.audit.reading.BLOCK", block)
    intruder.run("delete from queues_audit where seq between %s and %s", first, last)
    outcome = check()
    assert found(outcome) == (FindingKind.MISSING, first)
    assert words in str(outcome.finding)


def test_a_row_taken_out_and_the_rest_renumbered_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("delete from queues_audit where seq = 4")
    for seq in range(5, 10):
        intruder.run("update queues_audit set seq = %s where seq = %s", seq - 1, seq)
    outcome = check()
    assert outcome.finding is not None
    assert outcome.finding.seq == 4


def test_a_beginning_taken_out_without_a_retention_anchor_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    anchor_all()
    intruder.run("delete from queues_audit where seq < 4")
    outcome = check()
    assert found(outcome) == (FindingKind.BEGINNING, 0)
    assert "rows 0 to 3 should be there" in str(outcome.finding)


@pytest.mark.parametrize(("one", "other"), [(3, 4), (3, 7), (0, 9), (8, 9)])
def test_rows_that_changed_places_are_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder, one: int, other: int
) -> None:
    intruder.run("update queues_audit set seq = seq + 1000 where seq in (%s, %s)", one, other)
    intruder.run(
        "update queues_audit set seq = case seq when %s then %s else %s end where seq >= 1000",
        one + 1000, other, one,
    )  # fmt: skip
    outcome = check()
    assert found(outcome) == (FindingKind.SWAPPED, one)
    assert f"rows {one} and {other} " in str(outcome.finding)


def test_events_that_changed_places_while_the_hashes_stayed_are_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    for seq, event in ((3, ten[7]), (7, ten[3])):
        intruder.run(
            "update queues_audit set event = %s, record_id = %s, sender = %s, recipient = %s where seq = %s",
            *event, seq,
        )  # fmt: skip
    assert found(check()) == (FindingKind.SWAPPED, 3)


INSERT = (
    "insert into queues_audit select chain_id, %s, at + %s::interval, 'send', 'forged', 'eve', 'bob', hash"
    " from queues_audit where seq = %s"
)


def test_a_row_put_in_is_found(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    for seq in range(9, 3, -1):
        intruder.run("update queues_audit set seq = %s where seq = %s", seq + 1, seq)
    intruder.run(INSERT, 4, "0", 3)
    intruder.run("update queues_audithead set next_seq = 11")
    outcome = check()
    assert found(outcome) == (FindingKind.INSERTED, 4)
    assert "row 4 was put in" in str(outcome.finding)


def test_a_second_row_of_the_same_number_in_another_day_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run(INSERT, 4, "1 day", 4)
    outcome = check()
    assert found(outcome) == (FindingKind.DUPLICATE, 4)
    assert outcome.rows == 4


def test_a_row_put_in_behind_the_head_is_found(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    intruder.run(INSERT, 10, "0", 9)
    assert found(check()) == (FindingKind.INSERTED, 10)


def test_a_row_with_a_right_hash_behind_the_head_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    [forged] = reference_hashes([AuditEvent("send", "forged", "eve", "bob")], intruder.rows()[9][5])
    intruder.run(INSERT, 10, "0", 9)
    intruder.run("update queues_audit set hash = decode(%s, 'hex') where seq = 10", forged)
    assert found(check()) == (FindingKind.HEAD, 10)


# The end of a chain.


def test_a_tail_cut_off_is_found_by_the_head(ten: list[AuditEvent], check: Verify, intruder: Intruder) -> None:
    intruder.cut(7, with_head=False)
    outcome = check()
    assert found(outcome) == (FindingKind.TAIL_CUT, 7)
    assert "rows 7 to 9 are missing at the end" in str(outcome.finding)


def test_a_tail_cut_off_with_the_head_is_found_by_an_anchor(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    anchor_all()
    intruder.cut(7, with_head=True)
    outcome = check()
    assert found(outcome) == (FindingKind.TAIL_CUT, 7)
    assert "an anchor was signed for row 9" in str(outcome.finding)


def test_a_tail_cut_off_with_head_and_anchors_is_found_by_the_copies_outside_the_database(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    anchor_all()
    intruder.cut(7, with_head=True)
    intruder.run("delete from queues_auditanchor")
    assert found(check()) == (FindingKind.TAIL_CUT, 7)
    assert FindingKind.ANCHOR_MISSING in [finding.kind for finding in check().findings]


def test_a_tail_that_no_anchor_was_signed_for_is_gone_unseen(
    ten: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.cut(7, with_head=True)
    assert check().ok  # why heads are anchored every minute


def test_a_chain_that_is_gone_is_found_by_the_copies_outside_the_database(
    ten: list[AuditEvent], intruder: Intruder
) -> None:
    anchor_all()
    intruder.run("delete from queues_audit")
    intruder.run("delete from queues_auditanchor")
    intruder.run("delete from queues_auditchain")
    assert chain_names(read_copies()) == [CHAIN]
    assert found(verify(CHAIN)) == (FindingKind.TAIL_CUT, 0)


@pytest.mark.parametrize(
    ("sql", "seq"),
    [
        ("update queues_audithead set hash = set_byte(hash, 0, 255 - get_byte(hash, 0))", 9),
        ("update queues_audithead set next_seq = 6", 6),
        ("delete from queues_audithead", 10),
    ],
)
def test_a_head_that_disagrees_is_found(
    ten: list[AuditEvent], check: Verify, intruder: Intruder, sql: str, seq: int
) -> None:
    intruder.run(sql)
    assert found(check()) == (FindingKind.HEAD, seq)


# Mistakes are refused before anything has to be found.


@pytest.mark.parametrize(
    "sql",
    [
        "update queues_audit set sender = 'mallory' where seq = 3",
        "delete from queues_audit where seq = 3",
        "truncate queues_audit",
        "truncate queues_audit_default",
    ],
)
def test_changing_what_is_recorded_is_refused(
    ten: list[AuditEvent], check: Verify, intruder: Intruder, sql: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the audit chain only grows"):
        intruder.connection.execute(sql.encode())
    assert check().rows == 10
