"""Charts in a browser: what a person does with them by hand, by keyboard, without seeing, without the script."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from queues.models import EtlRun, EtlState, QueueSample, Rollup
from queues.store.samples import ALL_QUEUES
from tests.browser.hand import click, until, until_seen
from tests.browser.looks import DESK, PHONE, bring_axe, faults, set_size, set_theme
from tests.browser.test_keyboard import go_to

pytestmark = pytest.mark.timeout(600)

RATES, DEPTH = "#chart-rates", "#chart-depth"
#: The bytes that a browser gets for the charts of a page, compressed or not.
MAX_SCRIPTS = 75_000
#: Timers run at once.
AT_ONCE = "const later = setTimeout; window.setTimeout = (call) => later(call, 1);"
#: How many pixels of a chart are drawn in a colour of its own, not in greys.
PAINTED = """
const canvas = document.querySelector(arguments[0] + " canvas");
const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
const seen = new Set();
for (let n = 0; n < data.length; n += 4) if (data[n + 3] > 250) seen.add([...data.slice(n, n + 3)].join());
return [...seen];
"""


@pytest.fixture(autouse=True)
def _an_hour(transactional_db: None) -> None:
    """Of all queues: n messages were ready n minutes ago."""
    at = timezone.now().replace(second=0, microsecond=0)
    none = dict.fromkeys(("leased", "delayed", "dead", "peak", "died"), 0)
    QueueSample.objects.bulk_create(
        QueueSample(
            queue=ALL_QUEUES, at=at - timedelta(minutes=n), seconds=60, published=6000 + n, settled=5400,
            completed=5400, ready=10_000 + n, database_bytes=10**8, **none,
        )
        for n in range(90)
    )  # fmt: skip


def open_history(browser: webdriver.Chrome, site: str, asked: str = "") -> None:
    browser.get(f"{site}/admin/queues/queuesample/{asked}")
    until(browser, lambda page: page.find_element(By.CSS_SELECTOR, f"{DEPTH} canvas"))


def legend(browser: webdriver.Chrome, chart: str = DEPTH) -> str:
    return " ".join(browser.find_element(By.CSS_SELECTOR, f"{chart} .legend").text.split())


def rows(browser: webdriver.Chrome, chart: str = DEPTH) -> list[list[str]]:
    found: Any = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent.trim()))", f"{chart} tbody tr"
    )  # fmt: skip
    return list(found)


def plot(browser: webdriver.Chrome, chart: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, f"{chart} .u-over")


def test_the_pointer_shows_the_figures_of_a_time_in_all_charts(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    open_history(operator, live_server.url)
    assert "ready 10,00" in legend(operator), "the last figures, before anything is done"
    over = plot(operator, RATES)
    ActionChains(operator).move_to_element(over).perform()
    time, *figures = next(row for row in rows(operator) if row[0] in legend(operator))
    assert f"ready {figures[0]} unacknowledged {figures[1]}" in legend(operator)
    assert f"in {next(row for row in rows(operator, RATES) if row[0] == time)[1]}" in legend(operator, RATES)
    assert time in legend(operator, RATES), "one pointer over all charts"
    middle = rows(operator)[len(rows(operator)) // 2][0]
    assert abs(int(time[-2:]) - int(middle[-2:])) in (0, 1, 58, 59)


def test_a_time_is_drawn_large_in_all_charts_and_all_of_it_is_a_click_away(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    open_history(operator, live_server.url)
    width = plot(operator, RATES).size["width"]
    ActionChains(operator).move_to_element_with_offset(plot(operator, RATES), -width // 4, 0).click_and_hold() \
        .move_by_offset(width // 8, 5).move_by_offset(width // 8, 0).release().perform()  # fmt: skip
    ActionChains(operator).move_to_element_with_offset(plot(operator, DEPTH), 2 - width // 2, 0).perform()
    first = rows(operator)
    shown = next(n for n, row in enumerate(first) if row[0] in legend(operator))
    assert 13 <= shown <= 17, "a quarter of the hour is cut off"
    for button in operator.find_elements(By.CSS_SELECTOR, "button.whole"):
        assert button.is_displayed()
    click(operator, By.CSS_SELECTOR, f"{DEPTH} button.whole")
    assert not operator.find_element(By.CSS_SELECTOR, f"{RATES} button.whole").is_displayed()
    ActionChains(operator).move_to_element_with_offset(plot(operator, DEPTH), 2 - width // 2, 0).perform()
    assert first[0][0] in legend(operator)


def test_a_chart_is_read_and_zoomed_by_keyboard(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    open_history(operator, live_server.url)
    go_to(operator, f"{DEPTH} .u-over", Keys.HOME)
    found = rows(operator)
    assert found[0][0] in legend(operator)
    ActionChains(operator).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    assert found[2][0] in legend(operator)
    assert found[2][0] in legend(operator, RATES)
    said = operator.find_element(By.CSS_SELECTOR, f"{DEPTH} [role=status]").get_attribute("textContent") or ""
    assert found[2][0] in said
    ActionChains(operator).send_keys(Keys.END, "+", Keys.HOME).perform()
    whole = operator.find_element(By.CSS_SELECTOR, f"{DEPTH} button.whole")
    assert whole.is_displayed()
    assert found[0][0] not in legend(operator)
    ActionChains(operator).send_keys(Keys.ESCAPE, Keys.HOME).perform()
    assert not whole.is_displayed()
    assert found[0][0] in legend(operator)
    ActionChains(operator).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).send_keys(Keys.SPACE).perform()
    key = operator.find_elements(By.CSS_SELECTOR, f"{DEPTH} .key")[-1]
    assert key.get_attribute("aria-pressed") == "false"


def test_charts_follow_the_broker_and_keep_what_is_zoomed(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    operator.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": AT_ONCE})
    open_history(operator, live_server.url)
    plot(operator, DEPTH).send_keys("+")
    QueueSample.objects.update(ready=77_777)
    until_seen(operator, f"{DEPTH} .legend", "77,777")
    assert {row[1] for row in rows(operator)[:-2]} == {"77,777"}
    assert operator.find_element(By.CSS_SELECTOR, f"{DEPTH} button.whole").is_displayed()
    operator.execute_cdp_cmd("Network.enable", {})
    operator.delete_all_cookies()
    until_seen(operator, ".charts-note", "You are logged out")


def test_charts_that_come_to_a_page_later_are_drawn_too(
    operator: webdriver.Chrome, live_server: LiveServer, settings: Any
) -> None:
    settings.ETL_OUTPUT = "/nowhere"
    now = timezone.now()
    run = EtlRun.objects.create(state=EtlState.RUNNING, started_at=now, heartbeat_at=now, host="elsewhere", pid=1)
    Rollup.objects.create(queue="orders", hour=now.replace(minute=0, second=0, microsecond=0), acknowledged=41)
    operator.get(f"{live_server.url}/admin/queues/etlrun/{run.pk}/change/")
    until_seen(operator, ".etl-state", "running")
    assert not operator.find_elements(By.CSS_SELECTOR, ".charts")
    figures = {"seconds": {"messages": 3.5}}
    EtlRun.objects.update(state=EtlState.SUCCEEDED, ended_at=timezone.now(), figures=figures)
    until(operator, lambda page: page.find_element(By.CSS_SELECTOR, "#chart-messages canvas"))
    until_seen(operator, "#chart-stages tbody", "3.5 s")


def test_charts_are_seen_in_light_and_dark_and_change_with_the_theme(
    operator: webdriver.Chrome, live_server: LiveServer, request: pytest.FixtureRequest
) -> None:
    bring_axe(operator, request.config)
    set_size(operator, *DESK)
    set_theme(operator, "light")
    open_history(operator, live_server.url)
    light = until(operator, lambda page: page.execute_script(PAINTED, DEPTH))
    assert "0,114,178" in light
    set_theme(operator, "dark")
    until(operator, lambda page: "86,180,233" in page.execute_script(PAINTED, DEPTH))
    assert not faults(operator)
    set_size(operator, *PHONE)
    until(operator, lambda page: page.find_element(By.CSS_SELECTOR, f"{DEPTH} canvas").size["width"] <= PHONE[0])


def test_without_the_script_the_table_is_there(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    operator.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    operator.get(f"{live_server.url}/admin/queues/queuesample/")
    click(operator, By.CSS_SELECTOR, f"{DEPTH} summary")
    last = operator.find_elements(By.CSS_SELECTOR, f"{DEPTH} tbody tr")[-1].text
    assert re.match(r"[\d-]+ [\d:]+ (10,00\d 0 0 0|- - - -)", last)


def test_pages_without_charts_load_no_script_for_them_and_it_is_small(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    sizes = """
        return performance.getEntriesByType("resource").filter((one) => /uPlot|charts\\.js/.test(one.name))
            .reduce((sum, one) => sum + one.decodedBodySize, 0)"""
    operator.get(f"{live_server.url}/admin/queues/queue/")
    assert operator.execute_script(sizes) == 0
    open_history(operator, live_server.url)
    assert 0 < operator.execute_script(sizes) <= MAX_SCRIPTS
