"""Clients that want to harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest

from tests.lengths import lengths
from tests.peers.durability.memory import MIB, SMALL, Watch
from tests.peers.durability.traffic import registered
from tests.peers.running import DELIVER, PEERS, Peer, RawPeer, WebBroker, connected, envelope
from tests.peers.web.serving import BINARY, frame
from tests.waiting import wait_until
from tests.wire.broker import Database

#: With a limit for all of a test that a busy machine keeps, and the start of PostgreSQL before it.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[WebBroker]:
    with WebBroker(store, BROKER_PEERBUS_SLOW_TIMEOUT=5) as running:
        yield running


@pytest.mark.parametrize("times", lengths(short=30, long=100))
def test_a_flood_of_garbage_is_ignored_while_others_are_served(broker: WebBroker, times: int) -> None:
    garbage = b"".join(
        frame(text) for text in (b"", b"x", b"{}", b'{"type":"nonsense"}', b"[" * 2000, b'{"id":7}', b'{"type":"ack"}')
    ) + frame(bytes(500), BINARY)
    watch = Watch(broker)
    with RawPeer(broker, "mallory") as mallory:
        flood = threading.Thread(target=send_each, args=(mallory, garbage * 100, times))
        flood.start()
        alice, bob = Peer(broker, "alice"), Peer(broker, "bob")
        while flood.is_alive():
            assert alice.say(bob) == bob.get().id
            watch.grown()
        flood.join()
        mallory.send_texts(envelope("bob", "from-mallory"))
        assert bob.get().id == "from-mallory"
        mallory.hang_up()
    assert watch.grown() < 16 * MIB
    alice.close()
    bob.close()


def send_each(peer: RawPeer, data: bytes, times: int) -> None:
    """Send it so many times, each of which may take as long as the socket's time-out is."""
    for _ in range(times):
        peer.send(data)


def test_a_sender_that_never_reads_its_answers_does_not_fill_the_memory(broker: WebBroker) -> None:
    named = [Peer(broker, f"{n:03}" + "x" * 230) for n in range(80)]
    alice = Peer(broker, "alice")
    with RawPeer(broker, "mallory", buffer=SMALL) as mallory:
        watch = Watch(broker)
        mallory.socket.settimeout(0.5)
        with contextlib.suppress(OSError):  # it is not read from any more, or was closed
            for _ in range(100):
                mallory.send(frame(PEERS) * 100)
                watch.grown()
        assert alice.peers().count("alice") == 1
        assert watch.grown() < 32 * MIB
        mallory.socket.close()
    wait_until(lambda: "mallory" not in alice.peers(), "mallory's end")
    for peer in (*named, alice):
        peer.close()


def test_a_sender_that_reads_nothing_and_sends_without_end_is_stored_and_held_back_only_by_the_store(
    broker: WebBroker, store: Database
) -> None:
    Peer(broker, "sink").close()
    with RawPeer(broker, "source", buffer=SMALL) as source:
        watch = Watch(broker)
        for n in range(400):
            source.send_texts(*(envelope("sink", f"{n}.{m}", body="x" * 10_000) for m in range(10)))
            watch.grown()
        source.hang_up()
    wait_until(lambda: "source" not in connected(store), "the end, behind everything that was sent")
    assert watch.grown() < 96 * MIB
    count = store.value(
        "select count(*) from queues_message where queue_id = (select queue_id from queues_mailbox where name = 'sink')"
    )
    assert count == 4000


@pytest.mark.parametrize("connections", lengths(short=100, long=500))
async def test_hundreds_of_connections_are_served_at_once(broker: WebBroker, store: Database, connections: int) -> None:
    wait_until(lambda: connected(store) == [], "the end of earlier ones")
    everyone = f"to-all-{connections}"  # an id that was seen is not stored again, from any sender
    names = sorted(f"peer-{connections}-{n:03}" for n in range(connections))
    async with asyncio.timeout(500), contextlib.AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(registered(broker, name)) for name in names}
        first, last = clients[names[0]], clients[names[-1]]
        await last.send(PEERS, text=True)
        assert json.loads(await last.recv())["names"] == names
        await first.send(envelope("*", everyone), text=True)
        for name in names[1:]:
            found = DELIVER.fullmatch(await clients[name].recv(decode=False))
            assert found
            assert json.loads(found[1]) == f"{everyone}|{name}"
        for n, name in enumerate(names):
            await clients[name].send(envelope(names[n - 1], f"to-{names[n - 1]}"), text=True)
        for name in names:
            found = DELIVER.fullmatch(await clients[name].recv(decode=False))
            assert found
            assert json.loads(found[1]) == f"to-{name}"
    wait_until(lambda: connected(store) == [], "the end of all connections")
