"""The whole way of an ETL run, as an operator sees it: a schedule made in a browser, a Celery worker, Spark, charts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.db.models.functions import Now
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.models import EtlRun, EtlSchedule, EtlState
from tests.queues.etl.workers import EtlWorker, forget_connections
from tests.queues.store import make_queue

#: Messages that were acknowledged in the last hours.
ARCHIVED = 500
#: Seconds that Spark may take on a busy machine.
PATIENCE = 900


@pytest.fixture
def worker(spark_defaults: Path, database_url: str, tmp_path: Path) -> Iterator[EtlWorker]:
    """A Celery worker with the real job."""
    forget_connections()
    started = EtlWorker("worker", database_url, tmp_path, SPARK_MASTER="local[2]")
    yield started
    started.stop()
    forget_connections()


def archive(queue: int) -> None:
    """Messages that ended within these last hours, as engines leave them."""
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_archive_partitions((now() at time zone 'UTC')::date - 1, 1)")
        cursor.execute(
            """
            insert into queues_archive (id, queue_id, outcome, attempts, published_at, delivered_at, finished_at, size)
            select n, %s, 0, 0, at - interval '2 s', at - interval '1 s', at, 100
            from (select n, now() - n * interval '10 s' as at from generate_series(1, %s) n)
            """,
            [queue, ARCHIVED],
        )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_schedule_made_in_the_admin_runs_shows_progress_and_its_charts_appear(
    operator: webdriver.Chrome, live_server: LiveServer, worker: EtlWorker
) -> None:
    archive(make_queue("orders").pk)
    wait = WebDriverWait(operator, 20)
    operator.get(f"{live_server.url}/admin/queues/etlschedule/add/")
    operator.find_element(By.NAME, "name").send_keys("rare")
    operator.find_element(By.NAME, "cron").send_keys("0 0 29 2 *")  # not twice while the test runs
    operator.find_element(By.NAME, "_save").click()
    wait.until(seen.text_to_be_present_in_element((By.CLASS_NAME, "messagelist"), "rare"))
    worker.wait_ready()
    EtlSchedule.objects.update(next_run_at=Now() - timedelta(seconds=1))  # its time has come

    def begun(page: webdriver.Chrome) -> bool:
        page.refresh()
        return bool(page.find_elements(By.CSS_SELECTOR, ".field-last_state a"))

    WebDriverWait(operator, PATIENCE).until(begun)
    operator.find_element(By.CSS_SELECTOR, ".field-last_state a").click()
    heading = (By.CSS_SELECTOR, "#etl-progress .etl-state")
    wait.until(seen.presence_of_element_located(heading))
    patient = WebDriverWait(
        operator, PATIENCE, 0.2, ignored_exceptions=[NoSuchElementException, StaleElementReferenceException]
    )
    # The page is not reloaded: it follows by itself, from stage to stage, and shows charts at the end.
    patient.until(seen.presence_of_element_located((By.CSS_SELECTOR, "#etl-progress tr.now")))
    patient.until(
        lambda page: page.find_element(*heading).text == "succeeded" or EtlRun.objects.get().state == EtlState.FAILED
    )
    run = EtlRun.objects.get()
    assert (run.state, run.error) == (EtlState.SUCCEEDED, ""), worker.log
    assert run.trigger == "schedule rare"
    assert run.figures["tables"]["messages"]["rows_out"] == ARCHIVED
    patient.until(seen.presence_of_element_located((By.CSS_SELECTOR, "#chart-messages canvas")))
    assert operator.find_element(By.CSS_SELECTOR, "#chart-queues tbody tr").text == f"orders {ARCHIVED}"

    operator.get(f"{live_server.url}/admin/queues/rollup/")
    operator.find_element(By.CSS_SELECTOR, "#chart-settle summary").click()
    cells = {cell.text for cell in operator.find_elements(By.CSS_SELECTOR, "#chart-settle tbody td")}
    assert "2 s" in cells
