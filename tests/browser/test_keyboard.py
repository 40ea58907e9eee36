"""Operators' most frequent work by keyboard alone: focus is visible, and no page traps it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from queues.models import BulkOperation, BulkState, Queue
from tests.browser.hand import until, until_said, until_seen
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.timeout(900)

#: The focus: whether an element of this selector has it, how it shows there, and what has it.
FOCUSED = """
const one = document.activeElement, style = getComputedStyle(one);
return [one.matches(arguments[0]), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        one.outerHTML.slice(0, 100)];
"""
#: The largest number of elements that can have the focus.
PLACES = "return document.querySelectorAll('a, button, input, select, textarea, summary, [tabindex]').length"


def test_the_main_actions_of_a_night_are_done_by_keyboard_alone(
    transactional_db: None, browser: webdriver.Chrome, live_server: LiveServer
) -> None:
    User.objects.create_superuser("ann", "", "password")
    source, target = make_queue("invoices"), make_queue("other")
    store(source, count=3, payload=b'{"to": "bob"}')
    browser.get(f"{live_server.url}/admin/")
    go_to(browser, "[name=username]", "ann")
    go_to(browser, "[name=password]", "password", Keys.ENTER)

    until_seen(browser, "#broker-busiest", "invoices")
    go_to(browser, "#models a.addlink[href$='/queue/add/']", Keys.ENTER)
    until_seen(browser, "h1", "Add queue")
    go_to(browser, "[name=name]", "orders", Keys.ENTER)
    until_said(browser, "orders")
    assert Queue.objects.filter(name="orders").exists()

    go_to(browser, f"#result_list a[href*='/queue/{source.pk}/change/']", Keys.ENTER)
    until_seen(browser, ".queue-state", "Delivering.")
    go_to(browser, "#pause-form [type=submit]", Keys.ENTER)
    until_seen(browser, ".queue-state", "Paused")

    go_to(browser, ".object-tools a[href*='/find/']", Keys.ENTER)
    until_seen(browser, "#changelist tbody", "invoices")
    go_to(browser, "#operate-action", "mov")
    go_to(browser, "[name=scope]", Keys.ARROW_RIGHT)
    go_to(browser, "#operate-form button", Keys.ENTER)
    until_seen(browser, "#count", "3 messages")
    go_to(browser, "[name=target]", "other", Keys.ENTER)
    until_seen(browser, ".field-state .readonly", "done")
    assert BulkOperation.objects.get().state == BulkState.DONE
    assert assert_counts_are_exact(target).ready == 3

    browser.get(f"{live_server.url}/admin/queues/queue/{target.pk}/change/")
    go_to(browser, ".object-tools a[href$='/purge/']", Keys.ENTER)
    until_seen(browser, "#content", "other: 3 ready")
    go_to(browser, "[name=typed]", "other", Keys.ENTER)
    until_said(browser, "Removed 3 messages from other.")


def go_to(browser: webdriver.Chrome, selector: str, *keys: str) -> None:
    """Press Tab until an element has the focus, which is seen at each place, and press keys there."""
    passed: list[str] = []
    for _ in range(until(browser, lambda page: page.execute_script(PLACES)) + 10):
        is_there, is_visible, element = browser.execute_script(FOCUSED, selector)
        assert is_visible or element.startswith(("<body", "<main")), f"the focus is not seen on {element}"
        if is_there:
            ActionChains(browser).send_keys(*keys).perform()
            return
        passed.append(element)
        ActionChains(browser).send_keys(Keys.TAB).perform()
    raise AssertionError(f"{selector} is not reached, but {passed}")
