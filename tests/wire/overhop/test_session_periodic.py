"""Overhop against a running broker: periodic jobs."""

from __future__ import annotations

from django.utils import timezone

from queues.models import PeriodicJob
from tests.wire.broker import Database
from tests.wire.overhop.peer import Peer


def test_a_listener_gives_out_a_periodic_job_as_soon_as_one_is_due(
    worker: Peer, store: Database, queue: str, django_alias: str
) -> None:
    worker.subscribe(queue, 5)
    PeriodicJob.objects.using(django_alias).create(
        name="now", queue_id=store.queue(queue), payload={"n": 1}, cron="0 0 1 1 *", timezone="UTC",
        next_run_at=timezone.now(),
    )  # fmt: skip
    assert worker.quest()["job_payload"] == {"n": 1}
    assert worker.no_quest()
    job = PeriodicJob.objects.using(django_alias).get(name="now")
    assert job.next_run_at is not None
    assert job.next_run_at > timezone.now()
