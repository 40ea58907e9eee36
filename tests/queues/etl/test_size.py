"""Which runs are small, as the database says before Spark is started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queues.database.parameters import connection_parameters
from queues.etl.job import size
from queues.etl.job.config import Config
from queues.etl.job.database import JobConnection
from queues.etl.job.session import settings
from tests.queues.etl.conftest import Etl, config
from tests.queues.segments import Range, Segment


@pytest.fixture
def store(transactional_db: None, tmp_path: Path) -> Iterator[Etl]:
    """An archive without a Spark to export it."""
    none: Any = None
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        yield Etl(none, tmp_path / "out", connection)


def is_small(given: Config) -> bool:
    database = JobConnection(given.database)
    try:
        return size.is_small(database, database.snapshot(), given)
    finally:
        database.close()


def test_a_run_is_small_by_the_rows_of_its_window_and_by_what_is_live(
    store: Etl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "SMALL", 4)
    store.finish(1, 2, 3, 4)
    assert is_small(config(tmp_path))
    now = datetime.now(UTC)
    Segment(4096, store.queue("orders"), [1, 2, 3], [Range(0, 2, None, None)], now, now).store()
    assert not is_small(config(tmp_path))
    ((snapshot,),) = store.sql("select pg_current_snapshot()::text")
    assert is_small(config(tmp_path, previous=snapshot))
    assert not is_small(config(tmp_path, previous=snapshot, since="2020-01-01"))
    assert not is_small(config(tmp_path, previous="99999999:99999999:"))  # of another database: everything is read
    store.sql(
        "insert into queues_queuecount (queue_id, ready) values (%s, 5) on conflict (queue_id) do update set ready = 5",
        store.queue("orders"),
    )
    assert not is_small(config(tmp_path, previous=snapshot))


def test_a_small_run_is_started_without_what_pays_off_for_many_rows(tmp_path: Path) -> None:
    few, many = settings(config(tmp_path), small=True), settings(config(tmp_path))
    assert "TieredStopAtLevel=1" in few["spark.driver.defaultJavaOptions"]
    assert "TieredStopAtLevel" not in many["spark.driver.defaultJavaOptions"]
    assert {few[name] for name in ("spark.sql.codegen.wholeStage", "spark.sql.shuffle.partitions")} == {"false", "1"}
    assert "spark.sql.codegen.wholeStage" not in many
