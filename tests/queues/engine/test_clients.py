"""The list of a node's client connections: what is written, and what is cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from queues.engine import clients as module
from queues.engine.clients import ClientConnection, Clients
from queues.engine.health import Health
from queues.engine.node import LocalNode
from queues.formats.connection_ids import connection_id, parts_of_id
from tests.waiting import until


class Session:
    """A session that notes what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.ended = 0
        self.error = error
        self.queues: dict[int, int] = {}

    def holds(self) -> tuple[int, int]:
        return 3, 4096

    def consumes(self) -> dict[int, int]:
        return self.queues

    def disconnect(self) -> None:
        self.ended += 1
        if self.error is not None:
            raise self.error


class Store:
    """Takes the statement in place of a connection."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    async def run(self, name: str, parameters: dict[str, Any]) -> None:
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


class Clock:
    """The engine's clock, moved on by the test."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now", clock)
    return clock


async def write(clients: Clients, store: Any) -> None:
    """A look and a write, as the job does them while an operator looks."""
    clients.watch()
    await clients.look()
    await clients.write(store)


def add(clients: Clients, count: int = 1, protocol: str = "blipmq") -> list[ClientConnection]:
    return [clients.add(protocol, f"192.0.2.1:{n}", Session()) for n in range(count)]


async def test_only_what_has_changed_is_written(clients: Clients, store: Any) -> None:
    first, second = add(clients, 2)
    first.published(5)
    await write(clients, store)
    assert [row["id"] for row in store.rows] == [connection_id(7, 1), connection_id(7, 2)]
    assert (store.rows[0]["messages_in"], store.rows[0]["unacked"], store.rows[0]["held_bytes"]) == (5, 3, 4096)
    await write(clients, store)  # the rate of the first is 0 now
    assert [row["id"] for row in store.rows] == [connection_id(7, 1)]
    assert store.rows[0]["in_rate"] == 0
    await write(clients, store)
    assert store.rows == []
    clients.remove(second)
    await write(clients, store)
    assert (store.written[-1]["gone"], store.rows) == (f"{{{connection_id(7, 2)}}}", [])


async def test_of_very_many_the_busiest_and_the_latest_are_listed_and_the_totals_are_of_all(
    clients: Clients, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 10)
    monkeypatch.setattr(module, "LATEST", 4)
    made = add(clients, 100)
    for client in made[20:26]:
        client.delivered(1000)
    await write(clients, store)
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
    await write(clients, store)
    total = clients.totals["blipmq"]
    assert (total.connections, total.messages_in) == (1, 7)


async def test_a_connection_that_came_and_went_between_two_looks_is_never_written(clients: Clients, store: Any) -> None:
    await write(clients, store)
    before = len(store.written)
    for client in add(clients, 1000):
        clients.remove(client)
    await write(clients, store)
    assert all(json.loads(parameters["rows"]) == [] for parameters in store.written[before:])
    assert len(store.written) <= before + 1


async def test_a_new_life_of_the_node_writes_everything_anew(clients: Clients, store: Any, node: LocalNode) -> None:
    add(clients, 2)
    await write(clients, store)
    node.begin(8, 0)
    await write(clients, store)
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
        assert 0 < len(kept.encode()) <= 3 * module.MAX_TEXT


def test_numbers_begin_anew_after_the_last_and_leave_out_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBER_BITS", 2)
    clients = Clients(LocalNode(), Health())
    [first, second] = add(clients, 2)
    clients.remove(second)
    assert [client.number for client in add(clients, 2)] == [3, 0]
    assert first.number == 1
    assert [client.number for client in add(clients, 1)] == [2]


# How often is told what connections do.


