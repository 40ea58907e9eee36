"""ETL runs with real Celery workers: begun on schedule once, lost with their worker, cancelled, revoked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import connection
from django.db.models.functions import Now

from brokersite.celery import app
from queues.etl import runs, schedules
from queues.etl.options import RunOptions
from queues.models import EtlRun, EtlSchedule, EtlState
from queues.schedules.planning import save_planned
from tests.process import has_ended
from tests.queues.etl.conftest import hourly
from tests.queues.etl.workers import EtlWorker, forget_connections
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(300)

StartWorker = Callable[..., EtlWorker]

OTHERS = """pg_stat_activity
    where pid <> pg_backend_pid() and datname = current_database() and backend_type = 'client backend'"""


@pytest.fixture
def start_worker(database_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers whose jobs are without Spark."""
    forget_connections()
    started: list[EtlWorker] = []

    def start(*options: str) -> EtlWorker:
        name = f"worker{len(started)}"
        # The fake job has of the worker's environment only what the setting names.
        job = {"FAKE_JOB_DIRECTORY": str(tmp_path), "BROKER_ETL_ENVIRONMENT": "FAKE_JOB_DIRECTORY"}
        started.append(EtlWorker(name, database_url, tmp_path, *options, **job))
        return started[-1]

    yield start
    (tmp_path / "finish").touch()
    for worker in started:
        worker.stop()
    forget_connections()
    wait_until(lambda: sessions() == 0, lambda: f"{sessions()} sessions are left")


def sessions() -> int:
    """The number of other sessions in the test database."""
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {OTHERS}")
        count: int = cursor.fetchone()[0]
    return count


@pytest.fixture(autouse=True)
def output(settings, tmp_path: Path) -> None:
    settings.ETL_OUTPUT = str(tmp_path / "output")


def due_schedule() -> EtlSchedule:
    """One that runs every hour, and whose time has just come."""
    schedule = EtlSchedule(name="hourly", cron=hourly(), timezone="UTC", verify=False)
    save_planned(schedule)
    EtlSchedule.objects.update(next_run_at=Now() - timedelta(seconds=1))
    return schedule


def launch() -> EtlRun:
    return schedules.launch(RunOptions(verify="none"), "the test")


def run_in_state(state: EtlState, **fields: object) -> EtlRun:
    """Wait for the newest run to be in a state."""

    def found() -> EtlRun | None:
        return EtlRun.objects.filter(state=state, **fields).order_by("-pk").first()

    run = wait_until(found, lambda: list(EtlRun.objects.values()))
    assert isinstance(run, EtlRun)
    return run


def began(directory: Path, run: EtlRun) -> list[int]:
    """The processes of the jobs that a run has begun."""
    return [int(path.read_text()) for path in directory.glob(f"began-{run.pk}-*")]


def job_of(directory: Path, run: EtlRun) -> psutil.Process:
    [pid] = wait_until(lambda: began(directory, run), lambda: "the job")
    return psutil.Process(pid)


def test_two_beats_and_two_workers_run_what_is_due_once(start_worker: StartWorker, tmp_path: Path) -> None:
    workers = [start_worker(), start_worker()]
    for worker in workers:
        worker.wait_ready()
    schedule = due_schedule()
    run = run_in_state(EtlState.RUNNING, stage="messages", done=40)
    assert (run.trigger, run.total) == ("schedule hourly", 100)
    (tmp_path / "finish").touch()
    run = run_in_state(EtlState.SUCCEEDED)
    assert (run.rows_out, run.bytes, run.error) == (100, 2048, "")
    assert len(began(tmp_path, run)) == 1
    # Both beats have gone on asking, and both workers looking.
    look = "Task queues.etl.run_due"
    wait_until(lambda: all(worker.log.count(look) > 4 for worker in workers), lambda: "more looks")
    assert EtlRun.objects.count() == 1
    schedule.refresh_from_db()
    assert schedule.last_run == run
    assert schedule.next_run_at is not None


@pytest.mark.parametrize("end", [EtlWorker.kill, EtlWorker.stop], ids=["killed", "told to end at once"])
def test_a_run_whose_worker_is_gone_is_found_and_done_again_once(
    start_worker: StartWorker, tmp_path: Path, end: Callable[[EtlWorker], None]
) -> None:
    first = start_worker().wait_ready()
    lost = launch()
    job = job_of(tmp_path, lost)
    end(first)
    wait_until(lambda: has_ended(job), lambda: "the end of the job")
    start_worker()
    again = run_in_state(EtlState.RUNNING, restart_of=lost)
    lost.refresh_from_db()
    assert lost.state == EtlState.LOST
    assert lost.error == f"The process that looked after it ({lost.pid} on {lost.host}) is gone."
    (tmp_path / "finish").touch()
    run_in_state(EtlState.SUCCEEDED, pk=again.pk)
    assert again.trigger == f"restart of run {lost.pk}"
    assert EtlRun.objects.count() == 2
    assert len(began(tmp_path, lost)) == 1


def test_a_run_that_is_cancelled_or_revoked_ends_with_its_job_and_is_not_done_again(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker().wait_ready()
    cancelled = launch()
    job = job_of(tmp_path, cancelled)
    assert runs.cancel(cancelled.pk).cancelling
    run_in_state(EtlState.CANCELLED, pk=cancelled.pk)
    assert not job.is_running()

    terminated = launch()
    job = job_of(tmp_path, terminated)
    app.control.revoke(f"etl-run-{terminated.pk}", destination=[worker.name], terminate=True)
    run_in_state(EtlState.CANCELLED, pk=terminated.pk)
    wait_until(lambda: has_ended(job), lambda: "the end of the job")

    revoked = runs.create(RunOptions(verify="none"), trigger="the test")
    app.control.revoke(f"etl-run-{revoked.pk}", destination=[worker.name], reply=True, timeout=PATIENCE)
    schedules.publish_task(revoked)
    run_in_state(EtlState.CANCELLED, pk=revoked.pk)
    assert began(tmp_path, revoked) == []
    assert schedules.restart_lost() == []
    assert EtlRun.objects.count() == 3


def test_a_worker_goes_on_after_it_has_lost_its_connections(start_worker: StartWorker, tmp_path: Path) -> None:
    (tmp_path / "finish").touch()
    worker = start_worker().wait_ready()
    with connection.cursor() as cursor:
        cursor.execute(f"select count(pg_terminate_backend(pid)) from {OTHERS}")
    due_schedule()
    run_in_state(EtlState.SUCCEEDED)
    assert worker.process.poll() is None
    assert app.control.ping(destination=[worker.name], timeout=PATIENCE) == [{worker.name: {"ok": "pong"}}]
