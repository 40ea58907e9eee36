"""A peer that connects, and that does so again."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.peers.running import (
    DELIVER,
    TAKEN_OVER,
    Join,
    Letter,
    RawPeer,
    WebBroker,
    ack,
    envelope,
    pending,
    register,
    unique,
)
from tests.peers.web.serving import frame
from tests.waiting import wait_until
from tests.wire.broker import Database


@pytest.fixture(params=["daphne", "uvicorn"])
def server(request: pytest.FixtureRequest) -> str:
    """Both always: the other files run under uvicorn with `--everything` only."""
    return str(request.param)


def first_frames(broker: WebBroker, name: str, count: int) -> list[bytes]:
    """The first message to a new connection."""
    with broker.connect() as client:
        client.socket.sendall(frame(register(name)))
        return [bytes(client.recv(decode=False)) for _ in range(count)]


def waiting(join: Join, name: str, count: int) -> tuple[str, list[str]]:
    """A peer that is offline, and the ids of what waits for it."""
    alice, peer = join("alice"), join(name)
    peer.close()
    wait_until(lambda: peer.name not in alice.peers(), "its end")
    sent = [alice.say(peer) for _ in range(count)]
    alice.peers()
    return peer.name, sent


def test_first_comes_peers_and_then_everything_pending(broker: WebBroker, join: Join) -> None:
    name, sent = waiting(join, "bob", 20)
    answer, *letters = first_frames(broker, name, 21)
    assert json.loads(answer)["type"] == "peers"
    assert name in json.loads(answer)["names"]
    found = [DELIVER.fullmatch(text) for text in letters]
    assert [json.loads(match[1]) for match in found if match] == sent


def test_the_old_connection_is_closed_before_the_new_one_is_answered(broker: WebBroker, join: Join) -> None:
    with RawPeer(broker, unique("bob")) as old:
        join(old.name, exact=True)
        old.socket.settimeout(0)  # a frame that is not here by now did not come before
        assert old.get() == TAKEN_OVER


def test_after_a_take_over_nothing_goes_to_the_old_connection_and_nothing_comes_from_it(
    broker: WebBroker, join: Join, store: Database
) -> None:
    alice = join("alice")
    with RawPeer(broker, unique("bob")) as old:
        new = join(old.name, exact=True)
        sent = [alice.say(new) for _ in range(100)]
        assert new.ids(100) == sent
        assert old.get() == TAKEN_OVER
        old.send_texts(ack(sent[0]), envelope(alice.name, unique("late")))
        old.hang_up()
    new.peers()
    assert pending(store, new.name) == sent
    assert new.say(alice) == alice.get().id


def test_unacknowledged_and_waiting_messages_come_in_each_senders_order(join: Join) -> None:
    alice, carol, bob = join("alice"), join("carol"), join("bob")
    sent: dict[str, list[str]] = {alice.name: [], carol.name: []}
    for n in range(200):
        for sender in (alice, carol):
            sent[sender.name].append(sender.say(bob))
        if n == 100:
            alice.peers()
            carol.peers()
            gone = [bob.get() for _ in range(202)]
            bob.ack(*(letter.key for letter in gone[::3]))
            bob.peers()
            bob.close()
            wait_until(lambda: bob.name not in alice.peers(), "bob's end")
    alice.peers()
    carol.peers()
    acked = {letter.id for letter in gone[::3]}
    again = join(bob.name, exact=True)
    received: dict[str, list[str]] = {alice.name: [], carol.name: []}
    for _ in range(400 - len(acked)):
        letter = again.get()
        received[letter.fields["from"]].append(letter.id)
    assert received == {name: [id for id in ids if id not in acked] for name, ids in sent.items()}


def test_a_reconnecting_peer_gets_an_unacknowledged_message_each_time(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    for _ in range(20):
        assert bob.get() == Letter(sent, envelope(bob.name, sent, alice.name))
        bob = join(bob.name, exact=True)
    bob.consume(1)


def test_while_connected_nothing_is_delivered_again(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    # An acknowledgement time-out is for queues; a mailbox knows none, whatever is in its queue's row.
    store.change_queue(store.queue(f"_peer/{bob.name}"), ack_timeout=timedelta(milliseconds=5))
    sent = [alice.say(bob) for _ in range(5)]
    assert bob.ids(5) == sent
    for _ in range(50):
        marker = alice.say(bob)
        assert bob.ids(1) == [marker]


def test_letters_unacknowledged_at_an_unclean_end_are_delivered_again(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say(bob) for _ in range(10)]
    assert bob.ids(10) == sent
    bob.drop()
    assert join(bob.name, exact=True).ids(10) == sent


def test_everything_sent_before_a_clean_close_is_stored(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say(bob) for _ in range(500)]
    alice.close()
    assert bob.ids(500) == sent


def test_a_peer_is_known_from_its_first_register_on(join: Join, store: Database) -> None:
    name = unique("new")
    assert store.rows("select 1 from queues_mailbox where name = %s", name) == []
    join(name, exact=True)
    assert store.value("select count(*) from queues_mailbox where name = %s", name) == 1
