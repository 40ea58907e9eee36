"""Networks of unlike nodes: with databases of their own, over other transports, with secrets and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from brokersite.rigs.process import free_ports
from tests.hydra.irc.server import IrcServerProcess
from tests.hydra.network.nodes import CHANNEL, STEADY, Network
from tests.hydra.network.people import Person
from tests.hydra.network.stores import Publish, copied, publishing
from tests.waiting import wait_until
from tests.wire.broker import Database
from tests.wire.net.test_tls import Authority


@pytest.fixture
def other_store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    """A second database."""
    with copied(migrated_database) as database:
        yield database


@pytest.fixture
def publish_elsewhere(other_store: Database, django_db_blocker: DjangoDbBlocker) -> Iterator[Publish]:
    """Publishes lines in the second database."""
    with publishing(other_store, django_db_blocker) as publish_line:
        yield publish_line


def to_all(network: Network) -> list[tuple[int, int, str]]:
    """The received lines that end with "to all"."""
    return [line for line in network.received() if line[2].endswith(":to all")]


def test_a_node_with_a_database_of_its_own_speaks_through_the_leader_and_hears_what_it_hears(
    store: Database, other_store: Database, irc: IrcServerProcess, person: Person, publish_elsewhere: Publish
) -> None:
    with Network(store, irc, times=STEADY) as network, Network(other_store, irc, times=STEADY) as elsewhere:
        network.linked({"alpha": "", "beta": "alpha"})
        leader = network.wait_in_term(voters=2)
        links = [word for node in network.nodes.values() for word in ("--link", f"127.0.0.1:{node.port}")]
        elsewhere.start("gamma", *links).wait_ready()
        wait_until(lambda: network.voters() == 3, "a third vote")
        assert network.wait_in_term() is leader
        wait_until(lambda: elsewhere.roles() == {"gamma": "following"}, "a follower elsewhere")
        texts = [f"from elsewhere {number}" for number in range(20)]
        messages = {publish_elsewhere("hydra.send", f"PRIVMSG {CHANNEL} :{text}") for text in texts}
        person.wait_text(texts[-1])
        wait_until(lambda: elsewhere.waiting() == 0, "the acknowledgement of all")
        assert person.texts == texts
        assert elsewhere.sent() == messages
        assert network.sent() == set()
        person.say("to all")
        wait_until(lambda: to_all(network) and to_all(elsewhere), "the line")
        (mine,) = to_all(network)
        assert to_all(elsewhere) == [mine]


def test_nodes_that_are_linked_by_four_transports_are_one_network(
    store: Database, irc: IrcServerProcess, publish_there: Publish, tmp_path: Path
) -> None:
    (tcp,) = free_ports(1)
    where = {
        "tcp": f"127.0.0.1:{tcp}",
        "udp": f"udp://127.0.0.1:{tcp}",
        "fifo": f"fifo://{tmp_path}/pipe",
        "irc": f"irc://{irc.host}:{irc.port}/hydralink",
    }
    with (
        Network(store, irc, times=STEADY, channel="#mixed", recv="mixed.recv", send="mixed.send") as network,
        Person((irc.host, irc.port), "mixer", "#mixed") as person,
    ):
        network.start("by-tcp", "--listen", where["tcp"], "--found").wait_ready()
        network.start("by-udp", "--listen", where["udp"], "--link", where["tcp"]).wait_ready()
        network.start("by-fifo", "--listen", where["fifo"], "--link", where["udp"]).wait_ready()
        network.start("by-irc", "--listen", where["irc"], "--link", where["fifo"], "--link", where["tcp"]).wait_ready()
        network.wait_in_term(voters=4)
        joined = "select count(*) from hydra_link where state = 'joined' and target like %s"
        for scheme in ("127.0.0.1%", "udp%", "fifo%"):
            wait_until(lambda: store.value(joined, scheme), scheme)  # noqa: B023
        # The last side of the square: one that is linked to the first by messages on IRC alone.
        network.start("far", "--link", where["irc"]).wait_ready()
        network.wait_in_term(voters=5)
        assert store.value(joined, "irc%") == 1
        publish_there("mixed.send", "PRIVMSG #mixed :said by the leader")
        person.wait_text("said by the leader")
        person.say("heard by all")
        ((term, idx, _),) = wait_until(
            lambda: [line for line in network.received() if line[2].endswith(":heard by all")], "the line"
        )
        places = "select name from hydra_node where (position_term, position_idx) >= (%s, %s) and name = any(%s)"
        wait_until(lambda: len(store.rows(places, term, idx, list(network.nodes))) == 5, "the line at all nodes")
        assert network.events("lines missed") == []


def events_of(store: Database, name: str, kinds: str) -> list[str]:
    """The texts of a node's events of these kinds."""
    query = "select text from hydra_event event join hydra_node node on node.id = node_id where name = %s"
    return [text for (text,) in store.rows(query + " and kind = any(%s)", name, kinds.split(","))]


def link_states(store: Database, *nodes: str) -> list[str]:
    """The states of these nodes' links."""
    query = "select link.state from hydra_link link join hydra_node node on node.id = node_id where name = any(%s)"
    return [state for (state,) in store.rows(query, list(nodes))]


def wait_for_only_link(store: Database, one: str, other: str) -> None:
    """Wait until the link of two nodes is shown as joined by both, and see that neither has another one."""
    wait_until(lambda: link_states(store, one, other).count("joined") == 2, f"the link of {one} and {other}")
    assert link_states(store, one, other) == ["joined"] * 2


def test_a_node_without_the_secret_is_not_let_in(store: Database) -> None:
    with Network(store, times=STEADY, recv="off", send="off", BROKER_HYDRA_SECRET="open sesame") as network:
        (port,) = free_ports(1)
        network.start("one", port=port).wait_ready()
        network.start("two", "--link", f"127.0.0.1:{port}").wait_ready()
        network.wait_in_term(voters=2)
        for name, secret in (("none", ""), ("wrong", "open barley")):
            network.start(name, "--link", f"127.0.0.1:{port}", BROKER_HYDRA_SECRET=secret).wait_ready()
            wait_until(lambda: events_of(store, name, "link failed,link closed"), "a refusal")  # noqa: B023
            assert network.roles()[name] == "outside"
        assert any("secret" in text for text in events_of(store, "wrong", "link failed"))
        wait_for_only_link(store, "one", "two")
        assert network.voters() == 2


def test_a_node_with_a_certificate_of_another_authority_is_not_let_in(store: Database, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "another")

    def environment(authority: Authority, name: str) -> dict[str, Any]:
        certificate, key = authority.issue(name)
        return {
            "BROKER_HYDRA_TLS_CERT": str(certificate), "BROKER_HYDRA_TLS_KEY": str(key),
            "BROKER_HYDRA_TLS_CA": str(ours.file),
        }  # fmt: skip

    with Network(store, times=STEADY, recv="off", send="off", **environment(ours, "node")) as network:
        (port,) = free_ports(1)
        network.start("certified", port=port).wait_ready()
        network.start("certified too", "--link", f"127.0.0.1:{port}").wait_ready()
        network.start("stranger", "--link", f"127.0.0.1:{port}", **environment(theirs, "stranger")).wait_ready()
        wait_until(lambda: network.roles().get("certified too") == "following", "a follower")
        wait_until(lambda: events_of(store, "stranger", "link failed,link closed"), "a refusal")
        assert network.roles() == {"certified": "leading", "certified too": "following", "stranger": "outside"}
        wait_until(lambda: network.voters() == 2, "a second vote")
        wait_for_only_link(store, "certified", "certified too")
