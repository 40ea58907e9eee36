"""`manage.py bench etl`: every figure is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.brokersite.rigs.bench.running import assert_whole, bench
from tests.wire.broker import Database


@pytest.mark.long
@pytest.mark.timeout(600)  # Spark's start takes long on a busy machine
def test_the_export_is_measured(store: Database, spark_defaults: Path) -> None:
    said = json.loads(bench(store, "etl", "--rows", "5000", "--json"))
    assert_whole(said["results"], "export", ("etl",))
    assert said["verified"]["export"]["messages"] == 5000
