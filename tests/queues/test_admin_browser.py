"""One walk through the operators' pages in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.api import publish
from queues.models import Queue

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    if DRIVER is None or BROWSER is None:
        missing = "there is no chromium with its chromedriver"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.django_db(transaction=True)
def test_an_operator_logs_in_makes_a_queue_and_reads_a_message(
    browser: webdriver.Chrome, live_server: LiveServer
) -> None:
    User.objects.create_superuser("admin", "", "password")
    wait = WebDriverWait(browser, 20)
    browser.get(f"{live_server.url}/admin/")
    browser.find_element(By.NAME, "username").send_keys("admin")
    browser.find_element(By.NAME, "password").send_keys("password")
    browser.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    wait.until(seen.text_to_be_present_in_element((By.ID, "site-name"), "Fivewire"))

    browser.get(f"{live_server.url}/admin/queues/queue/add/")
    browser.find_element(By.NAME, "name").send_keys("orders")
    browser.find_element(By.NAME, "_save").click()
    wait.until(seen.text_to_be_present_in_element((By.CLASS_NAME, "messagelist"), "orders"))

    publish("orders", b'{"hello": "operator"}')
    browser.refresh()
    browser.find_element(By.CSS_SELECTOR, ".field-ready a").click()
    wait.until(seen.presence_of_element_located((By.CSS_SELECTOR, ".field-number a"))).click()
    wait.until(seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-payload_shown pre"), '"hello": "operator"'))
    assert Queue.objects.get().name == "orders"
