"""A browser, and a person who is logged in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from tests.tools import need

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip
#: Notes the messages of each page for `until_said`: one that loads itself again shows them for a moment only.
LISTEN = """
addEventListener("DOMContentLoaded", () => {
  const said = document.querySelector(".messagelist");
  if (said) sessionStorage.setItem("said", (sessionStorage.getItem("said") ?? "") + said.textContent);
});
"""


@pytest.fixture
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    need(request.config, "Chromium")
    options = webdriver.ChromeOptions()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LISTEN})
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # no desktop makes it active
    yield driver
    said = [entry["message"] for entry in cast(Any, driver).get_log("browser")]
    driver.quit()
    assert not [text for text in said if "Content Security Policy" in text], "a page needs what its policy forbids"


@pytest.fixture
def operator(transactional_db: None, live_server: LiveServer, browser: webdriver.Chrome) -> webdriver.Chrome:
    """A browser in which a superuser is logged in."""
    User.objects.create_superuser("admin", "", "password")
    browser.get(f"{live_server.url}/admin/")
    browser.find_element(By.NAME, "username").send_keys("admin")
    browser.find_element(By.NAME, "password").send_keys("password")
    browser.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    WebDriverWait(browser, 20).until(seen.presence_of_element_located((By.ID, "logout-form")))  # not on the login page
    return browser
