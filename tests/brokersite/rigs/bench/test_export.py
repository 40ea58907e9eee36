"""`manage.py bench etl`: every figure is there, and the archive is what a burst leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from brokersite.rigs.etl.bench import fill
from queues.database.parameters import connection_parameters
from tests.brokersite.rigs.bench.running import assert_whole, bench
from tests.wire.broker import Database


@pytest.mark.long
@pytest.mark.timeout(600)  # Spark's start takes long on a busy machine
def test_the_export_is_measured(store: Database, spark_defaults: Path) -> None:
    said = json.loads(bench(store, "etl", "--rows", "5000", "--json"))
    assert_whole(said["results"], "export", ("etl",))
    assert said["verified"]["export"]["messages"] == 5000


@pytest.mark.parametrize(("single", "rows", "segments"), [(5, 225, 5), (0, 0, 5), (100, 4500, 0)])
def test_the_archive_has_the_messages_as_rows_and_in_segments(
    transactional_db: None, single: int, rows: int, segments: int
) -> None:
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        fill(connection, 4500, 1000, single)
        stored = "select (select count(*) from queues_archivedmessage), (select count(*) from queues_archivedsegment)"
        assert connection.execute(stored).fetchone() == (rows, segments)
        messages = "select count(*), count(distinct id), count(distinct queue_id), sum(size)::int from queues_archive"
        assert connection.execute(messages).fetchone() == (4500, 4500, 4, 450_000)
