"""The list of a node's client connections: what is written, and what is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queues.engine import clients as module
from queues.engine.clients import ClientConnection, Clients, connection_id, parts_of_id
from queues.engine.health import Health
from queues.engine.node import LocalNode


class Session:
    """A session that notes what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.ended = 0
        self.error = error

    def holds(self) -> tuple[int, int]:
        return 3, 4096

    def disconnect(self) -> None:
        self.ended += 1
        if self.error is not None:
            raise self.error


class Store:
    """Takes the statement in place of a connection."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    async def execute(self, statement: bytes, parameters: dict[str, Any]) -> None:
        self.written.append(parameters)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Those of the last statement."""
        rows: list[dict[str, Any]] = json.loads(self.written[-1]["rows"])
        return rows


@pytest.fixture
def node() -> LocalNode:
    node = LocalNode()
    node.begin(7, 0)
    return node


@pytest.fixture
def clients(node: LocalNode) -> Clients:
    return Clients(node, Health())


@pytest.fixture
def store() -> Any:
    return Store()


def add(clients: Clients, count: int = 1, protocol: str = "blipmq") -> list[ClientConnection]:
    return [clients.add(protocol, f"192.0.2.1:{n}", Session()) for n in range(count)]


async def test_only_what_has_changed_is_written(clients: Clients, store: Any) -> None:
    first, second = add(clients, 2)
    first.published(5)
    await clients.write(store)
    assert [row["id"] for row in store.rows] == [connection_id(7, 1), connection_id(7, 2)]
    assert (store.rows[0]["messages_in"], store.rows[0]["unacked"], store.rows[0]["held_bytes"]) == (5, 3, 4096)
    await clients.write(store)  # the rate of the first is 0 now
    assert [row["id"] for row in store.rows] == [connection_id(7, 1)]
    assert store.rows[0]["in_rate"] == 0
    count = len(store.written)
    await clients.write(store)
    assert len(store.written) == count
    clients.remove(second)
    await clients.write(store)
    assert (store.written[-1]["gone"], store.rows) == (f"{{{connection_id(7, 2)}}}", [])


async def test_of_very_many_the_busiest_and_the_latest_are_listed_and_the_totals_are_of_all(
    clients: Clients, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LISTED", 10)
    monkeypatch.setattr(module, "LATEST", 4)
    made = add(clients, 100)
    for client in made[20:26]:
        client.delivered(1000)
    await clients.write(store)
    numbers = sorted(parts_of_id(row["id"])[1] for row in store.rows)
    assert numbers == [*range(21, 27), *range(97, 101)]
    [total] = json.loads(store.written[-1]["totals"])
    assert (total["protocol"], total["connections"]) == ("blipmq", 100)
    assert clients.totals["blipmq"].messages_out == 6000


async def test_counts_of_ended_connections_stay_in_the_totals(clients: Clients, store: Any) -> None:
    for client in add(clients, 3):
        client.published(2)
        clients.remove(client)
        clients.remove(client)
    [last] = add(clients)
    last.published(1)
    await clients.write(store)
    total = clients.totals["blipmq"]
    assert (total.connections, total.messages_in) == (1, 7)


async def test_a_connection_that_came_and_went_between_two_looks_is_never_written(clients: Clients, store: Any) -> None:
    await clients.write(store)
    before = len(store.written)
    for client in add(clients, 1000):
        clients.remove(client)
    await clients.write(store)
    assert all(json.loads(parameters["rows"]) == [] for parameters in store.written[before:])
    assert len(store.written) <= before + 1


async def test_a_new_life_of_the_node_writes_everything_anew(clients: Clients, store: Any, node: LocalNode) -> None:
    add(clients, 2)
    await clients.write(store)
    node.begin(8, 0)
    await clients.write(store)
    assert [parts_of_id(row["id"]) for row in store.rows] == [(8, 1), (8, 2)]
    assert store.written[-1]["gone"] == "{}"


def test_a_disconnect_ends_one_connection_and_its_failure_hurts_no_other() -> None:
    health = Health()
    clients = Clients(LocalNode(), health)
    broken, fine = Session(LookupError("as told")), Session()
    numbers = [clients.add("sspq", "", session).number for session in (broken, fine)]
    for number in (*numbers, 999):
        clients.disconnect(number)
    assert (broken.ended, fine.ended) == (1, 1)
    assert health.isolated["session"] == 1


@pytest.mark.parametrize("text", ["a" * 10_000, "ü" * 10_000, "\0" * 300, "\udcff" * 300])
def test_a_clients_description_is_bounded_in_bytes(text: str) -> None:
    clients = Clients(LocalNode(), Health())
    client = clients.add("peerbus", text, Session())
    client.identify(1, text)
    for kept in (client.address, client.name):
        assert "\0" not in kept
        assert 0 < len(kept.encode()) <= 3 * module.LONGEST


def test_numbers_begin_anew_after_the_last_and_leave_out_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBER_BITS", 2)
    clients = Clients(LocalNode(), Health())
    [first, second] = add(clients, 2)
    clients.remove(second)
    assert [client.number for client in add(clients, 2)] == [3, 0]
    assert first.number == 1
    assert [client.number for client in add(clients, 1)] == [2]
