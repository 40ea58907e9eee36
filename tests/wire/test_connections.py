"""The connections of clients as operators see them: the listeners write their rows, and obey a disconnect."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.running import manage
from tests.waiting import wait_until
from tests.wire.broker import KEY, Blip, Broker, Database, Raw, Sspq, put
from tests.wire.overhop.peer import Peer
from wire.blipmq import codec as blipmq

LOOK = """select pg_notify('fivewire', '{"watched": "connections"}')"""
COLUMNS = ("protocol", "address", "name", "messages_in", "messages_out", "unacked")


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_OVERHOP_API_KEY=KEY) as running:
        yield running


def address_of(client: Raw) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


def row(store: Database, client: Raw) -> dict[str, Any] | None:
    """The row of a client's connection, if it has one. To read it is to look at the connections."""
    store.execute(LOOK)
    columns = ", ".join(COLUMNS)
    found = store.rows(f"select {columns} from queues_connection where address = %s", address_of(client))
    return dict(zip(COLUMNS, found[0], strict=True)) if found else None


def wait_for_row(store: Database, client: Raw, **values: Any) -> None:
    wait_until(
        lambda: (found := row(store, client)) is not None and values.items() <= found.items(),
        lambda: f"{values} (now {row(store, client)})",
    )


def id_of(store: Database, client: Raw) -> str:
    """The id as the shell shows it."""
    id = store.value("select id from queues_connection where address = %s", address_of(client))
    return f"{id >> 32}-{id & 0xFFFFFFFF}"


def test_each_protocols_clients_are_listed_with_what_they_did_and_hold(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as blip, Peer(broker.overhop) as worker, Sspq(broker.sspq) as receiver:
        subscription = blip.subscribe(b"prices")
        blip.publish(b"prices", b"1", b"2", b"3")
        assert blip.next(subscription).body == b"1"
        wait_for_row(store, blip, protocol="blipmq", messages_in=3, messages_out=1, unacked=1, name="")
        key = store.value("select k.name from queues_connection c join queues_apikey k on k.id = key_id"
                          " where address = %s", address_of(blip))  # fmt: skip
        assert key == KEY
        store.execute(
            "insert into queues_queue (name, uuid, max_attempts, retry_backoff)"
            " values ('listed', gen_random_uuid(), 5, '1 s')"
        )
        worker.enqueue("listed", 1)
        assert worker.do("listed", 1) == [1]
        wait_for_row(store, worker, protocol="overhop", name=worker.wid, messages_in=1, messages_out=1, unacked=0)
        put(broker.sspq, b"1")
        assert receiver.receive().payload == b"1"
        wait_for_row(store, receiver, protocol="sspq", messages_in=0, messages_out=1, unacked=1)
        receiver.confirm()
        wait_for_row(store, receiver, unacked=0)
        totals = dict(store.rows("select protocol, connections from queues_connectiontotal"))
        assert {name: totals[name] for name in ("blipmq", "overhop", "sspq")} == {"blipmq": 1, "overhop": 1, "sspq": 1}
    wait_until(lambda: not store.rows("select from queues_connection"), "the end of the rows")


def test_the_queues_that_a_connection_takes_messages_from_are_told_without_a_look(
    broker: Broker, store: Database
) -> None:
    with Blip(broker.blipmq) as blip, Blip(broker.blipmq) as publisher, Sspq(broker.sspq) as receiver:
        subscription = blip.subscribe(b"consumed")
        publisher.publish(b"consumed", b"1")
        assert blip.next(subscription).body == b"1"
        put(broker.sspq, b"1")
        assert receiver.receive().payload == b"1"
        consumed = (
            "select q.name from queues_connection c join queues_queue q on q.id = any(c.queues) where c.address = %s"
        )
        for client, ending in ((blip, "/consumed"), (receiver, "sspq")):
            wait_until(
                lambda: [name.endswith(ending) for (name,) in store.rows(consumed, address_of(client))] == [True],  # noqa: B023
                ending,
            )
        assert store.rows(consumed, address_of(publisher)) == []


def test_a_connection_tells_of_each_queue_what_it_holds_of_it(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as blip:
        held = {b"held-most": 2, b"held-least": 1, b"held-not": 0}
        for topic, polled in held.items():
            subscription = blip.subscribe(topic)
            blip.publish(topic, b"1", b"2", b"3")
            for _ in range(polled):
                blip.next(subscription)

        def told() -> dict[bytes, int]:
            store.execute(LOOK)
            rows = store.rows(
                "select q.name, h.unacked from queues_connection c,"
                " unnest(c.queues, c.queues_unacked) as h (id, unacked) join queues_queue q on q.id = h.id"
                " where c.address = %s", address_of(blip),
            )  # fmt: skip
            return {name.rpartition("/")[2].encode(): unacked for name, unacked in rows}

        wait_until(lambda: told() == held, lambda: f"{held} (now {told()})")


def test_a_disconnect_from_the_shell_closes_the_clients_socket_and_no_other(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as blip, Peer(broker.overhop) as worker, Sspq(broker.sspq) as sender:
        clients: list[Raw] = [blip, worker, sender]
        with Blip(broker.blipmq) as other:
            for client in (*clients, other):
                wait_for_row(store, client)
            shown = json.loads(manage(store, "connections", "--json").stdout)
            assert {one["address"]: one["key"] for one in shown["connections"]} == {
                address_of(blip): KEY, address_of(other): KEY, address_of(worker): KEY, address_of(sender): None
            }  # fmt: skip
            assert shown["totals"]["blipmq"]["connections"] == 2
            ids = [id_of(store, client) for client in clients]
            assert manage(store, "connections", "--disconnect", *ids).returncode == 0
            for client in clients:
                client.rest()  # until the end that the broker has made
            assert other.ask() == []
    operator = "select details from (select event || ' ' || record_id as details from queues_audit) a"
    wait_until(lambda: store.rows(operator + " where details like 'disconnect connection:%%'"), "the record")


def test_the_shell_shows_what_connections_did_a_moment_ago_without_a_look_before(store: Database) -> None:
    with Broker(store) as broker, Blip(broker.blipmq) as client:
        listed = "select messages_in from queues_connection where address = %s"
        wait_until(lambda: store.rows(listed, address_of(client)) == [(0,)], "its row, as it was at the beginning")
        client.publish(b"prices", b"1", b"2", b"3")
        client.ask()
        [shown] = json.loads(manage(store, "connections", "--json").stdout)["connections"]
        assert (shown["address"], shown["messages_in"]) == (address_of(client), 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_rows_go_with_a_listener_that_is_killed_or_stops(
    broker: Broker, store: Database, number: signal.Signals
) -> None:
    with Broker(store) as dying, Blip(dying.blipmq) as here, Blip(broker.blipmq) as there:
        wait_for_row(store, here)
        wait_for_row(store, there)
        dying.stop(number)
        wait_until(lambda: row(store, here) is None, "the end of its row")
        assert row(store, there) is not None
        assert store.rows("select distinct node_id from queues_connectiontotal") == store.rows(
            "select id from queues_node"
        )


def test_a_client_is_shown_with_the_bytes_of_a_frame_that_is_not_complete(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as client:
        frame = blipmq.encode_publish(8, 1, b"large", bytes(1 << 20))
        client.send(frame[:-1])
        held = "select held_bytes from queues_connection where address = %s and held_bytes > 0"
        store.execute(LOOK)
        wait_until(lambda: store.rows(held, address_of(client)) == [(len(frame) - 1,)], "its bytes")
        client.send(frame[-1:])
        store.execute(LOOK)
        wait_until(lambda: not store.rows(held, address_of(client)), "the end of them")
