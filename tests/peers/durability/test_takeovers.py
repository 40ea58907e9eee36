"""Three peers on two brokers, and names that move from one to the other all the time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from functools import partial

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.lengths import lengths
from tests.peers.durability.traffic import Ledger, Receiver, Sender, registered
from tests.peers.running import TAKEN_OVER, Close, Peer, RawPeer, WebBroker, ack, chain, close_of, pending, stored_keys
from tests.waiting import wait_until
from tests.wire.broker import Database

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def brokers(store: Database) -> Iterator[tuple[WebBroker, WebBroker]]:
    """Two on one database."""
    with WebBroker(store) as one, WebBroker(store) as two:
        yield one, two


def test_three_peers_on_two_brokers_get_broadcasts_and_what_was_sent_while_they_were_away(
    brokers: tuple[WebBroker, WebBroker], store: Database
) -> None:
    one, two = brokers
    alice, bob, carol = Peer(one, "alice"), Peer(two, "bob"), Peer(two, "carol")
    sent = [alice.say("*") for _ in range(50)] + [alice.say(bob)]
    assert bob.consume(51) == sent
    assert carol.consume(50) == sent[:50]
    carol.close()
    wait_until(lambda: alice.peers() == ["alice", "bob"], "carol's end")
    waiting = [sender.say("carol") for sender in (alice, bob) for _ in range(500)]
    everybody = bob.say("*")
    assert alice.consume(1) == [everybody]
    alice.peers()
    assert pending(store, "carol") != []
    carol = Peer(one, "carol")
    received = carol.consume(1000)
    assert [id for id in received if id in set(waiting[:500])] == waiting[:500]
    assert [id for id in received if id in set(waiting[500:])] == waiting[500:]
    for peer in (alice, bob, carol):
        peer.close()


def has_settled(store: Database, name: str, consumed: set[str]) -> bool:
    """Whether the store has settled all these letters of a peer."""
    return consumed.isdisjoint(pending(store, name))


@pytest.mark.parametrize("slow", [True, False], ids=["while it reads nothing", "while it reads"])
def test_a_take_over_in_the_middle_of_a_flush_loses_nothing_and_keeps_the_order(
    brokers: tuple[WebBroker, WebBroker], store: Database, slow: bool
) -> None:
    one, two = brokers
    name, count = f"moving-{slow}", 6000
    Peer(one, name).close()
    alice = Peer(one, "alice")
    wait_until(lambda: alice.peers() == ["alice"], "the end")
    sent = [alice.say(name, "x" * 300) for _ in range(count)]
    alice.peers()
    received: dict[str, None] = {}
    for broker in (one, two, two, one):
        with RawPeer(broker, name, buffer=4096 if slow else 0) as old:
            got = [old.letter() for _ in range(600)]
            consumed = {letter.key for letter in got[:300]}
            old.send_texts(*map(ack, consumed))
            # An acknowledgement that is not committed when another node takes the mailbox does not count any more.
            wait_until(partial(has_settled, store, name, consumed), "the acknowledgements' commit")
            old.hang_up()
            assert [letter.id for letter in got] == [id for id in sent if id not in received][:600]
            received |= dict.fromkeys(letter.id for letter in got[:300])
    last = Peer(two, name)
    assert last.consume(count - len(received)) == [id for id in sent if id not in received]
    last.close()
    alice.close()


@pytest.mark.parametrize("take_overs", lengths(short=100, long=300, soak=1000))
async def test_many_take_overs_lose_nothing_and_keep_each_senders_order(
    brokers: tuple[WebBroker, WebBroker], store: Database, take_overs: int
) -> None:
    ledger, done = Ledger(), asyncio.Event()
    permits = asyncio.Semaphore(0)
    # Names of its own: an id that a sender has used already is not stored again.
    bob, names = f"bob-{take_overs}", [f"first-{take_overs}", f"second-{take_overs}"]
    senders = [Sender(lambda: brokers, name, bob, ledger, permits) for name in names]
    receiver = Receiver(lambda: brokers, bob, ledger, share=0.6)
    async with asyncio.timeout(500), asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as connections:
        client = await connections.enter_async_context(registered(brokers[0], bob))
        readers = [tasks.create_task(read(receiver, client))]
        sending = [tasks.create_task(sender.run(done.is_set)) for sender in senders]
        for n, broker in zip(range(take_overs), itertools.cycle(brokers[::-1]), strict=False):
            permits.release()
            receiver.news.clear()
            client = await connections.enter_async_context(registered(broker, bob))
            readers.append(tasks.create_task(read(receiver, client)))
            if n % 3 == 0:
                await receiver.news.wait()
        done.set()
        for _ in senders:
            permits.release()
        await asyncio.wait(sending)
        await client.close()
        await asyncio.wait(readers)
        receiver.share = 1.0
        async with registered(brokers[1], bob) as last:
            await receiver.read(last, lambda: not pending(store, bob))
    assert [reader.result() for reader in readers[:-1]] == [TAKEN_OVER] * take_overs
    assert all(ledger.confirmed[sender.name] > take_overs for sender in senders)
    ledger.check({bob: names})
    sends = [event.id for event in chain(store) if event.event == "send"]
    assert sorted(sends) == stored_keys(store)


async def read(receiver: Receiver, client: ClientConnection) -> Close | None:
    """Read until the connection ends; how the broker has closed it."""
    with pytest.raises(ConnectionClosed) as caught:
        await receiver.read(client)
    return close_of(caught.value) if caught.value.rcvd_then_sent else None
