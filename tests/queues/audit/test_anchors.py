"""Signed anchors: what they hold, what they find that hashes alone do not, keys, copies outside the database."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from queues.audit.anchor import NOTHING, Anchor, Origin, parse_line
from queues.audit.anchor_file import AnchorFile
from queues.audit.anchoring import anchor_all, signed
from queues.audit.chains import append
from queues.audit.diagnosis import FindingKind
from queues.audit.errors import InvalidAnchorFile, InvalidAuditKey
from queues.audit.events import AuditEvent
from queues.audit.signing import Signer, signer
from queues.audit.verify import Verification, chain_names, read_copies, verify
from queues.models import AuditAnchor
from tests.queues.audit.conftest import CHAIN, Intruder, Verify, letters


def kinds(outcome: Verification) -> list[tuple[FindingKind, int]]:
    return [(finding.kind, finding.seq) for finding in outcome.findings]


@pytest.fixture
def anchored(ten: list[AuditEvent]) -> list[AuditEvent]:
    """Ten rows with an anchor at 9, ten more with one at 19, five without."""
    anchor_all()
    append(CHAIN, letters(10, first=10))
    anchor_all()
    append(CHAIN, letters(5, first=20))
    return ten


def use_other_key(settings: Any, home: Path) -> None:
    """From now on this installation has another key of its own."""
    (home / "audit_key").unlink()
    signer()


def stored_anchor(chain: str, row: AuditAnchor) -> Anchor:
    """An anchor of the database."""
    return Anchor(
        chain=chain, number=row.number, seq=row.seq, hash=bytes(row.hash), at=row.at, kind=row.kind,
        previous=bytes(row.previous), key=row.key, signature=bytes(row.signature),
    )  # fmt: skip


# Anchors.


def test_an_anchor_is_signed_by_the_installation_for_the_last_row(ten: list[AuditEvent], intruder: Intruder) -> None:
    [anchor] = anchor_all()
    assert (anchor.chain, anchor.number, anchor.seq, anchor.kind) == (CHAIN, 1, 9, "manual")
    assert anchor.hash.hex() == intruder.rows()[9][5]
    assert anchor.previous == NOTHING
    message = json.dumps(
        {
            "chain": CHAIN, "number": 1, "seq": 9, "hash": anchor.hash.hex(),
            "at": anchor.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "kind": "manual", "previous": anchor.previous.hex(),
        },
        separators=(",", ":"),
    )  # fmt: skip
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signer().public_text))
    key.verify(anchor.signature, message.encode())
    assert stored_anchor(CHAIN, AuditAnchor.objects.get()) == anchor


def test_anchors_cover_the_signature_before_and_are_numbered(anchored: list[AuditEvent], check: Verify) -> None:
    first, second = AuditAnchor.objects.order_by("number")
    assert (second.number, second.seq) == (2, 19)
    assert bytes(second.previous) == hashlib.sha256(bytes(first.signature)).digest()
    outcome = check()
    assert (outcome.ok, outcome.rows, outcome.anchors) == (True, 25, 2)


def test_a_chain_that_has_not_grown_gets_no_anchor(ten: list[AuditEvent]) -> None:
    append("operators", letters(1))
    assert [anchor.chain for anchor in anchor_all()] == ["operators", CHAIN]
    append("operators", letters(1, first=1))
    assert [(anchor.chain, anchor.seq) for anchor in anchor_all()] == [("operators", 1)]
    assert anchor_all() == []


def test_a_chain_whose_anchor_is_young_waits_for_the_next_one(ten: list[AuditEvent]) -> None:
    anchor_all()
    append(CHAIN, letters(1, first=10))
    assert anchor_all(older_than=60) == []
    assert [anchor.seq for anchor in anchor_all(older_than=0)] == [10]


def test_only_one_process_writes_anchors_at_a_time(ten: list[AuditEvent], intruder: Intruder) -> None:
    with intruder.connection.transaction():
        intruder.connection.execute("select pg_advisory_xact_lock(hashtext('queues_auditanchor'))")
        assert anchor_all() == []
    assert len(anchor_all()) == 1


# Findings of anchors.


@pytest.mark.parametrize(("first", "seq", "since"), [(4, 9, "from the beginning"), (12, 19, "after seq 9")])
def test_a_chain_rewritten_with_right_hashes_is_found_by_an_anchor(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder, first: int, seq: int, since: str
) -> None:
    intruder.rewrite(first)
    outcome = check()
    assert outcome.finding is not None
    assert kinds(outcome)[0] == (FindingKind.REWRITTEN, seq)
    assert since in outcome.finding.text


def test_a_row_altered_before_an_anchor_is_named_rather_than_the_anchor(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("update queues_audit set sender = 'mallory' where seq = 4")
    assert kinds(check()) == [(FindingKind.ALTERED, 4)]


def forge_anchors(intruder: Intruder) -> None:
    """Sign all anchors anew, for the rows as they are now, with another key."""
    by, digest = Signer(Ed25519PrivateKey.generate()), NOTHING
    hashes = {row[0]: bytes.fromhex(row[5]) for row in intruder.rows()}
    for row in AuditAnchor.objects.order_by("number"):
        anchor = signed(replace(stored_anchor(CHAIN, row), hash=hashes[row.seq], previous=digest), by)
        digest = anchor.digest
        intruder.run(
            "update queues_auditanchor set hash = %s, previous = %s, key = %s, signature = %s where id = %s",
            anchor.hash, anchor.previous, anchor.key, anchor.signature, row.pk,
        )  # fmt: skip


def test_a_chain_rewritten_with_its_anchors_is_found_by_the_key(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder, home: Path
) -> None:
    AnchorFile.default().path.unlink()
    intruder.rewrite(4)
    forge_anchors(intruder)
    outcome = check()
    assert kinds(outcome) == [(FindingKind.UNKNOWN_KEY, 9), (FindingKind.UNKNOWN_KEY, 19)]
    assert "BROKER_AUDIT_TRUSTED_KEYS" in str(outcome.finding)


def test_a_chain_rewritten_with_its_anchors_is_found_by_their_copies_too(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.rewrite(4)
    forge_anchors(intruder)
    assert (FindingKind.REWRITTEN, 9) in kinds(check())
    assert (FindingKind.ANCHOR_REPLACED, 9) in kinds(check())


@pytest.mark.parametrize(
    "change",
    [
        "hash = set_byte(hash, 0, 255 - get_byte(hash, 0))",
        "seq = 8",
        "at = at + interval '1 second'",
        "kind = 'retention'",
        "previous = set_byte(previous, 0, 255 - get_byte(previous, 0))",
        "signature = set_byte(signature, 0, 255 - get_byte(signature, 0))",
    ],
)
def test_an_anchor_that_was_altered_is_found_by_its_signature(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder, change: str
) -> None:
    AnchorFile.default().path.unlink()
    intruder.run(f"update queues_auditanchor set {change} where number = 1")
    assert check().findings[0].kind == FindingKind.SIGNATURE


@pytest.mark.parametrize(("number", "seq"), [(1, 19), (2, 24)])
def test_an_anchor_taken_out_is_found_by_the_numbers(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder, number: int, seq: int
) -> None:
    anchor_all()
    AnchorFile.default().path.unlink()
    intruder.run("delete from queues_auditanchor where number = %s", number)
    outcome = check()
    assert kinds(outcome) == [(FindingKind.ANCHOR_MISSING, seq)]
    assert f"anchor {number} is missing" in str(outcome.finding)


def test_the_last_anchor_taken_out_is_found_by_the_copies(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    intruder.run("delete from queues_auditanchor where number = 2")
    assert kinds(check()) == [(FindingKind.ANCHOR_MISSING, 19)]


def test_an_anchor_written_anew_by_the_right_key_does_not_fit_the_next(
    anchored: list[AuditEvent], check: Verify, intruder: Intruder
) -> None:
    AnchorFile.default().path.unlink()
    row = AuditAnchor.objects.get(number=1)
    anchor = signed(replace(stored_anchor(CHAIN, row), kind="interval", signature=b""), signer())
    intruder.run(
        "update queues_auditanchor set kind = 'interval', signature = %s where number = 1", anchor.signature
    )  # fmt: skip
    assert kinds(check()) == [(FindingKind.ANCHOR_REPLACED, 19)]


# Copies outside the database.


def test_every_anchor_is_copied_to_a_file_that_only_its_owner_reads(anchored: list[AuditEvent], home: Path) -> None:
    path = home / "audit" / "anchors.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stored = [stored_anchor(CHAIN, row) for row in AuditAnchor.objects.order_by("number")]
    assert read_copies() == stored
    assert [parse_line(line) for line in path.read_bytes().splitlines()] == stored


def test_a_copy_that_was_kept_elsewhere_finds_what_was_done_to_both(
    anchored: list[AuditEvent], intruder: Intruder, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "kept.jsonl"
    elsewhere.write_bytes(AnchorFile.default().path.read_bytes())
    AnchorFile.default().path.unlink()
    intruder.run("delete from queues_auditanchor")
    intruder.rewrite(4)
    assert verify(CHAIN).ok
    assert (FindingKind.REWRITTEN, 9) in kinds(verify(CHAIN, read_copies(AnchorFile(elsewhere))))


def test_half_a_line_that_a_crash_left_is_passed_over_and_the_next_anchor_has_its_own(ten: list[AuditEvent]) -> None:
    file = AnchorFile.default()
    file.path.parent.mkdir()
    file.path.write_bytes(b'{"chain":"peerbus","number":1,"se')
    [anchor] = anchor_all()
    assert list(file.read()) == [anchor]
    assert verify(CHAIN).ok


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"chain":"x"}\n', b"[]\n", b"\xff\n"])
def test_a_file_that_holds_anything_else_is_refused_with_the_line(ten: list[AuditEvent], line: bytes) -> None:
    anchor_all()
    path = AnchorFile.default().path
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(InvalidAnchorFile, match="line 2"):
        read_copies()


def test_a_forged_copy_is_not_believed(anchored: list[AuditEvent]) -> None:
    first = read_copies()[0]
    forged = signed(replace(first, hash=bytes(32)), Signer(Ed25519PrivateKey.generate()))
    assert kinds(verify(CHAIN, [forged])) == [(FindingKind.UNKNOWN_KEY, 9)]


# Keys.


def test_the_key_is_generated_once_and_only_its_owner_reads_it(home: Path) -> None:
    assert signer().public_text == signer().public_text
    assert stat.S_IMODE((home / "audit_key").stat().st_mode) == 0o600


def test_an_earlier_key_counts_while_it_is_trusted(
    anchored: list[AuditEvent], check: Verify, settings: Any, home: Path
) -> None:
    earlier = signer().public_text
    use_other_key(settings, home)
    assert kinds(check()) == [(FindingKind.UNKNOWN_KEY, 9), (FindingKind.UNKNOWN_KEY, 19)]
    settings.BROKER_AUDIT_TRUSTED_KEYS = (earlier,)
    anchor_all()
    assert (check().ok, check().anchors) == (True, 3)


def test_a_key_of_the_operators_own_signs(settings: Any, tmp_path: Path, ten: list[AuditEvent], check: Verify) -> None:
    own = Ed25519PrivateKey.generate()
    path = tmp_path / "own.pem"
    path.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    settings.BROKER_AUDIT_KEY = path
    [anchor] = anchor_all()
    own.public_key().verify(anchor.signature, anchor.message)
    assert check().ok
    assert not (tmp_path / "audit_key").exists()


def test_a_file_without_a_key_is_refused_by_name(home: Path) -> None:
    (home / "audit_key").write_text("nonsense")
    with pytest.raises(InvalidAuditKey, match="audit_key"):
        signer()


# One file for several databases.


def of_another(anchor: Anchor, **kept: str) -> Anchor:
    """An anchor of a chain of the same name in another database; what is `kept` is as in this one."""
    assert anchor.origin is not None
    elsewhere = {"database": "elsewhere", "created": "2001-01-01T00:00:00.000000Z"} | kept
    other = replace(anchor, number=7, seq=41, hash=bytes(32), previous=bytes(32), origin=Origin(**elsewhere))
    return signed(other, signer())


def test_anchors_of_another_database_in_the_same_file_are_no_sign_of_tampering(anchored: list[AuditEvent]) -> None:
    first = read_copies()[0]
    foreign = of_another(first)
    AnchorFile.default().append([foreign.line, of_another(replace(first, chain="queue:theirs")).line])
    assert verify(CHAIN).ok
    assert chain_names(read_copies()) == [CHAIN]


@pytest.mark.parametrize("kept", ["database", "created"])
def test_a_chain_that_was_made_anew_or_a_database_that_was_moved_is_still_held_to_its_copies(
    anchored: list[AuditEvent], kept: str
) -> None:
    first = read_copies()[0]
    assert first.origin is not None
    AnchorFile.default().append([of_another(first, **{kept: getattr(first.origin, kept)}).line])
    assert (FindingKind.ANCHOR_MISSING, 41) in kinds(verify(CHAIN))


def test_a_chain_of_this_database_that_is_gone_is_missed_though_its_time_is_gone_with_it(
    anchored: list[AuditEvent], intruder: Intruder
) -> None:
    for table in ("queues_auditanchor", "queues_audithead", "queues_audit", "queues_auditchain"):
        intruder.run(f"delete from {table}")
    assert chain_names(read_copies()) == [CHAIN]
    assert kinds(verify(CHAIN)) == [(FindingKind.TAIL_CUT, 0)]


def test_a_copy_from_before_copies_said_where_they_are_from_counts(anchored: list[AuditEvent]) -> None:
    first = read_copies()[0]
    AnchorFile.default().append([replace(of_another(first), origin=None).line])
    assert read_copies()[-1].origin is None
    assert (FindingKind.ANCHOR_MISSING, 41) in kinds(verify(CHAIN))
