"""Audit chains verified in parallel: the verdict is the one that reading the chain alone gives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queues.audit.anchoring import anchor_all
from queues.audit.chains import append
from queues.audit.events import GENESIS, HASH, AuditRecord, hashes_after
from queues.audit.reading import Block, Connection, read_blocks
from queues.audit.verify import Verification, VerificationProgress, verify
from queues.database.parameters import connection_parameters
from queues.etl import verdict
from queues.etl.job import chains
from queues.etl.job.blocks import first_wrong
from queues.etl.job.chains import ChainVerification, prove
from queues.etl.job.database import JobConnection
from queues.etl.job.reading import Reader
from queues.etl.job.session import _pack
from queues.etl.run_supervisor import Cancelled
from queues.models import AuditChain, AuditVerification
from tests.queues.audit.conftest import CHAIN, Intruder, letters
from tests.queues.audit.test_events import as_the_database_joins
from tests.queues.etl.conftest import Etl, config

pytestmark = pytest.mark.timeout(300)

ROWS = 60


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    """The directory in which this test's key and copies of anchors are kept."""
    settings.DATA_DIR = tmp_path
    settings.BROKER_AUDIT_KEY = None
    settings.BROKER_AUDIT_TRUSTED_KEYS = ()


@pytest.fixture
def intruder(transactional_db: None) -> Iterator[Intruder]:
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        yield Intruder(connection)


def verified(found: list[ChainVerification]) -> Verification:
    """The verdict on the only chain."""
    (outcome,) = verdict.verify_chains(found)
    assert isinstance(outcome, Verification)
    return outcome


class Rows:
    """The rows [0, 10) of a chain."""

    def __init__(self) -> None:
        self.seqs = list(range(10))
        self.events = letters(10)
        hashes = hashes_after(GENESIS, AuditRecord(self.events))
        self.hashes = [hashes[at : at + HASH] for at in range(0, len(hashes), HASH)]

    @property
    def columns(self) -> list[list[Any]]:
        return [self.seqs, self.events, self.hashes]

    def first_wrong(self) -> int | None:
        """As a query brings them."""
        seqs = b"".join(seq.to_bytes(8) for seq in self.seqs)
        return first_wrong(1, 10, seqs, b"".join(self.hashes), as_the_database_joins(self.events))


