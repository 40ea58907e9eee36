"""Every page of the admin: nothing serious for axe-core, light or dark, and nothing wider than a phone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from urllib.parse import parse_qs

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import resolve
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import WebDriverWait

from queues.models import State
from queues.operations.monitor import reader
from tests.brokersite.one_of_each import one_of_each
from tests.browser.hand import until
from tests.browser.looks import DESK, bring_axe, faults, set_size
from tests.lengths import lengths
from tests.queues.store import make_queue, store
from tests.rigs.control_room.pages import Page, admin_pages
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(1200)

#: Names and texts as long as they may be, without a place to break a line at.
LONG = "x" * 200
#: The kinds of pages where most of the work is done.
FEW = (
    "index", "queues_queue_changelist", "queues_queue_change", "queues_queue_purge", "queues_queue_import_definitions",
    "queues_message_find, something", "queues_message_operate, move", "queues_message_change",
    "queues_queue_changelist, posted purge",
)  # fmt: skip
#: Posts a form from a page that has a token for it.
POST = """
const form = document.createElement("form");
form.method = "post";
const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
for (const [name, values] of Object.entries({...arguments[0], csrfmiddlewaretoken: token}))
  for (const value of [values].flat()) {
    const input = document.createElement("input");
    Object.assign(input, {type: "hidden", name, value});
    form.append(input);
  }
document.body.append(form);
form.submit();
"""


@pytest.fixture(autouse=True)
def _a_look_at_once() -> Iterator[None]:
    reader.forget()
    yield
    reader.forget()


@pytest.mark.parametrize("every", lengths(short=False, long=True))
def test_every_page_is_readable_in_light_and_dark_and_fits_a_phone(
    operator: webdriver.Chrome, live_server: LiveServer, client: Client, request: pytest.FixtureRequest, every: bool
) -> None:
    bring_axe(operator, request.config)
    set_size(operator, *DESK)
    user = User.objects.get(username="admin")
    client.force_login(user)
    queue = make_queue(f"orders {LONG}")
    body = b'{"to": "%s", "n": [1, 2, 3]}' % (LONG * 3).encode()
    store(queue, State.DEAD, payload=body, error=f"no such account: {LONG}", headers={LONG: LONG}, key=LONG)
    one_of_each()
    shown = {kind(page): page for page in reversed(admin_pages(user))}
    assert set(FEW) <= set(shown)
    wanted = [shown[one] for one in (shown if every else FEW)]
    found, judged = [], list(filter(partial(is_html, client), wanted))
    assert len(judged) >= len(FEW)
    for page in judged:
        operator.get(f"{live_server.url}{page.address}")
        if page.form is not None:
            before = until(operator, lambda page: page.find_element(By.TAG_NAME, "body"))
            operator.execute_script(POST, dict(page.form))
            WebDriverWait(operator, PATIENCE).until(seen.staleness_of(before))
        found += [f"{page.name}: {fault}" for fault in faults(operator)]
    assert not found, "\n" + "\n".join(found)


def kind(page: Page) -> str:
    """Of pages that look alike only one is judged: those of one kind."""
    path, _, asked = page.address.partition("?")
    name = resolve(path).url_name or path
    if name.endswith("_history"):
        return "history"
    if page.form is not None:
        return f"{name}, posted {page.form['action']}"
    words = parse_qs(asked)
    return f"{name}, {words.get('action', ['something'])[0]}" if words else name


def is_html(client: Client, page: Page) -> bool:
    """Whether there is a page: no redirect, no file, nothing for scripts."""
    answer = client.get(page.address) if page.form is None else client.post(page.address, dict(page.form))
    is_page = answer.headers.get("Content-Type", "").startswith("text/html")
    return answer.status_code == 200 and is_page and "Content-Disposition" not in answer.headers


def test_the_login_page_is_too(
    transactional_db: None, browser: webdriver.Chrome, live_server: LiveServer, request: pytest.FixtureRequest
) -> None:
    bring_axe(browser, request.config)
    set_size(browser, *DESK)
    browser.get(f"{live_server.url}/admin/")
    assert not faults(browser)
    browser.find_element(By.NAME, "username").send_keys("stranger")
    browser.find_element(By.NAME, "password").send_keys("wrong")
    browser.find_element(By.CSS_SELECTOR, "[type=submit]").click()
    assert until(browser, lambda page: page.find_element(By.CLASS_NAME, "errornote"))
    assert not faults(browser)
