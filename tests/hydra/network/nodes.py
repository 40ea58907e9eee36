"""Hydra nodes as processes: `manage.py runhydra`, started, killed and frozen, and what the database says of them.

with Network(store, irc=server) as network:
    network.ring("alpha", "beta", "gamma")
    leader = network.leader()
    leader.kill()
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Self

from django.conf import settings

from brokersite.rigs.process import free_ports
from hydra.locks import LOCK_CLASS
from hydra.protocol.times import Times
from tests.hydra.irc.server import IrcServerProcess
from tests.process import Process
from tests.waiting import wait_until
from tests.wire.broker import Database

CHANNEL: Final = "#hydra"

TIMES: Final = Times(max_ping=1.0, max_vote_min=0.2, max_vote_max=0.6, max_meet=1.0)

STEADY: Final = replace(TIMES, max_ping=6.0)
"""For networks that are to keep their leader, although any process may stand still for three seconds."""

_RUNNING: Final = f"""
    exists (select from pg_locks where locktype = 'advisory' and granted and objsubid = 2
            and classid = {LOCK_CLASS} and objid = node.id
            and database = (select oid from pg_database where datname = current_database()))
"""


def settings_for(times: Times, **more: Any) -> dict[str, Any]:
    """The environment of nodes with these times, which speak to IRC as fast as it reads."""
    return {
        "BROKER_HYDRA_MAX_PING": times.max_ping,
        "BROKER_HYDRA_MAX_VOTE_MIN": times.max_vote_min,
        "BROKER_HYDRA_MAX_VOTE_MAX": times.max_vote_max,
        "BROKER_HYDRA_MAX_MEET": times.max_meet,
        "BROKER_HYDRA_IRC_INTERVAL": 0,
        # Nodes that are killed again and again all have one address here.
        "BROKER_HYDRA_MAX_DISCONNECTS": 10_000,
    } | more


class RunHydra(Process):
    """A `manage.py runhydra` process."""

    def __init__(self, url: str, *arguments: str, inside: Iterable[str] = (), **environment: Any) -> None:
        """`inside` is a command that it is run by; `environment` overrides settings."""
        super().__init__(
            *inside, sys.executable, "manage.py", "runhydra", *arguments, environment=full_environment(url, environment)
        )

    @property
    def addresses(self) -> list[str]:
        """The address that it listens on."""
        return [line.removeprefix("hydra ") for line in self.lines if line.startswith("hydra ")]


def full_environment(url: str, environment: dict[str, Any]) -> dict[str, Any]:
    """The variables of a process that is to use a database."""
    return {"DATABASE_URL": url, "SECRET_KEY": settings.SECRET_KEY, **environment}


def run_hydra(url: str, *arguments: str, **environment: Any) -> tuple[int, str]:
    """Run a node that is to end by itself; its exit status and standard error."""
    process = RunHydra(url, *arguments, **environment)
    status = process.wait()
    return status, process.log


class Node(RunHydra):
    """A node of a network, with a stable name and a port that it keeps over restarts."""

    def __init__(self, network: Network, name: str, port: int, *arguments: str, **options: Any) -> None:
        self.network = network
        self.name = name
        self.port = port
        self.more = arguments
        self.options = options
        where = () if "--listen" in arguments else ("--listen", f"127.0.0.1:{port}")
        super().__init__(
            options.pop("url", network.store.url), "--name", name, *where, *network.irc_arguments(), *arguments,
            **(network.environment | options),
        )  # fmt: skip

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens on."""
        return "127.0.0.1", self.port

    def again(self) -> Node:
        """Start it once more, as it was started before."""
        node = Node(self.network, self.name, self.port, *self.more, **self.options)
        self.network.nodes[self.name] = node
        return node


