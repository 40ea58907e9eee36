"""A Hydra network, as an operator sees it in a browser."""

from __future__ import annotations

from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as seen

from hydra.models import Node
from hydra.notifications import CommandAction
from tests.browser.hand import answer_yes, click, until, until_said
from tests.hydra.protocol.driver import leader_of_three
from tests.hydra.rows import running
from tests.waiting import wait_until


def test_an_operator_looks_at_a_network_and_stops_its_leader(
    operator: webdriver.Chrome, live_server: LiveServer
) -> None:
    with running("alpha", leader_of_three()) as alpha:
        operator.get(f"{live_server.url}/admin/hydra/node/")
        assert "leading" in operator.find_element(By.CSS_SELECTOR, "#result_list tbody tr").text
        click(operator, By.LINK_TEXT, "alpha")
        until(operator, seen.presence_of_element_located((By.CSS_SELECTOR, "svg.hydra-network .leader")))
        drawn = (By.CSS_SELECTOR, "svg.hydra-network text")
        labels = until(operator, lambda page: [text.text for text in page.find_elements(*drawn)])
        assert labels == ["alpha", "leading", "n1", "1 link away", "n2", "1 link away"]
        click(operator, By.CSS_SELECTOR, ".field-members_table a[href*='/drop/12/']")
        until(operator, seen.text_to_be_present_in_element((By.ID, "content"), "n2, id 12"))
        answer_yes(operator, "Yes, drop it")
        until_said(operator, "Asked alpha to drop n2.")
        click(operator, By.CSS_SELECTOR, ".object-tools a[href$='/resign/']")
        answer_yes(operator, "Yes, stop leading")
        until_said(operator, "Asked alpha to stop leading.")
        wait_until(lambda: len(alpha.commands) == 2, "both commands are there")
    assert [command.action for command in alpha.commands] == [CommandAction.DROP, CommandAction.RESIGN]

    operator.refresh()
    click(operator, By.CSS_SELECTOR, ".object-tools a[href$='/delete/']")
    answer_yes(operator, "Yes, forget")
    until_said(operator, "Forgot alpha.")
    assert not Node.objects.exists()
