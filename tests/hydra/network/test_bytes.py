"""Byte for byte: real processes and nodes that are written by hand, as the document and its examples have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.hydra.network.nodes import CHANNEL, STEADY, Network, Node
from tests.hydra.network.probe import ID, Answer, Listener, Probe, as_documented, as_seen, not_at_all
from tests.hydra.network.stores import Publish
from tests.waiting import wait_until
from tests.wire.broker import Database


@pytest.fixture(scope="module")
def network(store: Database) -> Iterator[Network]:
    """Its nodes have time: a repeated message, or one sent for lack of an answer, is another line."""
    times = replace(STEADY, max_vote_min=10.0, max_vote_max=20.0, max_meet=20.0)
    with Network(store, times=times) as network:
        yield network


@pytest.fixture
def alone(network: Network) -> Iterator[Node]:
    """A network of one, which leads."""
    node = network.nodes["alone"].again() if "alone" in network.nodes else network.start("alone")
    node.wait_ready()
    network.leader()
    yield node
    assert node.stop() == 0, node.log


def test_a_server_knocks_and_is_let_in_as_the_document_has_it(alone: Node) -> None:
    with Probe.dial(alone.address) as probe:
        there = probe.knock()
        term, val, leader = probe.next_beat()
        assert leader == there
        assert re.fullmatch(rf"{term}\.[0-9]+\.[0-9a-f]{{16}}", val)
        assert probe.beats[-1] == f"PING {term} {val} {there}\r\n".encode()


def test_a_line_may_end_without_a_carriage_return_and_come_in_pieces(alone: Node) -> None:
    with Probe.dial(alone.address) as probe:
        for byte in b"\n\r\nKNOCK 12345  spaced  tag \n\nNOTHING known\n":
            probe.socket.sendall(bytes([byte]))
        assert probe.take().startswith(b"MEET 12345 ")


def test_an_election_of_two_goes_as_the_document_has_it(alone: Node, network: Network) -> None:
    with Probe.dial(alone.address) as probe:
        there = probe.knock()
        term = probe.next_beat()[0] + 1
        probe.send(f"NOMINATE {term} {ID}")
        probe.expect(f"PLEDGE {term} {ID} {there}")
        probe.send(f"PLEDGE {term} {ID} {ID}")
        probe.expect(f"PLEDGE {term} {ID} {ID}", f"CALL {term}", f"ELECT {term} {ID} {there}")
        probe.send(f"CALL {term}")
        probe.expect(f"ELECT {term} {ID} {there}")
        probe.send(f"ELECT {term} {ID} {ID}")
        probe.expect(f"ELECT {term} {ID} {ID}")
        probe.send(f"PING {term} first {ID}")
        probe.expect(f"PONG first {there} 0 alone")
        pledged = network.rows("select pledge from hydra_vote where term = %s and name = 'alone'", term)
        assert pledged == [(ID,)]


@pytest.mark.parametrize("answer", [as_documented, as_seen])
def test_a_node_that_answers_heartbeats_in_either_encoding_stays(alone: Node, network: Network, answer: Answer) -> None:
    with Probe.dial(alone.address, answer) as probe:
        probe.knock()
        assert probe.stays(1.6 * network.times.max_ping)
        assert len(probe.beats) >= 4


def test_a_node_that_does_not_answer_heartbeats_is_dropped(alone: Node, network: Network) -> None:
    with Probe.dial(alone.address, not_at_all) as probe:
        probe.knock()
        assert re.fullmatch(rb"DROP %d no PONG for [0-9.]+ s\r\n" % ID, probe.take())
        assert probe.take() == b""


def test_a_node_that_dials_follows_a_leader_by_the_document_and_passes_lines_both_ways(
    network: Network, publish_there: Publish
) -> None:
    with Listener() as listener:
        node = network.start("dialler", "--link", f"127.0.0.1:{listener.port}")
        with listener.accept() as probe:
            knock = probe.take()
            found = re.fullmatch(rb"KNOCK ([0-9]+) dialler@([0-9a-f]{16})\r\n", knock)
            assert found is not None, knock
            there = int(found[1])
            probe.send(f"MEET {there} {ID}", f"WELCOME {there}", f"HELLO {there} {ID}")
            probe.send(f"PING 7 a-val {ID}")
            probe.expect(f"PONG a-val {there} 0 dialler")
            probe.send(f"PING 7 a-val {ID}", f"PING 6 other-val {ID}", f"PING 7 b-val {ID}")
            probe.expect(f"PONG b-val {there} 0 dialler")
            line = f":a!b@c PRIVMSG {CHANNEL} :  spaces   and Grüße "
            probe.send(f"RECV 0 {line}", f"RECV 0 {line}", f"RECV 1 {line}")
            wait_until(lambda: len(network.received()) >= 2, "two lines in the queue")
            assert network.received() == [(7, 0, line), (7, 1, line)]
            probe.send(f"PING 7 c-val {ID}")
            publish_there("hydra.send", f"PRIVMSG {CHANNEL} : hello   there ")
            while (said := probe.take()).startswith(b"PONG"):
                pass
            assert said == f"SEND {there} PRIVMSG {CHANNEL} : hello   there \r\n".encode()
        assert node.stop() == 0, node.log
