"""Hostile clients and neighbours: the network keeps its leader, its term and its memory."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.hydra.network.nodes import STEADY, Network, Node
from tests.hydra.network.probe import Probe
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Database

GROWTH: Final = 16 << 20
"""Bytes that a node may have more in use afterwards."""
DISCONNECTS: Final = 40

_ids = itertools.count(4_000_000_000)


@pytest.fixture(scope="module")
def network(store: Database) -> Iterator[Network]:
    """Three nodes in a triangle, which have time: who does not read is to be told so, not to be missed before."""
    times = replace(STEADY, max_ping=15.0, max_meet=3.0)
    with Network(store, times=times, BROKER_HYDRA_MAX_DISCONNECTS=DISCONNECTS) as network:
        network.linked({"alpha": "", "beta": "alpha", "gamma": "alpha beta"})
        yield network


@pytest.fixture
def leader(network: Network) -> Iterator[Node]:
    """The leader, which is the same one in the same term afterwards, as are the others."""
    leader = network.wait_in_term(voters=3)
    terms = network.terms()
    memory = {name: node.rss for name, node in network.nodes.items()}
    yield leader
    wait_until(lambda: not foreign(network), "the end of all links of strangers")
    assert network.wait_in_term(voters=3) is leader
    assert network.terms() == terms
    for name, node in network.nodes.items():
        assert node.rss < memory[name] + GROWTH, name


def foreign(network: Network) -> int:
    """Links to others than nodes."""
    query = "select count(*) from hydra_link where peer is null or peer not in (select current_id from hydra_node)"
    return int(network.store.value(query))


def pour(probe: Probe, data: bytes) -> None:
    """Send it all, or until the link is over."""
    probe.socket.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError):
        probe.socket.sendall(data)


def is_closed(probe: Probe) -> bool:
    """Whether the other side ends the link, after any lines."""
    with contextlib.suppress(TimeoutError):
        while probe.take():
            pass
        return True
    return False


@contextlib.contextmanager
def admitted(address: tuple[str, int], buffer: int = 0) -> Iterator[Probe]:
    """A plain node that was let in, perhaps not at once, as a flood's are missed for a while; it leaves in order."""
    for _ in range(10):
        id = next(_ids)
        with contextlib.closing(socket.socket()) as sock:
            if buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.connect(address)
            probe = Probe(sock, id=id)
            probe.send(f"KNOCK {id} probe")
            while (line := probe.take()) and not line.startswith(b"WELCOME"):
                pass
            if line:
                yield probe
                probe.send(f"DROP {id} leaving")
                return
    raise AssertionError("it was not let in")


@pytest.mark.parametrize(
    "data",
    [
        random.Random(1).randbytes(1 << 20),
        b"a line without end " * 50_000,
        b"\xff\xfe\r\n",
        b"NOTHING that is known\r\n" * 1000,
        b"PING 99 val 1\r\nPONG val 1 0\r\nRECV 0 x\r\nSEND 1 PRIVMSG #a :b\r\nDROP 1\r\nCALL 99\r\n" * 500,
        b"KNOCK 4294967296 x\r\nKNOCK -1 x\r\nKNOCK  x\r\nMEET 1\r\n" * 100,
    ],
    ids=["noise", "a line without end", "no text", "unknown commands", "a node's words", "malformed"],
)
def test_garbage_ends_the_link_and_nothing_else(leader: Node, data: bytes) -> None:
    with Probe.dial(leader.address) as probe:
        pour(probe, data)
        assert is_closed(probe)


def test_a_stranger_that_says_nothing_is_sent_away(leader: Node) -> None:
    with Probe.dial(leader.address) as probe:
        assert is_closed(probe)


def test_ten_thousand_knocks_of_one_stranger(leader: Node) -> None:
    with Probe.dial(leader.address) as probe:
        pour(probe, b"".join(b"KNOCK %d flood\r\n" % number for number in range(1, 10_001)))


def test_ten_thousand_knocks_that_a_node_hands_on(leader: Node) -> None:
    with admitted(leader.address) as probe:
        pour(probe, b"".join(b"KNOCK %d flood@%016x\r\n" % (number, number) for number in range(1, 10_001)))
        assert probe.stays(0.5)


def test_a_node_that_leaves_takes_no_other_one_with_it(leader: Node) -> None:
    with admitted(leader.address) as probe:
        with admitted(leader.address):
            pass
        assert probe.stays(0.5)


def test_a_node_that_replays_old_terms(leader: Node, network: Network) -> None:
    own = network.store.value("select leader from hydra_node where name = %s", leader.name)
    with admitted(leader.address) as probe:
        me, far = probe.id, 2**63 - 1
        for _ in range(200):
            probe.send(
                "PING 0 old 1", f"PING 0 old {me}", f"NOMINATE 0 {me}", f"PLEDGE 0 {me} {me}", "CALL 0",
                f"ELECT 0 {me} {me}", f"ELECT 0 {own} {own}", "RECV 0 :a!b@c PRIVMSG #a :old", f"PONG 0.1.x {own} 0",
                f"NOMINATE {far} {me}", f"PING {far} far {me}", "HELLO 1 1", "WELCOME 1",
            )  # fmt: skip
        assert probe.stays(0.5)
    assert network.received() == []


def test_a_neighbour_that_does_not_read(leader: Node, network: Network) -> None:
    with admitted(leader.address, buffer=4096) as probe:
        # Each is answered, as by a mediator that asks in vain.
        pour(probe, b"".join(b"KNOCK %d deaf\r\n" % probe.id for _ in range(200_000)))
        wait_until(lambda: "does not read" in network.events("link closed"), "its end")


def test_an_address_that_connects_and_disconnects_again_and_again_is_refused(leader: Node) -> None:
    for _ in range(DISCONNECTS + 10):
        socket.create_connection(leader.address).close()
    with Probe.dial(leader.address) as probe:
        assert probe.take() == b""
