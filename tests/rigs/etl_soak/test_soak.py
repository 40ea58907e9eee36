"""The soak itself: it passes on what is right, and finds what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pytest_django import DjangoDbBlocker

from brokersite.rigs.etl.scratch import environment, scratch_database
from queues.database.parameters import connection_parameters
from queues.etl.errors import ScratchBusy
from tests.queues.etl.conftest import Etl, ago
from tests.rigs.etl_soak import runner
from tests.rigs.etl_soak.checking import Comparison, compare
from tests.rigs.etl_soak.exports import KillStage
from tests.rigs.etl_soak.report import Pair, SoakPlan, SoakReport
from tests.rigs.etl_soak.runner import Soak

pytestmark = pytest.mark.timeout(3000)


def compared(etl: Etl, tmp_path: Path) -> Comparison:
    directory = tmp_path / "soak"
    directory.mkdir(exist_ok=True)
    return compare("default", etl.output, directory, environment("default", directory))


@pytest.fixture
def exported(etl: Etl) -> Etl:
    """Two days and two queues in the archive and in the output."""
    etl.finish(1, 2, 3)
    etl.finish(4, 5, queue="other", attempts=2, outcome=4)
    etl.finish(6, finished_at=ago(days=2))
    etl.export()
    return etl


@pytest.mark.long  # the next test has a queue whose output is right
def test_an_output_that_has_what_the_archive_has_does_not_differ(exported: Etl, tmp_path: Path) -> None:
    found = compared(exported, tmp_path)
    assert found.differences == ()
    assert found.archive == found.output
    assert sorted((queue, group.rows, group.ids) for (_, queue), group in found.output.items()) == [
        ("orders", 1, 1), ("orders", 3, 3), ("other", 2, 2),
    ]  # fmt: skip
    assert found.rows == 6


def test_an_output_that_is_wrong_is_told_by_day_queue_and_id(etl: Etl, tmp_path: Path) -> None:
    for first, queue in enumerate(("lost", "repeated", "moved", "changed", "unread", "right")):
        etl.finish(10 * first + 1, 10 * first + 2, queue=queue)
    etl.export()

    def file(queue: str) -> Path:
        (path,) = etl.output.glob(f"messages/*/queue={queue}/*.parquet")
        return path

    file("repeated").with_name("again.parquet").write_bytes(file("repeated").read_bytes())
    file("lost").unlink()
    file("moved").rename(file("changed").with_name("moved.parquet"))
    etl.sql("update queues_archivedmessage set attempts = 1 where id = 32")
    etl.finish(43, queue="unread")
    found = compared(etl, tmp_path)
    told: dict[str, str] = {}
    for line in found.differences:
        if not line.startswith(" "):
            queue = line.split(" ")[1].removesuffix(":")
        told[queue] = told.get(queue, "") + line.split(": ", 1)[1] + "\n"
    assert sorted(told) == ["changed", "lost", "moved", "repeated", "unread"]
    assert told["lost"].endswith("0 in the output\n2 rows, among them 1, 2\n")
    assert "2 rows, among them 11, 12\nrows are there twice" in told["repeated"]
    assert told["moved"].endswith("2 rows, among them 21, 22\n")
    assert "2 rows, 2 ids, checksum" in told["changed"]
    assert told["changed"].endswith("2 rows, among them 21, 22\n")
    assert told["unread"].endswith("1 rows, among them 43\n")
    report = SoakReport(SoakPlan(), comparison=found)
    assert not report.passed
    assert report.lines()[-1] == "FAILED"


def test_a_soak_that_has_compared_nothing_has_not_passed() -> None:
    assert not SoakReport(SoakPlan()).passed
    assert not SoakReport(SoakPlan(), comparison=Comparison({}, {}, ())).passed


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    pairs = [Pair(90.0, 100.0, 1.0), Pair(10.0, 100.0, 1.0), Pair(95.0, 100.0, 1.0)]
    report = SoakReport(SoakPlan(), pairs=pairs)
    assert report.figures["ratio"] == 0.9
    assert SoakReport(SoakPlan()).figures["ratio"] is None


@pytest.fixture
def other_databases(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Databases may be made and used, as they are by the command."""
    with django_db_blocker.unblock():
        yield


@pytest.mark.long
def test_a_small_soak_under_load_with_a_kill_passes(
    spark_defaults: Path, other_databases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "KillStage", [KillStage.READING])  # it shows until the run ends: no slow look misses it
    monkeypatch.setenv("SPARK_MASTER", "local[2]")
    monkeypatch.setattr(runner, "NAME", connection_parameters()["dbname"] + "_soak")
    said: list[str] = []
    report = Soak(SoakPlan(messages=3000, runs=2, kills=1, pairs=0, seed=1), said.append).run()
    figures: dict[str, Any] = report.figures
    assert report.comparison.differences == ()
    assert report.passed
    assert (figures["whole_runs"], figures["killed_runs"]) == (3, 1)
    assert "was killed reading" in report.kills[0]
    assert figures["messages_published"] >= 3000
    assert figures["dead_letters_left"] > 0
    assert figures["rows_compared"] > 2000
    assert figures["transactions_held_across_runs"] >= 2
    assert figures["rows_of_these"] >= 100
    assert figures["looks"] > 10
    queues = {queue for _, queue in report.comparison.output}
    assert {"soak-jobs", "soak-orders", "soak-letters", "soak-held"} < queues


def test_a_scratch_database_is_not_taken_from_under_another_and_is_gone_at_the_end(other_databases: None) -> None:
    name = connection_parameters()["dbname"] + "_scratch"
    there = "select count(*) from pg_database where datname = %s"
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        with scratch_database(name) as alias:
            assert alias == name
            assert connection.execute(there, (name,)).fetchone() == (1,)
            with pytest.raises(ScratchBusy, match=name), scratch_database(name):
                pass
            assert connection.execute(there, (name,)).fetchone() == (1,)
        assert connection.execute(there, (name,)).fetchone() == (0,)
