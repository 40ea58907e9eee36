"""`manage.py runhydra` from the shell: what it prints, how it ends, and what it refuses in which words."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from brokersite.rigs.process import free_ports
from tests.hydra.network.nodes import STEADY, Network, RunHydra, run_hydra
from tests.waiting import wait_until
from tests.wire.broker import Database


@pytest.fixture(scope="module")
def network(store: Database) -> Iterator[Network]:
    with Network(store, times=STEADY) as network:
        yield network


def refused(network: Network, *arguments: str) -> tuple[int, str]:
    """Run a node that cannot be; its exit status and the last line that it has written to standard error."""
    process = RunHydra(network.store.url, *arguments, **network.environment)
    status = process.wait()
    assert not process.ready
    assert "Traceback" not in process.log
    return status, process.log.strip().splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_where_it_listens_and_then_ready_and_ends_with_a_signal(network: Network, number: int) -> None:
    (port,) = free_ports(1)
    node = RunHydra(
        network.store.url, "--listen", "127.0.0.1:0", "--listen", f"127.0.0.1:{port}", "--listen", f"udp://127.0.0.1:{port}",
        **network.environment,
    ).wait_ready()  # fmt: skip
    assert len(node.addresses) == 3
    assert node.lines[-1] == "ready"
    assert node.addresses[1:] == [f"127.0.0.1:{port}", f"udp://127.0.0.1:{port}"]
    assert node.stop(number) == 0, node.log
    assert "Traceback" not in node.log


def test_a_node_is_called_what_name_says_or_else_where_it_listens(network: Network, store: Database) -> None:
    (port,) = free_ports(1)
    for arguments in (("--name", "by name", "--listen", "127.0.0.1:0"), ("--listen", f"127.0.0.1:{port}")):
        node = RunHydra(store.url, *arguments, **network.environment).wait_ready()
        assert node.stop() == 0, node.log
    names = {name for (name,) in store.rows("select name from hydra_node")}
    assert {"by name", f"127.0.0.1:{port}"} <= names


def test_a_second_process_with_the_same_name_is_refused_and_the_first_goes_on(network: Network) -> None:
    first = network.start("only once").wait_ready()
    network.leader()
    status, words = refused(network, "--name", "only once", "--listen", "127.0.0.1:0")
    assert status == 1
    assert words.startswith("CommandError: Another process runs the node 'only once': ")
    assert f"{first.process.pid} on " in words
    assert network.leaders() == ["only once"]
    assert first.stop() == 0, first.log


def test_an_address_in_use_is_refused(network: Network) -> None:
    first = network.start("first").wait_ready()
    status, words = refused(network, "--name", "second", "--listen", f"127.0.0.1:{first.port}")
    assert status == 1
    assert f"127.0.0.1:{first.port}" in words
    assert "in use" in words
    assert first.stop() == 0, first.log


def test_nodes_that_begin_at_the_same_time_on_a_new_database_all_run(network: Network, store: Database) -> None:
    store.execute("delete from queues_queue where name like 'hydra.%%'")
    (port,) = free_ports(1)
    nodes = [network.start("n0", port=port)]
    nodes += [network.start(f"n{number}", "--link", f"127.0.0.1:{port}") for number in (1, 2, 3)]
    for node in nodes:
        node.wait_ready()
    for node in nodes:
        assert node.stop() == 0, node.log
    assert store.value("select count(*) from queues_queue where name like 'hydra.%%'") == 2


def test_a_node_whose_row_is_lost_founds_no_second_network_unless_it_is_told_to(
    network: Network, store: Database
) -> None:
    first = network.start("forgetful").wait_ready()
    network.leader()
    assert first.stop() == 0, first.log
    for table in ("event", "link", "member"):
        store.execute(f"delete from hydra_{table} where node_id = (select id from hydra_node where name = 'forgetful')")
    store.execute("delete from hydra_node where name = 'forgetful'")
    again = RunHydra(store.url, "--name", "forgetful", "--listen", "127.0.0.1:0", **network.environment).wait_ready()
    wait_until(lambda: network.events("waits"), "a word on it")
    assert store.value("select electorate from hydra_node where name = 'forgetful'") == ""
    assert again.stop() == 0, again.log
    told = network.start("forgetful").wait_ready()
    wait_until(lambda: "forgetful" in network.leaders(), "its new network")
    assert told.stop() == 0, told.log


def test_a_node_that_strangers_could_reach_is_refused_unless_it_is_said(network: Network) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "udp://0.0.0.0:0", "host.example:0", "irc://irc.example/node"):
        status, words = refused(network, "--listen", address)
        assert status == 1
        for word in ("--insecure", "BROKER_HYDRA_SECRET", "BROKER_HYDRA_TLS_CERT"):
            assert word in words
    status, words = refused(network, "--listen", "127.0.0.1:0", "--link", "udp://10.0.0.1:6174")
    assert "--insecure" in words
    for arguments, secret in ((("--insecure",), "off"), ((), "shared by all")):
        node = RunHydra(network.store.url, "--listen", "0.0.0.0:0", *arguments, BROKER_HYDRA_SECRET=secret).wait_ready()
        assert node.stop() == 0, node.log


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--listen", "127.0.0.1:none"], 2, "argument --listen: "),
        (["--listen", "ftp://a:1"], 2, "argument --listen: "),
        (["--link", "127.0.0.1:70000"], 2, "argument --link: "),
        (["--link", "irc://127.0.0.1:6667"], 2, "has no nick: write irc://SERVER:PORT/NICK"),
        (["--link", "fifo://here"], 2, "argument --link: "),
        (["--irc", "somewhere"], 2, "argument --irc: "),
        (["--recv", ""], 2, "the name is empty"),
        (["--join", "#a"], 1, "--join needs --irc."),
        (["--irc", "127.0.0.1:6667", "--join", "a"], 1, "'a' is no channel"),
        (["--irc", "127.0.0.1:6667", "--nick", "4 you"], 1, "a nick must be one word"),
        (["--name", "x" * 256], 1, "A node's name has 1 to 255 printable characters"),
        (["--name", "a\nDROP 1"], 1, "A node's name has 1 to 255 printable characters"),
        (["--recv", "_mine"], 2, "_mine: names beginning with _ are the system's"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(
    network: Network, arguments: list[str], status: int, words: str
) -> None:
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    found, said = refused(network, *listen, *arguments)
    assert words in said
    assert found == status


def test_wrong_settings_are_refused_with_their_names(store: Database) -> None:
    status, log = run_hydra(store.url, BROKER_HYDRA_MAX_VOTE_MIN=3, BROKER_HYDRA_MAX_VOTE_MAX=2)
    assert status == 2
    assert "BROKER_HYDRA_MAX_VOTE_MIN is greater than BROKER_HYDRA_MAX_VOTE_MAX" in log


def test_a_database_that_is_away_is_said(store: Database) -> None:
    status, log = run_hydra("postgresql://none@127.0.0.1:1/none")
    assert status == 1
    assert log.startswith("CommandError: The database cannot be reached: ")
