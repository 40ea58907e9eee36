"""The pages that README and docs show, with the figures of a broker at work; `make screenshots` draws them anew."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.models import Queue, QueueSample, State
from queues.operations.monitor import reader
from tests.queues.store import make_node, make_queue, store

#: Queues, and the messages of each a minute.
RATES = {"orders": 5200, "emails": 2100, "invoices": 640}
MINUTES = 60


@pytest.fixture
def at_work(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node, three queues with messages, and an hour of history."""
    monkeypatch.setattr("queues.operations.monitor.database_disk", lambda using: None)
    reader.forget()
    make_node()
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    totals = {minute: [0, 0] for minute in range(MINUTES)}
    for name, rate in RATES.items():
        queue = make_queue(name)
        store(queue, State.READY, rate // 20)
        for minute, total in totals.items():
            published = int(rate * (1 + 0.4 * math.sin(minute / 7 + rate)))
            ready = int(rate * (0.05 + 0.04 * math.sin(minute / 5 + rate)))
            total[0] += published
            total[1] += ready
            sample(queue.pk, end - timedelta(minutes=minute), published, ready)
    for minute, (published, ready) in totals.items():
        sample(0, end - timedelta(minutes=minute), published, ready)
    store(Queue.objects.get(name="emails"), State.DEAD, 4)


def sample(queue: int, at: datetime, published: int, ready: int) -> None:
    QueueSample.objects.create(
        queue=queue, at=at, seconds=60, ready=ready, leased=0, delayed=0, dead=0, peak=ready, published=published,
        settled=published, died=0, last_node=1 if queue == 0 else None, database_bytes=1 << 28 if queue == 0 else None,
    )  # fmt: skip


def test_the_pages_of_the_documentation(
    at_work: None, operator: webdriver.Chrome, live_server: LiveServer, request: pytest.FixtureRequest
) -> None:
    directory: Path | None = request.config.getoption("screenshots")
    wait = WebDriverWait(operator, 30)
    operator.set_window_size(1280, 1180)
    for address, name, selector, text in (
        ("", "admin-front.png", "#broker-problems", "emails has 4 dead letters"),
        ("queues/queue/", "admin-queues.png", "#result_list", "invoices"),
    ):
        operator.get(f"{live_server.url}/admin/{address}")
        wait.until(seen.text_to_be_present_in_element((By.CSS_SELECTOR, selector), text))
        assert operator.find_elements(By.CSS_SELECTOR, f"{'main' if not address else selector} svg")
        if directory is not None:
            operator.save_screenshot(str(directory / name))
