"""`manage.py audit`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from django.core.management.base import OutputWrapper

from queues.audit.anchor import Origin
from queues.audit.anchor_file import AnchorFile
from queues.audit.anchoring import anchor_all
from queues.audit.chains import append, journal
from queues.audit.events import AuditEvent
from queues.audit.reading import Block, Connection, read_blocks
from queues.audit.verify import VerificationProgress
from queues.management.commands import audit as command
from queues.management.shell import terminal_line
from queues.models import AuditAnchor, AuditVerification
from tests.queues.audit.conftest import CHAIN, Intruder, letters
from tests.queues.shell import Shell

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.django_db(transaction=True)


# verify


def test_verify_says_how_many_rows_are_right(shell: Shell, ten: list[AuditEvent]) -> None:
    append("operators", letters(2))
    outcome = shell("audit", "verify")
    assert (outcome.status, outcome.err) == (0, "")
    assert "operators: 2 rows are right" in outcome.out
    assert "peerbus: 10 rows are right" in outcome.out
    only = shell("audit", "verify", "--chain", "operators")
    assert only.status == 0
    assert "peerbus" not in only.out
    assert AuditVerification.objects.count() == 3


def test_verify_ends_with_1_and_the_first_broken_seq(shell: Shell, ten: list[AuditEvent], intruder: Intruder) -> None:
    append("operators", letters(2))
    intruder.run("update queues_audit set sender = 'mallory' where seq = 7")
    outcome = shell("audit", "verify")
    assert outcome.status == 1
    assert "peerbus: broken at seq 7: altered row: " in outcome.out
    assert "operators: 2 rows are right" in outcome.out
    assert "Broken: peerbus at seq 7." in outcome.err


def test_verify_as_json(shell: Shell, ten: list[AuditEvent], intruder: Intruder) -> None:
    anchor_all()
    [right] = shell("audit", "verify", "--json").json
    assert (right["chain"], right["ok"], right["rows"], right["anchors"]) == (CHAIN, True, 10, 1)
    assert (right["broken_seq"], right["finding"], right["findings"]) == (None, None, [])
    intruder.run("delete from queues_audit where seq = 4")
    outcome = shell("audit", "verify", "--json")
    assert outcome.status == 1
    [wrong] = outcome.json
    assert (wrong["ok"], wrong["rows"], wrong["broken_seq"]) == (False, 4, 4)
    assert wrong["findings"] == [{"kind": "missing rows", "seq": 4, "text": "row 4 is missing"}]


def test_verify_lists_further_findings(shell: Shell, ten: list[AuditEvent], intruder: Intruder) -> None:
    anchor_all()
    AnchorFile.default().path.unlink()
    intruder.run("update queues_auditanchor set key = 'x'")
    intruder.run("update queues_audit set sender = 'mallory' where seq = 2")
    out = shell("audit", "verify").out
    assert out.index("broken at seq 2: altered row") < out.index("also at seq 9: anchor signed by an unknown key")


def test_verify_takes_a_copy_of_the_anchors_that_was_kept_elsewhere(
    shell: Shell, ten: list[AuditEvent], intruder: Intruder, tmp_path: Path
) -> None:
    anchor_all()
    kept = AnchorFile.default().path.rename(tmp_path / "kept.jsonl")
    intruder.run("delete from queues_auditanchor")
    intruder.cut(5, with_head=True)
    assert shell("audit", "verify").status == 0
    outcome = shell("audit", "verify", "--anchors", str(kept))
    assert outcome.status == 1
    assert "broken at seq 5: tail cut off" in outcome.out
    missing = shell("audit", "verify", "--anchors", str(tmp_path / "nothing"))
    assert (missing.status, "No such file" in missing.err) == (1, True)


@pytest.mark.parametrize("error", ["division by zero", "unforeseen"])
def test_verify_goes_on_with_the_other_chains_when_it_fails_at_one(
    shell: Shell, ten: list[AuditEvent], monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    append("operators", letters(2))
    append("queue:orders", letters(3))

    def block(connection: Connection, chain: int, low: int, size: int) -> Iterator[Block]:
        [name] = connection.execute("select name from queues_auditchain where id = %s", (chain,)).fetchone() or [""]
        if name == "operators" and error == "unforeseen":
            raise IndexError(error)
        if name == "operators":
            connection.execute("select 1 / 0")
        return read_blocks(connection, chain, low, size)

    monkeypatch.setattr("queues.audit.reading.read_blocks", block)
    outcome = shell("audit", "verify")
    assert outcome.status == 1
    assert f"operators: not read to its end: {error}" in outcome.out
    assert "peerbus: 10 rows are right" in outcome.out
    assert "queue:orders: 3 rows are right" in outcome.out
    assert "Not read to its end: operators." in outcome.err
    shown = shell("audit", "verify", "--json")
    assert shown.status == 1
    assert shown.json[0] == {"chain": "operators", "ok": False, "error": error}
    assert [chain["ok"] for chain in shown.json] == [False, True, True]


def test_verify_says_which_chains_of_other_databases_it_leaves_out(shell: Shell, ten: list[AuditEvent]) -> None:
    append("operators", letters(2))
    anchors = anchor_all()
    origin = Origin("elsewhere", "2001-01-01T00:00:00.000000Z")
    AnchorFile.default().append(replace(anchor, chain=f"{anchor.chain}-b", origin=origin).line for anchor in anchors)
    outcome = shell("audit", "verify")
    assert outcome.status == 0
    assert "only other databases have them: copies of anchors of operators-b, peerbus-b." in outcome.err


def test_verify_without_any_chain_is_right(shell: Shell) -> None:
    outcome = shell("audit", "verify")
    assert outcome.status == 0
    assert "0 rows" in outcome.out
    assert shell("audit", "verify", "--json").json == []


def test_verify_shows_a_bar_on_a_terminal_and_takes_it_away() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    with terminal_line(OutputWrapper(terminal)) as show:
        show(command._progress_text(CHAIN, VerificationProgress(5000, 20_000)))
    assert terminal.getvalue() == f"\r\033[K{CHAIN} [{'#' * 7}{'.' * 23}]  25% of 20,000 rows\r\033[K"


def test_an_interrupted_verify_says_so_and_keeps_nothing(
    shell: Shell, ten: list[AuditEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("queues.audit.verify.judge", interrupt)
    monkeypatch.setattr("queues.audit.verify.hash_block", interrupt)
    outcome = shell("audit", "verify")
    assert (outcome.status, "Interrupted" in outcome.err) == (1, True)
    assert not AuditVerification.objects.exists()


# show


def test_show_lists_the_chains_with_their_anchors_and_verifications(shell: Shell, ten: list[AuditEvent]) -> None:
    journal("operators", letters(2))
    shell("audit", "anchor")
    shell("audit", "verify", "--chain", CHAIN)
    operators, peerbus = shell("audit", "show", "--json").json
    assert (operators["chain"], operators["rows"], operators["verified_ok"]) == ("operators", 2, None)
    assert (peerbus["rows"], peerbus["anchored_seq"], peerbus["verified_ok"]) == (10, 9, True)
    text = shell("audit", "show").out
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["operators", "2"], ["peerbus", "10"]]
    assert "yes" in text


def test_show_finds_the_rows_of_one_message(shell: Shell, ten: list[AuditEvent]) -> None:
    append(CHAIN, [AuditEvent("ack", "m3", "bob", "")])
    append("operators", [AuditEvent("purge", "m3", "admin", "orders"), AuditEvent("purge", "m4", "admin", "orders")])
    shown = shell("audit", "show", "--id", "m3", "--json").json
    assert [(row["chain"], row["seq"], row["event"], row["from"]) for row in shown] == [
        ("operators", 0, "purge", "admin"), ("peerbus", 3, "send", "alice"), ("peerbus", 10, "ack", "bob"),
    ]  # fmt: skip
    assert len(shell("audit", "show", "--id", "m3", "--chain", CHAIN, "--json").json) == 2
    nothing = shell("audit", "show", "--id", "never")
    assert (nothing.status, nothing.out, "no such rows" in nothing.err) == (0, "", True)


def test_show_has_the_last_rows_of_a_chain(shell: Shell, ten: list[AuditEvent]) -> None:
    shown = shell("audit", "show", "--chain", CHAIN, "--limit", "3", "--json").json
    assert [row["seq"] for row in shown] == [7, 8, 9]
    assert "m9" in shell("audit", "show", "--chain", CHAIN).out


# export


def test_export_gives_everything_that_the_hashes_are_made_of(shell: Shell) -> None:
    append(CHAIN, [AuditEvent("send", "é\n<", "a", "b"), *letters(4)])
    rows = [json.loads(line) for line in shell("audit", "export", "--chain", CHAIN).out.splitlines()]
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[0]["id"], rows[0]["from"], rows[0]["to"], rows[0]["event"]) == ("é\n<", "a", "b", "send")
    assert rows[0]["previous"] == blake3(b"").hexdigest()
    before = rows[0]["hash"]
    for row in rows[1:]:
        text = json.dumps({key: row[key] for key in ("event", "id", "from", "to")}, separators=(",", ":"))
        before = blake3(before.encode() + text.encode()).hexdigest()
        assert row["hash"] == before
        assert "previous" not in row


def test_export_takes_a_part_with_the_hash_before_it(shell: Shell, ten: list[AuditEvent], intruder: Intruder) -> None:
    hashes = [row[5] for row in intruder.rows()]
    lines = shell("audit", "export", "--chain", CHAIN, "--from", "3", "--to", "5").out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["seq"], row["hash"]) for row in rows] == [(n, hashes[n]) for n in (3, 4, 5)]
    assert rows[0]["previous"] == hashes[2]
    assert shell("audit", "export", "--chain", CHAIN, "--from", "10").out == ""


def test_export_begins_after_dropped_rows_with_the_hash_of_their_anchor(
    shell: Shell, ten: list[AuditEvent], intruder: Intruder
) -> None:
    hashes = [row[5] for row in intruder.rows()]
    append("operators", letters(1))
    intruder.cut(4, with_head=True)
    anchor_all()
    intruder.run("delete from queues_audit where seq < 4 and chain_id = %s", intruder.number())
    append(CHAIN, letters(1, first=4))
    rows = [json.loads(line) for line in shell("audit", "export").out.splitlines()]
    assert [(row["chain"], row["seq"]) for row in rows] == [("operators", 0), (CHAIN, 4)]
    assert rows[1]["previous"] == hashes[3]


# anchor, key


def test_anchor_signs_now(shell: Shell, ten: list[AuditEvent]) -> None:
    assert shell("audit", "anchor").out == "peerbus: anchor 1 at seq 9\n"
    again = shell("audit", "anchor")
    assert (again.status, again.out, "No chain has grown" in again.err) == (0, "", True)
    append(CHAIN, letters(1))
    [shown] = shell("audit", "anchor", "--json").json
    assert (shown["chain"], shown["number"], shown["seq"]) == (CHAIN, 2, 10)
    assert AuditAnchor.objects.filter(kind="manual").count() == 2


def test_key_prints_what_other_hosts_must_trust(shell: Shell) -> None:
    shown = shell("audit", "key", "--json").json
    assert len(shown["fingerprint"]) == 32
    text = shell("audit", "key").out
    assert shown["public_key"] in text
    assert shown["fingerprint"] in text


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("verify", "--chain", "nope"), 1, "no such chain: 'nope'"),
        (("show", "--chain", "nope"), 1, "no such chain: 'nope'"),
        (("export", "--chain", "nope"), 1, "no such chain: 'nope'"),
        (("export", "--from", "3"), 2, "--chain"),
        (("export", "--chain", "x", "--from", "-1"), 2, "no row's number"),
        (("show", "--limit", "0"), 2, "whole number"),
        ((), 2, "verify|show|export|anchor|key"),
    ],
)
def test_refusals_have_a_reason_and_a_status(
    shell: Shell, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    outcome = shell("audit", *arguments)
    assert outcome.status == status
    assert reason in outcome.err


def test_a_broken_key_is_said_in_words(shell: Shell, ten: list[AuditEvent], home: Path) -> None:
    (home / "audit_key").write_text("nonsense")
    for do in ("verify", "anchor", "key"):
        outcome = shell("audit", do)
        assert (outcome.status, "no Ed25519 key" in outcome.err) == (1, True)


def test_a_database_that_was_not_migrated_is_said_in_words(shell: Shell, intruder: Intruder) -> None:
    intruder.run("alter table queues_auditchain rename to hidden")
    try:
        outcome = shell("audit", "verify")
    finally:
        intruder.run("alter table hidden rename to queues_auditchain")
    assert (outcome.status, "manage.py migrate" in outcome.err) == (1, True)


def test_a_database_that_is_away_is_said_in_words(tmp_path: Path) -> None:
    environment = os.environ | {"DATABASE_URL": "postgresql://127.0.0.1:1/nowhere", "DATA_DIR": str(tmp_path)}
    outcome = subprocess.run(
        [sys.executable, "manage.py", "audit", "verify"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert outcome.returncode == 1
    assert "The database is away: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_events_that_still_wait_are_told(shell: Shell, ten: list[AuditEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.audit.verify.seal", lambda using: 0)
    journal(CHAIN, letters(3))
    outcome = shell("audit", "verify")
    assert outcome.status == 0
    assert "3 events wait in the journal" in outcome.err
