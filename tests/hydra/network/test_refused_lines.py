"""A real server and a real queue: no line that IRC refuses is settled as sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.hydra.irc.ngircd import NgircdProcess
from tests.hydra.network.nodes import CHANNEL, STEADY, Network, full_environment
from tests.hydra.network.people import Person
from tests.hydra.network.stores import Publish
from tests.process import Process
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import Database


@pytest.fixture(scope="module")
def ngircd(request: pytest.FixtureRequest) -> Iterator[NgircdProcess]:
    need(request.config, "ngIRCd")
    with NgircdProcess() as server:
        yield server


@pytest.fixture(scope="module")
def chief(ngircd: NgircdProcess) -> Iterator[Person]:
    """The channel's operator, who came first."""
    with Person((ngircd.host, ngircd.port), "chief") as person:
        yield person


@pytest.fixture(scope="module")
def network(store: Database, ngircd: NgircdProcess, chief: Person) -> Iterator[Network]:
    """One node, which leads."""
    with Network(store, (ngircd.host, ngircd.port), times=STEADY) as network:
        network.start("alpha").wait_ready()
        network.leader()
        yield network


def dead(network: Network, message: int) -> str | None:
    """The reason of a message's dead letter, once it is one."""
    rows = network.rows("select error from queues_message where %s in (id, origin_id) and state = 3", message)
    return str(rows[0][0]) if rows else None


def test_a_line_that_the_server_refuses_is_a_dead_letter_with_its_words_and_can_be_put_back(
    network: Network, chief: Person, publish_there: Publish, store: Database
) -> None:
    chief.send(f"MODE {CHANNEL} +m")
    chief.wait_for(lambda: chief.lines("MODE"))
    refused = publish_there("hydra.send", f"PRIVMSG {CHANNEL} :while moderated")
    gone = publish_there("hydra.send", "PRIVMSG nobody :hello")
    assert wait_until(lambda: dead(network, refused), "the dead letter") == f"404 {CHANNEL} Cannot send to channel"
    assert "401 nobody" in wait_until(lambda: dead(network, gone), "the other one")
    wait_until(lambda: len(network.events("line refused")) >= 2, "the events")
    assert f"message {refused} is a dead letter: 404 {CHANNEL}" in network.nodes["alpha"].log
    chief.send(f"MODE {CHANNEL} -m")
    chief.wait_for(lambda: len(chief.lines("MODE")) == 2)
    wait_until(lambda: refused not in network.sent(), "the end of its note")
    arguments = ("manage.py", "messages", "put-back", "--queue", "hydra.send", "--state", "dead", "--yes")
    operator = Process(sys.executable, *arguments, environment=full_environment(store.url, {}))
    assert operator.wait() == 0, operator.log
    publish_there("hydra.send", f"PRIVMSG {CHANNEL} :afterwards")
    chief.wait_text("while moderated")
    chief.wait_text("afterwards")


def test_lines_after_a_kick_wait_until_the_leader_is_in_the_channel_again(
    network: Network, chief: Person, publish_there: Publish
) -> None:
    chief.send(f"MODE {CHANNEL} +nb *!*@*", f"KICK {CHANNEL} hydra :out")
    chief.wait_for(lambda: chief.lines("KICK"))
    texts = [f"line {number}" for number in range(3)]
    for text in texts:
        publish_there("hydra.send", f"PRIVMSG {CHANNEL} :{text}")
    publish_there("hydra.send", "PRIVMSG chief :another way")
    chief.wait_text("another way")
    assert "line 0" not in chief.texts
    wait_until(lambda: network.waiting() == 3, "the end of the line that went another way")
    chief.send(f"MODE {CHANNEL} -b *!*@*", f"INVITE hydra {CHANNEL}")
    chief.wait_text(texts[-1])
    assert [text for text in chief.texts if text.startswith("line ")] == texts
    wait_until(lambda: network.waiting() == 0, "the end of all")


def test_a_text_that_the_server_would_cut_comes_whole(network: Network, chief: Person, publish_there: Publish) -> None:
    head = f"PRIVMSG {CHANNEL} :"
    text = "é" * ((510 - len(head)) // 2)
    publish_there("hydra.send", head + text)
    chief.wait_for(lambda: "".join(each for each in chief.texts if each.startswith("é")) == text)
