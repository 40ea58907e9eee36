"""Periodic jobs and workers, as an operator sees them in a browser."""

from __future__ import annotations

from uuid import uuid4

from django.utils import timezone
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import Select, WebDriverWait

from queues.models import Message, PeriodicJob, Worker
from tests.browser.hand import click, until_seen
from tests.queues.store import make_node, make_queue


def test_an_operator_makes_a_periodic_job_corrects_its_schedule_and_runs_it(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    make_queue("reports")
    wait = WebDriverWait(operator, 20)
    operator.get(f"{live_server.url}/admin/queues/periodicjob/add/")
    operator.find_element(By.NAME, "name").send_keys("nightly")
    operator.find_element(By.NAME, "cron").send_keys("0 25 * * *")
    zone = operator.find_element(By.NAME, "timezone")
    zone.clear()
    zone.send_keys("Europe/Berlin")
    operator.find_element(By.CSS_SELECTOR, ".field-queue .select2-selection").click()
    offered = (By.XPATH, "//li[contains(@class, 'option') and text()='reports']")
    wait.until(seen.element_to_be_clickable(offered)).click()
    operator.find_element(By.NAME, "_save").click()
    wait.until(seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-cron .errorlist"), "The hour '25'"))

    cron = operator.find_element(By.NAME, "cron")
    cron.clear()
    cron.send_keys("0 3 * * *")
    operator.find_element(By.NAME, "_save").click()
    wait.until(seen.text_to_be_present_in_element((By.CLASS_NAME, "messagelist"), "nightly"))
    assert "03:00 CE" in operator.find_element(By.CSS_SELECTOR, ".field-next_run").text

    operator.find_element(By.NAME, "_selected_action").click()
    Select(operator.find_element(By.NAME, "action")).select_by_value("run_now")
    operator.find_element(By.CSS_SELECTOR, ".actions button").click()
    wait.until(seen.text_to_be_present_in_element((By.CLASS_NAME, "messagelist"), "Published nightly as message"))
    operator.find_element(By.CSS_SELECTOR, ".field-last_run a").click()
    wait.until(seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-payload_shown pre"), "{}"))
    assert Message.objects.get().pk == PeriodicJob.objects.get().last_message_id


def test_the_page_of_a_worker_follows_what_it_does(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    subscription = {"sid": str(uuid4()), "queue": "orders", "credits": 4321, "active": 0}
    worker = Worker.objects.create(
        wid=uuid4(), node=make_node(), address="192.0.2.7:50123", connected_at=timezone.now(),
        subscriptions=[subscription],
    )  # fmt: skip
    wait = WebDriverWait(operator, 20)
    operator.get(f"{live_server.url}/admin/queues/worker/")
    click(operator, By.LINK_TEXT, str(worker.wid))
    credits = (By.CSS_SELECTOR, ".field-credits_by_queue td:nth-child(2)")
    wait.until(seen.text_to_be_present_in_element(credits, "4,321"))
    Worker.objects.update(subscriptions=[{**subscription, "credits": 17}])
    wait.until(seen.text_to_be_present_in_element(credits, "17"))
    worker.delete()
    until_seen(operator, ".live-note", "not there any more")
