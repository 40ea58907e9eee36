"""A network that wants accounts: the leader logs in, and is in channels that take nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hydra.irc.inspircd import AccountNetwork
from tests.hydra.network.nodes import CHANNEL, STEADY, Network
from tests.hydra.network.people import Person
from tests.hydra.network.stores import Publish
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import Database

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[AccountNetwork]:
    need(request.config, "InspIRCd")
    with AccountNetwork() as network:
        network.register("fivewire", PASSWORD)
        yield network


@pytest.fixture(scope="module")
def chief(server: AccountNetwork) -> Iterator[Person]:
    """The operator of a channel that takes clients with an account only."""
    with Person((server.host, server.port), "chief") as person:
        person.send(f"MODE {CHANNEL} +R")
        person.wait_for(lambda: [each for each in person.lines("MODE") if "+R" in each.line])
        yield person


def test_a_leader_with_an_account_joins_and_speaks_where_others_may_not(
    store: Database, server: AccountNetwork, chief: Person, publish_there: Publish, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    file: dict[str, Any] = {"BROKER_HYDRA_IRC_ACCOUNT_PASSWORD_FILE": secret}
    names = ("--irc-user", "wire", "--irc-realname", "Five Wire")
    with Network(store, (server.host, server.port), times=STEADY, **file) as network:
        node = network.start("member", "--irc-sasl", "plain", "--irc-account", "fivewire", *names).wait_ready()
        network.leader()
        publish_there("hydra.send", f"PRIVMSG {CHANNEL} :logged in")
        chief.wait_text("logged in")
        chief.send("WHOIS hydra")
        chief.wait_for(lambda: chief.lines("318"))
        assert " hydra wire 127.0.0.1 * :Five Wire" in chief.lines("311")[-1].line
        assert " fivewire " in chief.lines("330")[-1].line
        assert PASSWORD not in " ".join(psutil.Process(node.process.pid).cmdline())
        assert node.stop() == 0, node.log
    assert PASSWORD not in node.log


def test_a_wrong_password_is_a_clear_error_and_not_tried_again_at_once(
    store: Database, server: AccountNetwork, chief: Person
) -> None:
    wrong: dict[str, Any] = {"BROKER_HYDRA_IRC_ACCOUNT_PASSWORD": "wrong", "BROKER_HYDRA_IRC_SASL": "plain"}
    with Network(store, (server.host, server.port), times=STEADY, **wrong) as network:
        node = network.start("stranger", "--irc-account", "fivewire").wait_ready()
        wait_until(lambda: any("904" in text for text in network.events("irc")), "the event")
        assert "refuses to log in the account fivewire by PLAIN: 904" in node.log
        assert "the next attempt is not before" in node.log
        assert not [each for each in chief.lines("JOIN") if each.nick == "hydra" and each.at > chief.heard[-1].at]
        assert node.stop() == 0, node.log
