"""Merging small files: fewer files, the same rows, whenever it is cut off."""

from __future__ import annotations

from typing import Any

import pytest

from queues.etl.job.compaction import add_small, compact, due
from queues.etl.job.files import Files
from queues.etl.job.ledger import Ledger
from tests.queues.etl.conftest import Etl, ago

pytestmark = pytest.mark.timeout(300)


class Killed(BaseException):
    """The job died here."""


def merge(etl: Etl, least: int = 3) -> dict[str, int]:
    files = Files(etl.spark, str(etl.output))
    ledger = Ledger(files)
    ledger.recover()
    return compact(etl.spark, ledger, least)


def test_small_files_of_a_day_that_is_over_are_merged(etl: Etl) -> None:
    over = ago(days=2)
    for n in range(3):
        etl.finish(n, finished_at=over)
        etl.finish(100 + n)
        etl.export()
    before = etl.rows()
    assert merge(etl) == {"directories": 1, "files": 3, "rows": 3}
    assert sorted(etl.rows(), key=lambda row: row["id"]) == sorted(before, key=lambda row: row["id"])
    assert len(etl.files()) == 4
    assert merge(etl) == {"directories": 0, "files": 0, "rows": 0}
    etl.finish(7, finished_at=over)
    etl.export()
    assert etl.ids() == [0, 1, 2, 7, 100, 101, 102]


def test_files_whose_columns_have_another_type_since_stay_apart_and_hinder_no_run(etl: Etl) -> None:
    over = ago(days=2)
    for n, kind in enumerate(("bigint", "bigint", "bigint", "string")):
        etl.finish(n, finished_at=over, payload=b'{"order": 7}', content=2)
        if kind == "bigint":
            etl.finish(10 + n, queue="others", finished_at=over)
        etl.export(bodies="json", body_schema=f"`order` {kind}")
    assert merge(etl) == {"directories": 1, "files": 3, "rows": 3}
    assert merge(etl) == {"directories": 0, "files": 0, "rows": 0}
    assert len(etl.files("messages/**/queue=orders/*.parquet")) == 4
    assert len(etl.files("messages/**/queue=others/*.parquet")) == 1


@pytest.mark.parametrize(("name", "call"), [("remove", 2), ("move", 3)])
def test_a_merging_that_is_cut_off_loses_no_row_and_repeats_none(
    etl: Etl, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    over = ago(days=2)
    for n in range(2):
        etl.finish(n, finished_at=over)
        etl.export()
    real: Any = getattr(Files, name)
    calls = iter(range(1, 1000))

    def counting(self: Files, *args: Any) -> Any:
        if next(calls) >= call:
            raise Killed
        return real(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Files, name, counting)
        with pytest.raises(Killed):
            merge(etl, least=2)
    merge(etl)  # what it begins with is what every run begins with
    assert etl.ids() == [0, 1]


def test_few_files_of_days_long_over_are_forgotten_and_those_of_live_messages_never_known() -> None:
    days = [f"messages/dt=2026-11-{day:02}/queue=q" for day in range(1, 11)]
    small = add_small({}, [f"{day}/run-1.parquet" for day in days] + ["live/run-1.parquet"], "2026-11-11", 3)
    assert list(small) == days[3:]
    small = add_small(small, [f"{days[5]}/run-{n}.parquet" for n in (2, 3)], "2026-12-01", 3)
    assert due(small, "2026-12-01", 3) == {days[5]: ["run-1.parquet", "run-2.parquet", "run-3.parquet"]}
    assert due(small, "2026-11-06", 3) == {}
