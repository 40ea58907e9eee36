"""An operator finds one message among many by its body, follows its life, and moves what a search finds."""

from __future__ import annotations

import pytest
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import Select, WebDriverWait

from queues.models import BulkOperation, BulkState, State
from queues.operations import search
from tests.queues.store import assert_counts_are_exact, make_queue, store


def test_an_operator_finds_a_message_follows_its_life_and_moves_what_a_search_finds(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    browser, wait = operator, WebDriverWait(operator, 30)
    source, target = make_queue("orders"), make_queue("other")
    store(source, count=600, payload=b'{"to": "ann"}')
    store(source, State.DEAD, payload=b'{"to": "needle"}', attempts=3, error="no such account")

    browser.get(f"{live_server.url}/admin/queues/message/")
    browser.find_element(By.CSS_SELECTOR, ".object-tools [href*=find]").click()
    browser.find_element(By.NAME, "queue").send_keys("orders")
    browser.find_element(By.NAME, "text").send_keys("needle")
    browser.find_element(By.CSS_SELECTOR, "#find-form [type=submit]").click()
    wait.until(seen.presence_of_element_located((By.CSS_SELECTOR, "#changelist tbody th a"))).click()
    life = wait.until(seen.presence_of_element_located((By.CSS_SELECTOR, ".field-life"))).text
    assert "no such account" in life

    browser.find_element(By.CSS_SELECTOR, ".object-tools [href*=publish]").click()
    body = wait.until(seen.presence_of_element_located((By.NAME, "body")))
    body.clear()
    body.send_keys('{"to": "eve"}')
    browser.find_element(By.CSS_SELECTOR, ".submit-row [type=submit]").click()
    wait.until(seen.text_to_be_present_in_element((By.CLASS_NAME, "messagelist"), "Published message"))

    browser.get(f"{live_server.url}/admin/queues/message/find/?queue=orders&state=ready")
    Select(browser.find_element(By.NAME, "action")).select_by_value("move")
    browser.find_element(By.CSS_SELECTOR, "[name=scope][value=all]").click()
    browser.find_element(By.CSS_SELECTOR, "#operate-form button").click()
    wait.until(seen.text_to_be_present_in_element((By.ID, "count"), "601 messages"))
    browser.find_element(By.NAME, "target").send_keys("other")
    browser.find_element(By.CSS_SELECTOR, ".submit-row [type=submit]").click()
    wait.until(seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-state .readonly"), "done"))
    assert BulkOperation.objects.get().state == BulkState.DONE
    assert assert_counts_are_exact(target).ready == 601


def test_a_search_goes_on_by_itself_until_all_was_looked_at(
    operator: webdriver.Chrome, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ROWS_WITH_BODIES", 10)
    wait, queue = WebDriverWait(operator, 30), make_queue("orders")
    store(queue, count=60, payload=b"other")
    store(queue, count=2, payload=b"needle")
    operator.get(f"{live_server.url}/admin/queues/message/find/?queue=orders&text=needle")
    wait.until(seen.text_to_be_present_in_element((By.ID, "progress"), "which is all"))
    assert len(operator.find_elements(By.CSS_SELECTOR, ".found tbody th")) == 2
    assert operator.find_elements(By.CSS_SELECTOR, "#operate-form .actions")
    wait.until(seen.invisibility_of_element_located((By.ID, "stop-search")))
