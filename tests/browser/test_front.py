"""The front page in a browser: it refreshes itself in place, and says what is wrong while it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.models import State
from queues.operations.messages import purge
from queues.operations.monitor import reader
from tests.queues.store import make_node, make_queue, store

PROBLEMS = (By.ID, "broker-problems")
#: Marks the page, which is gone when it is loaded again; and says whether it is there.
MARK, MARKED = "window.marked = true", "return window.marked === true"
#: Pixels by which a page is wider than its window.
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(autouse=True)
def _a_look_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("queues.operations.monitor.database_disk", lambda using: None)  # this machine's may be full
    reader.forget()
    yield
    reader.forget()


def test_the_front_page_follows_the_broker_in_place(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    wait = WebDriverWait(operator, 30)
    make_node()
    queue = make_queue("orders")
    operator.get(f"{live_server.url}/admin/")
    operator.execute_script(MARK)
    wait.until(seen.text_to_be_present_in_element(PROBLEMS, "Nothing is wrong."))
    link = operator.find_element(By.CSS_SELECTOR, "#broker-busiest a")
    link.send_keys("")  # the keyboard is here, and stays when the table is drawn anew

    store(queue, State.READY, 321)
    store(queue, State.DEAD, 4)
    wait.until(seen.text_to_be_present_in_element((By.ID, "broker-figures"), "321"))
    wait.until(seen.text_to_be_present_in_element(PROBLEMS, "orders has 4 dead letters"))
    assert operator.switch_to.active_element.text == "orders"
    assert operator.find_element(*PROBLEMS).get_attribute("aria-live") == "polite"

    purge("orders", [State.DEAD])
    wait.until(seen.text_to_be_present_in_element(PROBLEMS, "Nothing is wrong."))
    assert operator.execute_script(MARKED), "the page was loaded again"


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (375, 800)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_front_page_fits_a_desk_and_a_phone(
    operator: webdriver.Chrome, live_server: LiveServer, width: int, height: int, theme: str
) -> None:
    make_node()
    store(make_queue("orders with a long name that has to fit " + "x" * 100), State.DEAD, 4)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    operator.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    operator.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    operator.get(f"{live_server.url}/admin/")
    WebDriverWait(operator, 20).until(seen.text_to_be_present_in_element(PROBLEMS, "dead letters"))
    assert operator.execute_script(TOO_WIDE) <= 0
