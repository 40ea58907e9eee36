"""Peers and the audit chains, as an operator sees them in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen
from selenium.webdriver.support.ui import Select

from queues.audit.chains import PEERBUS, append
from queues.audit.events import AuditEvent
from queues.models import AuditVerification, Mailbox, Message, State
from queues.operations.keys import create_key
from queues.operations.verifications import verifier
from tests.browser.hand import answer_yes, click, until, until_said
from tests.queues.operations.test_mailboxes import letters, make_peer
from tests.queues.store import make_node

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    """The directory in which this test's key and copies of anchors are kept."""
    settings.DATA_DIR = tmp_path / "data"
    settings.DATA_DIR.mkdir()


def test_an_operator_disconnects_a_peer_and_frees_its_name(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    key, _ = create_key("phones")
    bob = make_peer("bob", make_node(), key)
    letters(bob, State.LEASED, 2)
    operator.get(f"{live_server.url}/admin/queues/mailbox/")
    row = operator.find_element(By.CSS_SELECTOR, "#result_list tbody tr").text
    assert "phones" in row
    assert "connected 5 minutes ago" in row
    operator.find_element(By.LINK_TEXT, "bob").click()
    click(operator, By.CSS_SELECTOR, ".object-tools a[href$='/disconnect/']")
    until(operator, seen.text_to_be_present_in_element((By.ID, "content"), "2 unacknowledged"))
    answer_yes(operator, "Yes, disconnect")
    until_said(operator, "Disconnected bob.")
    until(operator, seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-ready .readonly"), "2"))
    assert Mailbox.objects.get().node_id is None

    operator.get(f"{live_server.url}/admin/queues/mailbox/?connected=no")
    operator.find_element(By.NAME, "_selected_action").click()
    Select(operator.find_element(By.NAME, "action")).select_by_value("free_name")
    operator.find_element(By.CSS_SELECTOR, ".actions button").click()
    answer_yes(operator, "Yes, free the name")
    until_said(operator, "Freed the name bob.")
    assert Mailbox.objects.get().owner is None


def verify_now(browser: webdriver.Chrome, result: str) -> None:
    """Click, and wait for the result; nothing is left running."""
    click(browser, By.CSS_SELECTOR, "button[formaction$='/verify/']")
    until(browser, seen.text_to_be_present_in_element((By.CSS_SELECTOR, ".field-verified .readonly"), result))
    until(browser, lambda _: not verifier.running())


def test_an_operator_verifies_a_chain_and_sees_where_it_was_tampered_with(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    append(PEERBUS, [AuditEvent("send", f"m{n}", "alice", "bob") for n in range(3000)])
    operator.get(f"{live_server.url}/admin/queues/auditchain/")
    verify_now(operator, "3,000 rows are right")
    with connection.cursor() as cursor:
        cursor.execute("alter table queues_audit disable trigger user")
        cursor.execute("update queues_audit set recipient = 'mallory' where seq = 1234")
        cursor.execute("alter table queues_audit enable trigger user")
    verify_now(operator, "broken at seq 1234: altered row")
    outcomes = AuditVerification.objects.order_by("id").values_list("ok", "broken_seq")
    assert list(outcomes) == [(True, None), (False, 1234)]

    click(operator, By.CSS_SELECTOR, ".object-tools a[href*='/auditrow/']")
    until(operator, seen.text_to_be_present_in_element((By.ID, "result_list"), "2,999"))
    search = operator.find_element(By.NAME, "q")
    search.send_keys("to:mallory")
    search.submit()
    until(operator, seen.text_to_be_present_in_element((By.ID, "result_list"), "1,234"))


def test_an_operator_follows_a_letter_into_the_audit(operator: webdriver.Chrome, live_server: LiveServer) -> None:
    bob = make_peer("bob")
    letters(bob, key="m1", payload=b'{"id":"m1","from":"alice","to":"bob","body":"hello"}')
    append(PEERBUS, [AuditEvent("send", "m1", "alice", "bob"), AuditEvent("send", "m2", "alice", "carol")])
    append(PEERBUS, [AuditEvent("deliver", "m1", "alice", "bob")])
    operator.get(f"{live_server.url}/admin/queues/mailbox/{bob.pk}/change/")
    click(operator, By.CSS_SELECTOR, ".field-ready a")
    until(operator, seen.presence_of_element_located((By.CSS_SELECTOR, ".field-number a"))).click()
    envelope = (By.CSS_SELECTOR, ".field-payload_shown pre")
    until(operator, seen.text_to_be_present_in_element(envelope, '"body": "hello"'))
    assert operator.find_element(By.CSS_SELECTOR, ".field-sender .readonly").text == "alice"
    operator.find_element(By.CSS_SELECTOR, ".field-audit a").click()
    until(operator, seen.presence_of_element_located((By.CSS_SELECTOR, "td.field-event")))
    assert [cell.text for cell in operator.find_elements(By.CSS_SELECTOR, "td.field-event")] == ["send", "deliver"]
    assert Message.objects.count() == 1
