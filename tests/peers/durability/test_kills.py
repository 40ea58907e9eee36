"""kill -9 of brokers and of PostgreSQL: confirmed messages arrive, in order, and the audit chain says the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from brokersite.rigs.torture.database import TortureDatabase
from tests.lengths import lengths
from tests.peers.durability.traffic import Ledger, Receiver, Sender, drain
from tests.peers.running import Peer, WebBroker, chain, manage, pending, stored_keys
from tests.wire.broker import Database

#: A broker by its number, the first process of PostgreSQL, or all of its processes.
FAULTS = (0, "postmaster", 1, "everything", 0, 1)
ROUTES = {"ann": "bob", "abe": "bob", "amy": "cat"}
BROADCASTER = "all"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def brokers(store: Database) -> Iterator[list[WebBroker]]:
    """Two on one database, each on a port that its successors have too."""
    running = [WebBroker(store).wait_ready() for _ in range(2)]
    yield running
    for broker in running:
        broker.stop()


@pytest.mark.parametrize("kills", lengths(short=2, long=3))
def test_everything_that_an_answer_has_confirmed_survives_a_kill_right_after_it(
    brokers: list[WebBroker], store: Database, kills: int
) -> None:
    Peer(brokers[0], "sleeper").close()
    sent: list[str] = []
    for _ in range(kills):
        alice = Peer(brokers[0], "alice")
        sent += [alice.say("sleeper", "x" * 500) for _ in range(500)]
        alice.peers()
        brokers[0] = brokers[0].killed()
        assert pending(store, "sleeper") == sent
        alice.close()
    sleeper = Peer(brokers[1], "sleeper")
    assert sleeper.consume(len(sent)) == sent
    sleeper.close()


@pytest.mark.parametrize(("faults", "between"), lengths(short=(FAULTS[:4], 250), long=(FAULTS, 500)))
async def test_under_load_nothing_that_was_confirmed_is_lost_or_out_of_order(
    brokers: list[WebBroker], postgres: TortureDatabase, store: Database, faults: tuple[int | str, ...], between: int
) -> None:
    ledger, done, received = Ledger(), asyncio.Event(), asyncio.Event()
    senders = [Sender(lambda: brokers, name, to, ledger) for name, to in {**ROUTES, BROADCASTER: "*"}.items()]
    receivers = [Receiver(lambda: brokers, name, ledger) for name in ("bob", "cat")]
    for name in ("bob", "cat"):
        Peer(brokers[0], name).close()
    async with asyncio.timeout(500), asyncio.TaskGroup() as tasks:
        sending = [tasks.create_task(sender.run(done.is_set)) for sender in senders]
        for receiver in receivers:
            tasks.create_task(receiver.run(received.is_set))
        for fault in faults:
            await ledger.progress(between)
            await asyncio.to_thread(inject, fault, brokers, postgres)
        done.set()
        await asyncio.wait(sending)
        received.set()
    await finish(ledger, brokers, Database(store.parameters))
    assert sum(sender.losses for sender in senders) >= len(faults)


async def finish(ledger: Ledger, brokers: list[WebBroker], store: Database) -> None:
    """Receive the rest, and check the ledger."""
    for name in ("bob", "cat"):
        await drain(brokers[0], name, ledger, lambda name=name: not pending(store, name))  # type: ignore[misc]
    ledger.check({"bob": ["ann", "abe"], "cat": ["amy"]})
    assert ledger.confirmed == ledger.sent
    check_audit(store)
    store.close()


def inject(fault: int | str, brokers: list[WebBroker], postgres: TortureDatabase) -> None:
    """Kill, and start again on the same port."""
    if isinstance(fault, int):
        brokers[fault] = brokers[fault].killed()
    else:
        assert not postgres.kill(everything=fault == "everything"), "it came back on another port"


def check_audit(store: Database) -> None:
    """The chain is right, and has one send row for each message that was ever stored."""
    verified = manage(store, "audit", "verify", "--chain", "peerbus")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    events = chain(store)
    assert sorted(event.id for event in events if event.event == "send") == stored_keys(store)
    gone = {key for (key,) in store.rows("select key from queues_archive")}
    assert gone <= {event.id for event in events if event.event == "ack"}
    assert gone <= {event.id for event in events if event.event == "deliver"}
