"""A leader that is cut off from the other nodes, but neither from IRC nor from the database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.hydra.irc.server import IrcServerProcess
from tests.hydra.network.namespaces import Namespaces, NotPossible, forwarding
from tests.hydra.network.nodes import STEADY, Network, Node
from tests.hydra.network.people import Person
from tests.waiting import wait_until
from tests.wire.broker import Database, make_url


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    """Three namespaces, where the machine allows it."""
    with contextlib.ExitStack() as stack:
        try:
            yield Namespaces(stack, 3)
        except NotPossible as error:
            pytest.skip(str(error))


@pytest.fixture
def network(namespaces: Namespaces, store: Database, irc: IrcServerProcess) -> Iterator[Network]:
    """Three nodes, each in a namespace of its own and linked to both others."""
    server = str(store.parameters["host"]), int(store.parameters["port"])
    with (
        forwarding(namespaces.host, server) as (host, port),
        forwarding(namespaces.host, (irc.host, irc.port)) as chat,
        Network(store, chat, times=STEADY) as network,
    ):
        url = make_url(store.parameters | {"host": host, "port": port})
        for number in (1, 2, 3):
            links = [word for other in range(1, number) for word in ("--link", f"{namespaces.links(other)}:6174")]
            listen = f"{namespaces.links(number)}:6174"
            network.start(
                str(number), "--listen", listen, "--insecure", *links, url=url, inside=namespaces.inside(number)
            )
        yield network


def number_of(node: Node) -> int:
    return int(node.name)


def test_a_leader_that_is_cut_off_leaves_irc_before_the_others_elect_and_comes_back_as_a_node(
    namespaces: Namespaces, network: Network, store: Database, person: Person
) -> None:
    leader = network.wait_in_term(voters=3)
    term = network.terms()[leader.name]
    namespaces.cut(number_of(leader))
    cut = time.monotonic()
    joined = person.wait_joined(after=cut)
    (left,) = [each.at for each in person.lines("QUIT") if each.at > cut]
    # Its own pledge to itself, which no node hears, is none.
    pledges = "select extract(epoch from clock_timestamp() - min(at)) from hydra_vote where term > %s and name <> %s"
    asked = time.monotonic()
    age = float(store.value(pledges, term, leader.name))
    first_pledge = time.monotonic() - age
    print(f"cut off at 0: off IRC {left - cut:.2f}, first pledge {first_pledge - cut:.2f}, on IRC {joined - cut:.2f}")
    assert left < first_pledge
    assert asked - age < joined  # the database's answer may have taken its time
    assert left - cut < network.times.max_ping
    wait_until(lambda: network.roles()[leader.name] in ("waiting", "nominee"), "the end of its term")
    wait_until(lambda: sorted(network.roles().values())[:2] == ["following", "leading"], "a term of two")
    namespaces.heal(number_of(leader))
    other = network.wait_in_term(voters=3)
    assert other is not leader
    assert leader.alive
    person.assert_never_two()