def test_executors_get_every_module_that_they_run(tmp_path: Path) -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import queues.etl.job.blocks, queues.etl.job.bodies"
    found = subprocess.run(
        [sys.executable, "-I", "-c", program, _pack(tmp_path)], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


def test_rows_that_follow_from_each_other_are_right() -> None:
    assert Rows().first_wrong() is None


@pytest.mark.parametrize("seq", range(1, 10))
def test_the_first_row_that_does_not_follow_is_found(seq: int) -> None:
    altered = Rows()
    altered.events[seq] = altered.events[seq]._replace(sender="mallory")
    assert altered.first_wrong() == seq


@pytest.mark.parametrize("seq", range(10))
def test_a_row_that_is_missing_is_found(seq: int) -> None:
    cut = Rows()
    for column in cut.columns:
        del column[seq]
    assert cut.first_wrong() == max(1, seq)


@pytest.mark.parametrize("seq", range(1, 10))
def test_a_row_that_is_there_twice_is_found(seq: int) -> None:
    twice = Rows()
    for column in twice.columns:
        column.insert(seq, column[seq])
    assert twice.first_wrong() in (seq, min(seq + 1, 9))


def proven(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[ChainVerification]:
    """The job's results, read in blocks of ten rows, two a query."""
    monkeypatch.setattr(chains, "BLOCK", 10)
    monkeypatch.setattr(chains, "ROWS_PER_QUERY", 20)
    database = JobConnection(config("").database)
    try:
        return prove(Reader(spark, database), database.chains(), worthwhile=1)
    finally:
        database.close()


TAMPERINGS: dict[str, str] = {
    "nothing": "select 1",
    "event": "update queues_audit set sender = 'mallory' where seq = 33",
    "hash": "update queues_audit set hash = decode(repeat('00', 32), 'hex') where seq = 30",
    "first": "update queues_audit set recipient = 'eve' where seq = 0",
    "boundary": "update queues_audit set event = 'x' where seq = 41",
    "last": "update queues_audit set event = 'x' where seq = 59",
    "deleted": "delete from queues_audit where seq = 31",
    "swapped": "update queues_audit set sender = 'zed' where seq in (20, 21)",
    "tail": "delete from queues_audit where seq >= 50",
    "beginning": "delete from queues_audit where seq < 5",
    "head": "update queues_audithead set hash = decode(repeat('00', 32), 'hex')",
    "all": "delete from queues_audit",
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_tampered_chain_is_judged_as_if_it_were_read_alone(
    spark: SparkSession, intruder: Intruder, monkeypatch: pytest.MonkeyPatch, tampering: str
) -> None:
    append(CHAIN, letters(25))
    anchor_all()
    append(CHAIN, letters(ROWS - 25, 25))
    intruder.run(TAMPERINGS[tampering])
    found = proven(spark, monkeypatch)
    here = verified(found)
    alone = verify(CHAIN)
    assert (here.ok, here.rows, here.dropped, here.findings) == (alone.ok, alone.rows, alone.dropped, alone.findings)
    assert here.ok == (tampering == "nothing")
    if found:
        wrong = alone.findings[0].seq if alone.findings else ROWS
        assert found[0].end <= max(wrong, found[0].first + 1) or tampering in ("head", "beginning", "first", "tail")
    assert AuditVerification.objects.count() == 2


def test_rows_rewritten_with_valid_hashes_are_found_by_their_anchor(
    spark: SparkSession, intruder: Intruder, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(CHAIN, letters(ROWS))
    anchor_all()
    intruder.rewrite(17)
    found = proven(spark, monkeypatch)
    assert found == [ChainVerification(CHAIN, 0, ROWS)]
    here = verified(found)
    assert here.findings == verify(CHAIN).findings
    assert not here.ok


def test_rows_appended_after_the_jobs_look_are_verified_too(
    spark: SparkSession, intruder: Intruder, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(CHAIN, letters(ROWS))
    found = proven(spark, monkeypatch)
    append(CHAIN, letters(5, ROWS))
    intruder.run("update queues_audit set sender = 'mallory' where seq = 62")
    here = verified(found)
    assert here.finding is not None
    assert here.finding.seq == 62


@pytest.mark.django_db(transaction=True)
def test_a_run_tells_of_a_chain_that_it_cannot_read_and_verifies_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("operators", CHAIN, "queue:orders"):
        append(name, letters(3))
    [broken] = AuditChain.objects.filter(name="operators").values_list("pk", flat=True)

    def blocks(connection: Connection, chain: int, low: int, size: int) -> Iterator[Block]:
        if chain == broken:
            raise IndexError("unforeseen")
        return read_blocks(connection, chain, low, size)

    monkeypatch.setattr("queues.audit.reading.read_blocks", blocks)
    outcomes = verdict.verify_chains([])
    assert outcomes[0] == Verification(chain="operators", error="unforeseen")
    assert [one.ok for one in outcomes[1:] if isinstance(one, Verification)] == [True, True]
    assert verdict.sentences(outcomes) == ["The audit chain operators was not read to its end: unforeseen."]
    figures = verdict.figures(outcomes)
    assert (figures["operators"]["ok"], figures[CHAIN]["ok"]) == (False, True)
    assert [record.getMessage() for record in caplog.records] == [
        "the audit chain 'operators' was not read to its end: unforeseen"
    ]


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_cancelled_while_it_verifies_ends() -> None:
    append(CHAIN, letters(3))

    def cancel(progress: VerificationProgress) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        verdict.verify_chains([], cancel)


def test_audit_rows_are_exported_once_by_day_and_chain(etl: Etl) -> None:
    append(CHAIN, letters(5))
    append("queue:a b", letters(3))
    etl.export()
    append(CHAIN, letters(4, 5))
    etl.export()
    rows = sorted((row["chain_name"], row["seq"], row["id"]) for row in etl.rows("audit"))
    assert rows == [*[(CHAIN, n, f"m{n}") for n in range(9)], *[("queue:a b", n, f"m{n}") for n in range(3)]]
    assert {path.split("/")[2] for path in etl.files("audit/**/*.parquet")} == {"chain=peerbus", "chain=queue%3Aa%20b"}
    stored = etl.sql("select encode(hash, 'hex') from queues_audit order by hash")
    assert sorted(row["hash"] for row in etl.rows("audit")) == [hash for (hash,) in stored]