class Network:
    """Nodes that use one database and one IRC server, and how they are linked."""

    def __init__(
        self, store: Database, irc: IrcServerProcess | tuple[str, int] | None = None, *, times: Times = TIMES,
        nick: str = "hydra", channel: str = CHANNEL, recv: str = "hydra.recv", send: str = "hydra.send",
        **environment: Any,
    ) -> None:  # fmt: skip
        self.store = store
        self.irc = (irc.host, irc.port) if isinstance(irc, IrcServerProcess) else irc
        self.times = times
        self.nick = nick
        self.channel = channel
        self.recv = recv
        self.send = send
        self.environment = settings_for(times, **environment)
        self.nodes: dict[str, Node] = {}

    def irc_arguments(self) -> tuple[str, ...]:
        """Every node's arguments for IRC and the queues."""
        queues = ("--recv", self.recv, "--send", self.send)
        if self.irc is None:
            return queues
        return ("--irc", f"{self.irc[0]}:{self.irc[1]}", "--nick", self.nick, "--join", self.channel, *queues)

    def start(self, name: str, *arguments: str, port: int = 0, **options: Any) -> Node:
        """Start a node; one without links founds a network."""
        if "--link" not in arguments and "--found" not in arguments:
            arguments = (*arguments, "--found")
        node = Node(self, name, port or free_ports(1)[0], *arguments, **options)
        self.nodes[name] = node
        return node

    def linked(self, links: dict[str, str]) -> None:
        """Start nodes: each name with the names, with spaces between them, of those it dials. The first one founds."""
        ports = dict(zip(links, free_ports(len(links)), strict=True))
        for name, others in links.items():
            arguments = [word for other in others.split() for word in ("--link", f"127.0.0.1:{ports[other]}")]
            first = name == next(iter(links))
            self.start(name, *arguments, *(["--found"] if first else []), port=ports[name])
        for name in links:
            self.nodes[name].wait_ready()

    # The database.

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.store.rows(query, *parameters)

    def leaders(self) -> list[str]:
        """The names of the running nodes that lead."""
        query = f"select name from hydra_node node where role = 'leading' and {_RUNNING}"
        return [name for (name,) in self.rows(query) if name in self.nodes]

    def leader(self) -> Node:
        """Wait until one node leads and is on IRC, if there is one; return it."""
        query = f"select name from hydra_node node where role = 'leading' and irc = any(%s) and {_RUNNING}"
        states = ["on"] if self.irc is not None else ["off", "connecting", "on"]
        found = wait_until(
            lambda: [name for (name,) in self.rows(query, states) if name in self.nodes], "a leader on IRC"
        )
        return self.nodes[found[0]]

    def roles(self) -> dict[str, str]:
        """The roles of the running nodes."""
        return dict(self.rows(f"select name, role from hydra_node node where {_RUNNING}"))

    def terms(self) -> dict[str, int]:
        """The latest term that each node knows of."""
        return dict(self.rows("select name, term from hydra_node where name = any(%s)", list(self.nodes)))

    def voters(self) -> int:
        """The number of voters in the electorate of all running nodes that lead or follow; 0 while they know different
        ones: it is the leader's first, and without it the others elect none."""
        query = f"select electorate from hydra_node node where role in ('leading', 'following') and {_RUNNING}"
        found = {electorate for (electorate,) in self.rows(query)}
        known = found.pop() if len(found) == 1 else None
        return len(known.partition(":")[2].split(",")) if known else 0

    def in_term(self) -> bool:
        """Whether one node leads and all others follow it."""
        query = f"select role, leader, term from hydra_node node where {_RUNNING}"
        rows = self.rows(query)
        roles = sorted(role for role, _, _ in rows)
        alike = len({(leader, term) for _, leader, term in rows}) == 1
        return alike and roles == ["following"] * (len(rows) - 1) + ["leading"]

    def wait_in_term(self, voters: int = 0) -> Node:
        """Wait until all nodes that run are in one term, and so many have a vote; return the leader."""
        alive = [node for node in self.nodes.values() if node.alive]
        wait_until(
            lambda: len(self.roles()) == len(alive) and self.in_term() and self.voters() >= voters,
            f"one term of {len(alive)} nodes with {voters} votes",
        )
        return self.leader()

    def survives(self) -> bool:
        """Whether the network, in one term, would elect another leader if it lost this one now."""
        query = f"select voter, role, electorate from hydra_node node where {_RUNNING}"
        rows = self.rows(query)
        electorates = {electorate for _, _, electorate in rows}
        if not self.in_term() or len(electorates) != 1:
            return False
        keys = electorates.pop().partition(":")[2].split(",")
        others = [voter for voter, role, _ in rows if role == "following" and voter in keys]
        return len(others) > len(keys) // 2

    def received(self, term: int | None = None) -> list[tuple[int, int, str]]:
        """The queue of lines from IRC, in its order: term, index, line."""
        rows = self.rows(
            "select (headers->>'hydra.term')::bigint, (headers->>'hydra.idx')::bigint, payload from queues_openmessage"
            " where queue_id = (select id from queues_queue where name = %s) order by id",
            self.recv,
        )
        return [(at, idx, bytes(line).decode()) for at, idx, line in rows if term is None or at == term]

    def waiting(self) -> int:
        """The number of queued lines for IRC, without dead letters."""
        query = (
            "select count(*) from queues_openmessage where state < 3"
            " and queue_id = any(select id from queues_queue where name = %s)"
        )
        return int(self.store.value(query, self.send))

    def sent(self) -> set[int]:
        """The messages that were noted as sent to IRC."""
        return {message for (message,) in self.rows("select message from hydra_sentline")}

    def dead(self) -> set[int]:
        """The messages for IRC that became dead letters, by their first ids."""
        query = "select coalesce(origin_id, id) from queues_message where state = 3"
        return {message for (message,) in self.rows(query)}

    def events(self, kind: str) -> list[str]:
        """The texts of events of this kind, of all nodes."""
        return [text for (text,) in self.rows("select text from hydra_event where kind = %s order by id", kind)]

    # The end.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all nodes; what they have logged can be seen with `pytest -s`."""
        for node in self.nodes.values():
            node.end()
            sys.stderr.write(f"--- {node.name}\n{node.log}")