@pytest.fixture
def looks(clients: Clients, store: Any, clock: Clock) -> Any:
    """Looks of the job, one every two seconds, of clients that do something meanwhile."""

    async def go_on(count: int, *busy: ClientConnection) -> list[dict[str, Any]]:
        """The rows that were written."""
        before = len(store.written)
        for _ in range(count):
            clock.time += module.LOOK
            for client in busy:
                client.published(200)
            await clients.look()
            await clients.write(store)
        return [row for parameters in store.written[before:] for row in json.loads(parameters["rows"])]

    return go_on


async def test_without_an_operator_who_looks_busy_connections_leave_few_dead_rows(
    clients: Clients, store: Any, looks: Any
) -> None:
    busy = add(clients, 8)
    assert len(await looks(1, *busy)) == 8, "at the connection"
    minutes, before = 10, len(store.written)
    rows = await looks(minutes * 30, *busy)
    totals = sum(len(json.loads(parameters["totals"])) for parameters in store.written[before:])
    assert len(rows) == 8 * minutes
    assert (len(rows) + totals) / minutes < 15


async def test_connections_that_come_go_or_say_who_they_are_are_told_at_once_and_no_others(
    clients: Clients, store: Any, looks: Any
) -> None:
    busy, other = add(clients, 2)
    await looks(1, busy)
    [came] = add(clients)
    assert [row["id"] for row in await looks(1, busy)] == [connection_id(7, came.number)]
    assert json.loads(store.written[-1]["totals"])[0]["connections"] == 3
    came.identify(5, "alice")
    assert [(row["key"], row["name"]) for row in await looks(1, busy)] == [(5, "alice")]
    came.session.queues = {4: 1}  # type: ignore[attr-defined]
    assert [(row["name"], row["queues"]) for row in await looks(1, busy)] == [("alice", [4])]
    clients.remove(other)
    assert await looks(1, busy) == []
    assert store.written[-1]["gone"] == f"{{{connection_id(7, other.number)}}}"
    assert json.loads(store.written[-1]["totals"])[0]["connections"] == 2
    count = len(store.written)
    assert await looks(10, busy) == []
    assert len(store.written) == count


async def test_an_operator_sees_rates_of_two_seconds_at_once_and_then_every_two_until_the_look_ends(
    clients: Clients, store: Any, clock: Clock, looks: Any
) -> None:
    [busy] = add(clients)
    await looks(10, busy)
    clock.time += 1.3  # between two looks
    busy.published(1)
    clients.watch()
    await clients.write(store)
    assert [row["in_rate"] for row in store.rows] == [100.0]
    clock.time -= 1.3
    assert [row["in_rate"] for row in await looks(3, busy)] == [100.5, 100.0, 100.0]
    clients.watch()
    told = await looks(30, busy)
    assert len(told) == module.WATCHED // module.LOOK, "it stops by itself"
    assert {row["in_rate"] for row in told} == {100.0}


async def test_an_operator_who_begins_to_look_does_not_wait_for_the_next_look_of_the_node(
    clients: Clients, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 3600.0)
    add(clients)
    job = asyncio.create_task(clients.run(store))
    await until(lambda: len(store.written) == 1)
    clients.watch()
    await until(lambda: len(store.written) == 2)
    clients.watch()  # goes on to look: the next look tells
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(store.written) == 2
    job.cancel()


async def test_of_very_many_no_row_is_written_for_another_order_without_a_look(
    clients: Clients, store: Any, monkeypatch: pytest.MonkeyPatch, looks: Any
) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 10)
    monkeypatch.setattr(module, "LATEST", 4)
    made = add(clients, 100)
    await looks(1, *made[20:26])
    count = len(store.written)
    assert await looks(5, *made[40:60]) == []
    assert len(store.written) == count
    clients.remove(made[99])
    assert [parts_of_id(row["id"])[1] for row in await looks(1, *made[40:60])] == [made[96 - 1].number]
    clients.watch()
    told = {parts_of_id(row["id"])[1] for row in await looks(1, *made[40:46])}
    assert told == {client.number for client in made[40:46]}, "and the latest, whose rows are as they were"
