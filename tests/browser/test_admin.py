"""One walk through the operators' pages in a browser."""

from __future__ import annotations

from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.api import publish
from queues.models import Queue


def test_an_operator_makes_a_queue_and_reads_a_message(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    browser, wait = operator, WebDriverWait(operator, 20)
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
