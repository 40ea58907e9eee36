"""Figures by hour and queue: what SQL says of the same rows, however often they are computed."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from queues.etl.job.database import JobConnection
from queues.models import EtlRun, EtlState, Rollup
from tests.queues.etl.conftest import Etl

pytestmark = pytest.mark.timeout(300)

PERCENTILES = """select percentile_disc(array[0.5, 0.95, 0.99])
        within group (order by extract(epoch from {time} - published_at))
    from queues_archive where queue_id = %s and outcome = 0"""


class Killed(BaseException):
    """The job died here."""


def fill(etl: Etl, at: datetime) -> int:
    """A thousand messages finished in one hour, of two producers."""
    queue = etl.queue("orders")
    etl.sql(
        "insert into queues_apikey (id, name, digest, hint, protocols, publish, consume, manage)"
        " select n, 'key' || n, n, 'h', '{}', '{}', '{}', '{}' from generate_series(1, 2) n on conflict do nothing"
    )
    etl.sql(
        "insert into queues_archive (id, queue_id, outcome, attempts, producer_id, consumer_id, published_at,"
        " delivered_at, finished_at, size) select n, %s, case when n %% 10 = 0 then 1 else 0 end, n %% 3,"
        " 1 + (n %% 4)::int / 3, null, %s::timestamptz - n * interval '1.7 ms',"
        " %s::timestamptz - n * interval '0.3 ms', %s, 10 from generate_series(1, 1000) n", queue, at, at, at,
    )  # fmt: skip
    return queue


def rollups() -> list[Any]:
    return list(Rollup.objects.order_by("hour", "queue").values())


def test_an_hour_has_the_figures_that_sql_has(etl: Etl) -> None:
    at = timezone.now().replace(minute=30, second=0, microsecond=0) - timedelta(hours=2)
    queue = fill(etl, at)
    etl.finish(5000, queue="other", finished_at=at)
    etl.run()
    orders, other = rollups()
    assert (orders["hour"], orders["queue"], other["queue"]) == (at.replace(minute=0), "orders", "other")
    assert (orders["acknowledged"], orders["expired"], orders["attempts"], orders["bytes"]) == (900, 100, 1000, 10_000)
    for name, time in (("deliver", "delivered_at"), ("settle", "finished_at")):
        ((wanted,),) = etl.sql(PERCENTILES.format(time=time), queue)
        assert [orders[f"{name}_p{n}"] for n in (50, 95, 99)] == pytest.approx([float(one) for one in wanted], abs=1e-5)
    assert orders["producers"] == [{"name": "key1", "count": 750}, {"name": "key2", "count": 250}]
    assert (orders["consumers"], other["acknowledged"], other["producers"]) == ([], 1, [])


def test_late_rows_change_their_hour_and_nothing_is_counted_twice(etl: Etl) -> None:
    at = timezone.now().replace(minute=30, second=0, microsecond=0) - timedelta(hours=30)
    etl.finish(1, 2, finished_at=at)
    etl.run()
    etl.finish(3, finished_at=at)
    etl.finish(4)
    etl.run(run=2)
    first = rollups()
    assert [row["acknowledged"] for row in first] == [3, 1]
    assert etl.run(run=3)["hours"] == 0
    assert rollups() == first


def test_rollups_that_a_killed_run_has_not_made_are_made_by_the_next(
    etl: Etl, monkeypatch: pytest.MonkeyPatch
) -> None:
    etl.finish(1)

    def die(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(JobConnection, "replace_rollups", die)
        with pytest.raises(Killed):
            etl.run()
    assert (etl.ids(), rollups()) == ([1], [])
    etl.run(run=2)
    assert [row["acknowledged"] for row in rollups()] == [1]
    assert etl.sql("select count(*) from queues_rollupdraft") == [(0,)]


def test_dead_letters_are_counted_by_their_reason_and_stay_counted(etl: Etl) -> None:
    at = timezone.now().replace(minute=30, second=0, microsecond=0) - timedelta(hours=2)
    queue, morgue = etl.queue("orders"), etl.queue("morgue")
    moved = json.dumps({"dead-letter": {"queue": "orders", "error": "late", "at": at.isoformat()}})
    etl.sql(
        "insert into queues_message (id, queue_id, state, payload, error, dead_at, headers) values"
        " (1, %s, 3, 'x', 'boom', %s, null), (2, %s, 3, 'x', 'boom', %s, null),"
        " (3, %s, 0, 'x', null, null, %s), (4, %s, 3, 'x', null, %s, null)",
        queue, at, queue, at, morgue, moved, queue, at,
    )  # fmt: skip
    etl.finish(5, queue="morgue", headers=moved, finished_at=at)
    etl.run()
    (row,) = [row for row in rollups() if row["queue"] == "orders"]
    reasons = sorted(row["dead_reasons"], key=lambda one: str(one["name"]))
    assert row["dead_letters"] == 5
    assert reasons == [{"name": "boom", "count": 2}, {"name": "late", "count": 2}, {"name": "unknown", "count": 1}]
    etl.sql("delete from queues_message where id in (1, 2)")
    etl.finish(6, finished_at=at)
    etl.run(run=2)
    (row,) = [row for row in rollups() if row["queue"] == "orders"]
    assert (row["dead_letters"], row["acknowledged"]) == (5, 1)


def test_the_hour_of_which_a_first_window_has_a_part_is_not_rolled_up(etl: Etl) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    etl.finish(1, finished_at=hour + timedelta(minutes=40))
    etl.finish(2, finished_at=hour + timedelta(minutes=70))
    etl.run(since=(hour + timedelta(minutes=30)).isoformat())
    assert etl.ids() == [1, 2]
    assert [row["hour"] for row in rollups()] == [hour + timedelta(hours=1)]


def test_drafts_of_another_run_stay_and_those_of_an_ended_one_are_removed(etl: Etl) -> None:
    busy = EtlRun.objects.create(trigger="test", output="/elsewhere", state=EtlState.QUEUED)
    over = EtlRun.objects.create(trigger="test", output="/elsewhere", state=EtlState.LOST, ended_at=timezone.now())
    counts = ", ".join(["0"] * 8)
    for run in (busy.pk, over.pk):
        etl.sql(
            "insert into queues_rollupdraft (run, hour, queue, acknowledged, expired, purged, dropped, removed,"
            " dead_letters, attempts, bytes, dead_reasons, producers, consumers)"
            f" values (%s, now(), 'x', {counts}, '[]', '[]', '[]')", run,
        )  # fmt: skip
    etl.finish(1, finished_at=timezone.now() - timedelta(hours=2))
    etl.run(run=over.pk + 1)
    assert rollups()
    assert etl.sql("select run from queues_rollupdraft") == [(busy.pk,)]
