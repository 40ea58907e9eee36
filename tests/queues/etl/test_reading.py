"""What other programs read in the output, by the lines of docs/reading.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from brokersite.environment import CHECKOUT
from tests.queues.etl.conftest import Etl

pytestmark = pytest.mark.timeout(300)

AWKWARD = (
    "007", "0x1p3", "-Infinity", "NaN", "1e5", "\u0663", "\uff11\uff12", "epoch", "now", "null", "true", "2026-11-22",
    "2026-11-22 10:00:00", "12:30", "a/b=c %d", "приём", "%30", "-", "..",
)  # fmt: skip
PAGE = CHECKOUT / "docs" / "reading.md"
INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"


def lines() -> dict[str, str]:
    """The program of each reader."""
    return dict(re.findall(r"^## (\w+)\n.*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def rows_of(table: Any) -> list[dict[str, Any]]:
    if hasattr(table, "fetchall"):
        return [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]
    if hasattr(table, "to_pylist"):
        return list(table.to_pylist())
    if hasattr(table, "to_dicts"):
        return list(table.to_dicts())
    if hasattr(table, "to_dict"):
        return list(table.to_dict("records"))
    return [row.asDict(recursive=True) for row in table.collect()]


def test_every_reader_has_names_as_text_and_fields_that_were_asked_for_later(etl: Etl, tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    for number, name in enumerate(AWKWARD):
        etl.finish(number, queue=name)
    etl.export()
    for number, name in enumerate(AWKWARD, 100):
        etl.finish(number, queue=name, payload=b'{"order": %d}' % number, content=2)
    etl.export(bodies="json", body_schema="`order` bigint")
    assert [path for path in etl.output.rglob("*") if path.suffix == ".crc"] == []
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("fivewire")
    expected = {number + later: name for number, name in enumerate(AWKWARD) for later in (0, 100)}
    programs = lines()
    assert set(programs) == {"Spark", "DuckDB", "Polars", "PyArrow", "pandas", "Iceberg"}
    try:
        for reader, program in programs.items():
            given: dict[str, Any] = {"OUTPUT": str(etl.output), "spark": etl.spark, "catalog": catalog}
            exec(program, given)
            rows = {row["id"]: row for row in rows_of(given["table"])}
            assert {id: row["queue_name"] for id, row in rows.items()} == expected, reader
            fields = {id: row["data"]["order"] for id, row in rows.items() if row["data"]}
            assert {id: field for id, field in fields.items() if field is not None} == {
                id: id for id in expected if id >= 100
            }, reader
            if reader != "Iceberg":
                assert {id: row["queue"] for id, row in rows.items()} == expected, reader
                day = str if reader == "Spark" else type(rows[0]["finished_at"].date())
                assert {type(row["dt"]) for row in rows.values()} == {day}, reader
        catalog.close()
    finally:
        etl.spark.conf.unset(INFERENCE)


