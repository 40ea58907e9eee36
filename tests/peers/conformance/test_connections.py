"""Peers among the connections that operators see and end."""

from __future__ import annotations

from typing import Any

from tests.peers.running import Close, Join, manage
from tests.waiting import wait_until
from tests.wire.broker import KEY, Database

LOOK = """select pg_notify('fivewire', '{"watched": "connections"}')"""
COLUMNS = "select c.id, protocol, k.name, messages_in, messages_out, unacked"
ROW = f"{COLUMNS} from queues_connection c join queues_apikey k on k.id = key_id where c.name = %s"


def row(store: Database, name: str) -> tuple[Any, ...]:
    """The row of a peer's connection, without its id. To read it is to look at the connections."""
    store.execute(LOOK)
    found = store.rows(ROW, name)
    return found[0][1:] if found else ()


def test_a_peer_is_listed_with_its_letters_and_ended_by_its_id(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say(bob), alice.say(bob)
    wait_until(lambda: row(store, alice.name) == ("peerbus", KEY, 2, 0, 0), lambda: f"{row(store, alice.name)}")
    wait_until(lambda: row(store, bob.name) == ("peerbus", KEY, 0, 2, 2), lambda: f"{row(store, bob.name)}")
    id = store.rows(ROW, bob.name)[0][0]
    done = manage(store, "connections", "--disconnect", f"{id >> 32}-{id & 0xFFFFFFFF}")
    assert done.returncode == 0, done.stderr
    assert bob.close_seen() == Close(1008, "disconnected by an operator")
    wait_until(lambda: not row(store, bob.name), "the end of its row")
    assert alice.peers() == [alice.name]
