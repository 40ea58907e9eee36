"""Clients whose listener is killed, or that are cut off: they go on by themselves, and lose nothing confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokersite.rigs.process import free_ports
from queues.backoff import Backoff
from tests.lengths import lengths
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Broker, Database
from tests.wire.scripted import CLIENT_KINDS, clients
from wire.blipmq import client as blipmq
from wire.client.errors import ConnectionLost
from wire.client.reconnecting import Event
from wire.overhop import client as overhop
from wire.overhop.worker import Worker
from wire.sspq import client as sspq

QUICK = Backoff(0.02, 0.2)
#: Messages that a program sends before it has them confirmed.
BATCH = 20
#: What may come again after a kill: what was sent again, what was fetched, and acknowledgements on their way.
AGAIN = BATCH + 2 * 1000


class Program(ABC):
    """A program in a thread that has messages confirmed and consumes them, and knows nothing of kills."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.events: list[Event] = []
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self.options: dict[str, Any] = {"reconnect": QUICK, "on_event": self.events.append, "timeout": PATIENCE}
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._guarded, args=(run,)) for run in self.runs()]

    @abstractmethod
    def runs(self) -> list[Callable[[], None]]:
        """What its threads do until `stopping` is set, and consuming until `complete`."""

    @property
    def complete(self) -> bool:
        """Whether nothing more is to be consumed."""
        return self.stopping.is_set() and self.confirmed <= self.seen.keys()

    def batch(self) -> list[str]:
        return [f"{next(self._numbers)}" for _ in range(BATCH)]

    def count(self, name: str) -> int:
        return sum(event.name == name for event in list(self.events))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), self

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as failure:
            self.failures.append(failure)


class Blip(Program):
    """BlipMQ, blocking: two clients."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.blipmq
        with blipmq.Client(*self.address, KEY) as client:
            self.subscription = client.subscribe(type(self).__name__)
        super().__init__()

    def runs(self) -> list[Callable[[], None]]:
        return [self._publish, self._consume]

    def _publish(self) -> None:
        with blipmq.Client(*self.address, KEY, resend=True, **self.options) as client:
            while not self.stopping.is_set():
                bodies = self.batch()
                client.publish_many(type(self).__name__, (body.encode() for body in bodies))
                client.flush()
                self.confirmed.update(bodies)

    def _consume(self) -> None:
        with blipmq.Client(*self.address, KEY, **self.options) as client:
            while not self.complete:
                for message in client.messages(self.subscription, timeout=0.1):
                    self.seen[message.body.decode()] += 1
                    client.ack(message)


class AsyncBlip(Blip):
    """The same on asyncio, without consent to publishing twice: the program decides, and does."""

    def runs(self) -> list[Callable[[], None]]:
        return [lambda: asyncio.run(self._run())]

    async def _run(self) -> None:
        await asyncio.gather(self._publish_in_task(), self._consume_in_task())

    async def _publish_in_task(self) -> None:
        async with blipmq.AsyncClient(*self.address, KEY, **self.options) as client:
            while not self.stopping.is_set():
                bodies = self.batch()
                with contextlib.suppress(ConnectionLost):
                    for body in bodies:
                        await client.publish(type(self).__name__, body.encode())
                    await client.flush()
                    self.confirmed.update(bodies)

    async def _consume_in_task(self) -> None:
        async with blipmq.AsyncClient(*self.address, KEY, **self.options) as client:
            while not self.complete:
                async for message in client.messages(self.subscription, timeout=0.1):
                    self.seen[message.body.decode()] += 1
                    await client.ack(message)


class Sspq(Program):
    """SSPQ: one client, whose receives confirm what it has sent."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.sspq
        super().__init__()

    def runs(self) -> list[Callable[[], None]]:
        return [self._run]

    def _run(self) -> None:
        with sspq.Client(*self.address, **self.options) as client:
            while not self.complete:
                with contextlib.suppress(ConnectionLost, sspq.Declined):
                    bodies = [] if self.stopping.is_set() else self.batch()
                    for body in bodies:
                        client.send(body.encode(), retries=255)
                    for count, message in enumerate(client.messages(timeout=0.1), 1):
                        self.confirmed.update(bodies)
                        self.seen[message.payload.decode()] += 1
                        if count >= BATCH:
                            client.confirm()
                            break


class Jobs(Program):
    """Overhop: a client that enqueues, and a worker."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.overhop
        with overhop.Client(*self.address) as client:
            client.create_queue("jobs")
        super().__init__()
        self.worker = Worker(*self.address, {"jobs": self._do}, concurrency=BATCH, **self.options)

    def runs(self) -> list[Callable[[], None]]:
        return [self._give, lambda: self.worker.run()]

    def _do(self, job: Any) -> None:
        self.seen[job.payload] += 1

    def _give(self) -> None:
        with overhop.Client(*self.address, resend=True, **self.options) as client:
            while not self.stopping.is_set():
                bodies = self.batch()
                client.enqueue_many("jobs", bodies)
                self.confirmed.update(bodies)

    def end(self) -> None:
        self.worker.stop()
        super().end()


@pytest.mark.parametrize("kills", lengths(short=2, long=5, soak=30))
@pytest.mark.parametrize("kind", [Blip, AsyncBlip, Sspq, Jobs])
def test_killed_listeners_lose_nothing_confirmed_and_programs_go_on(
    store: Database, kind: type[Program], kills: int, record_property: Callable[[str, object], None]
) -> None:
    ports = free_ports(3)
    addresses = [word for name, port in zip(("overhop", "blipmq", "sspq"), ports, strict=True)
                 for word in (f"--{name}", f"127.0.0.1:{port}")]  # fmt: skip
    broker = Broker(store, *addresses).wait_ready()
    program = kind(broker)  # type: ignore[call-arg]
    program.start()
    try:
        for _ in range(kills):
            confirmed, seen, again = len(program.confirmed), len(program.seen), program.count("connected")
            wait_until(
                lambda: program.failures or (len(program.confirmed) > confirmed and len(program.seen) > seen),  # noqa: B023
                lambda: f"work of {program}",
            )
            broker.kill()
            broker = Broker(store, *addresses).wait_ready()
            wait_until(lambda: program.failures or program.count("connected") > again, "a connection")  # noqa: B023
        program.stopping.set()
        wait_until(lambda: program.failures or program.complete, lambda: program.confirmed - program.seen.keys())
        program.end()
    finally:
        program.stopping.set()
        program.confirmed.clear()
        program.end()
        broker.stop()
    duplicates = program.seen.total() - len(program.seen)
    record_property("duplicates", duplicates)
    assert program.failures == []
    assert duplicates <= kills * AGAIN
    assert program.count("disconnected") >= kills


class Proxy:
    """Forwards connections to a broker, until it is told to cut them."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Connections that nothing goes through any more, though they stay open.
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._pairs.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
            if source not in self._silent:
                sink.shutdown(socket.SHUT_WR)

    def silence(self) -> None:
        """Let nothing more through the open connections, after waiting for the first one."""
        wait_until(lambda: self._pairs, "a connection")
        self._silent.update(each for pair in self._pairs for each in pair)

    def cut(self) -> None:
        """End the connections that there are."""
        for pair in self._pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for pair in self._pairs:
            for each in pair:
                each.close()


@pytest.fixture(scope="module")
def running(store: Database) -> Iterator[Broker]:
    with Broker(store, "--sspq-queue", "proxied", BROKER_BLIPMQ_RETRY_BACKOFF="1") as broker:
        yield broker


@pytest.fixture
def proxied(running: Broker) -> Iterator[Callable[[str], Proxy]]:
    with contextlib.ExitStack() as stack:

        def make(protocol: str) -> Proxy:
            proxy = Proxy(getattr(running, protocol))
            stack.callback(proxy.close)
            return proxy

        yield make


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def test_a_program_is_told_of_each_connection(kind: str, proxied: Callable[[str], Proxy]) -> None:
    proxy, events = proxied("blipmq"), list[Event]()
    with (
        clients(kind, blipmq.Client, blipmq.AsyncClient) as make,
        make(*proxy.address, KEY, reconnect=QUICK, on_event=events.append) as client,
    ):
        client.flush()
        proxy.cut()
        client.flush()
    assert names(events) == ["connected", "disconnected", "reconnecting", "connected", "closed"]
    assert [event.again for event in events if event.name == "connected"] == [False, True]
    assert isinstance(events[1].error, ConnectionLost)
    assert isinstance(events[2].error, ConnectionLost)
    assert 0.01 <= events[2].delay <= 0.02


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_publishes_on_a_lost_connection_are_told_once_and_the_client_goes_on(
    kind: str, how: str, proxied: Callable[[str], Proxy], running: Broker
) -> None:
    proxy, topic = proxied("blipmq"), f"told {kind} {how}"
    with clients(kind, blipmq.Client, blipmq.AsyncClient) as make:
        with make(*proxy.address, KEY, reconnect=QUICK, timeout=3) as client:
            subscription = client.subscribe(topic)
            getattr(proxy, how)()
            client.publish(topic, b"lost")
            with pytest.raises(ConnectionLost, match=r"; 1 publishes since the last flush may not be stored$"):
                client.flush()
            client.publish(topic, b"after")
            client.flush()
            bodies = {client.poll(subscription, timeout=PATIENCE).body, getattr(client.poll(subscription), "body", b"")}
        assert b"after" in bodies


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_with_consent_publishes_are_sent_again(kind: str, how: str, proxied: Callable[[str], Proxy]) -> None:
    proxy, topic, events = proxied("blipmq"), f"again {kind} {how}", list[Event]()
    options = {"reconnect": QUICK, "timeout": 3, "resend": True, "on_event": events.append}
    with clients(kind, blipmq.Client, blipmq.AsyncClient) as make, make(*proxy.address, KEY, **options) as client:
        subscription = client.subscribe(topic)
        client.publish(topic, b"confirmed")
        client.flush()
        getattr(proxy, how)()
        for body in (b"a", b"b"):
            client.publish(topic, body)
        client.flush()
        messages = [client.poll(subscription, timeout=PATIENCE) for _ in range(3)]
        assert [message.body for message in messages] == [b"confirmed", b"a", b"b"]
        client.ack(*messages)
        client.flush()
    # The second publish may be the one that finds the connection gone, and waits for the next.
    assert sum(event.count for event in events) in ((2,) if how == "silence" else (1, 2))


def test_a_message_of_a_lost_connection_is_not_acknowledged_on_the_next(
    kind: str, proxied: Callable[[str], Proxy]
) -> None:
    proxy, topic = proxied("blipmq"), f"late {kind}"
    with (
        clients(kind, blipmq.Client, blipmq.AsyncClient) as make,
        make(*proxy.address, KEY, reconnect=QUICK) as client,
    ):
        subscription = client.subscribe(topic)
        client.publish(topic, b"x")
        client.flush()
        before = client.poll(subscription, timeout=PATIENCE)
        proxy.cut()
        client.flush()
        client.ack(before)
        again = client.poll(subscription, timeout=PATIENCE)
        assert (again.body, again.tag, again.connection) == (b"x", before.tag, 2)
        client.ack(again)
        client.flush()


def test_a_subscribe_under_way_is_not_repeated(kind: str, proxied: Callable[[str], Proxy]) -> None:
    proxy = proxied("blipmq")
    with (
        clients(kind, blipmq.Client, blipmq.AsyncClient) as make,
        make(*proxy.address, KEY, reconnect=QUICK, timeout=3) as client,
    ):
        proxy.silence()
        with pytest.raises(OSError, match="no answer for 3 s"):
            client.subscribe("once")
        assert client.subscribe("once") > 0


def test_a_receive_goes_on_and_a_message_held_comes_again(kind: str, proxied: Callable[[str], Proxy]) -> None:
    proxy = proxied("sspq")
    with (
        clients(kind, sspq.Client, sspq.AsyncClient) as make,
        make(*proxy.address, reconnect=QUICK) as client,
    ):
        client.send(b"x")
        assert client.receive(timeout=PATIENCE).payload == b"x"
        proxy.cut()
        with contextlib.suppress(ConnectionLost):  # a first packet may still leave
            client.confirm()
        message = client.receive(timeout=PATIENCE)
        assert (message.payload, message.retries) == (b"x", 2)
        client.confirm()
        assert client.receive(timeout=0.1) is None


def test_what_was_sent_and_not_answered_is_told_before_it_counts_as_stored(
    kind: str, proxied: Callable[[str], Proxy]
) -> None:
    proxy = proxied("sspq")
    with (
        clients(kind, sspq.Client, sspq.AsyncClient) as make,
        make(*proxy.address, reconnect=QUICK) as client,
    ):
        proxy.silence()
        client.send(b"lost")
        proxy.cut()
        with pytest.raises(ConnectionLost, match=r"; 1 messages sent may not be stored$"):
            client.receive(timeout=PATIENCE)
        client.send(b"after")
        assert client.receive(timeout=PATIENCE).payload == b"after"
        client.confirm()


def test_subscriptions_to_jobs_go_on_with_their_credits(kind: str, proxied: Callable[[str], Proxy]) -> None:
    proxy, queue = proxied("overhop"), f"go-on-{kind}"
    with (
        clients(kind, overhop.Client, overhop.AsyncClient) as make,
        make(*proxy.address, reconnect=QUICK) as client,
    ):
        client.create_queue(queue)
        sid = client.subscribe(queue, 1)
        client.grant(sid, 1)
        first = client.enqueue(queue, 1, max_attempts=5)
        quest = client.next_quest(PATIENCE)
        assert quest.jid == first
        client.done(first)
        proxy.cut()
        assert client.stats(queue)["completed"] == 1  # asked again
        # One credit is left.
        second, third = client.enqueue_many(queue, [2, 3])
        quest = client.next_quest(PATIENCE)
        assert (quest.sid, quest.jid) == (sid, second)
        assert client.next_quest(0.1) is None
        client.done(second)
        client.grant(sid, 1)
        assert client.next_quest(PATIENCE).jid == third
        client.done(third)
        client.unsubscribe(sid)


@pytest.mark.parametrize("resend", [False, True])
def test_an_enqueue_under_way_is_sent_again_with_consent_only(
    kind: str, resend: bool, proxied: Callable[[str], Proxy]
) -> None:
    proxy, queue, events = proxied("overhop"), f"consent-{kind}-{resend}".lower(), list[Event]()
    options = {"reconnect": QUICK, "timeout": 3, "resend": resend, "on_event": events.append}
    with clients(kind, overhop.Client, overhop.AsyncClient) as make, make(*proxy.address, **options) as client:
        client.create_queue(queue)
        proxy.silence()
        if resend:
            jids = client.enqueue_many(queue, [1, 2])
            assert [client.job(jid).payload for jid in jids] == [1, 2]
        else:
            with pytest.raises(OSError, match="no answer for 3 s"):
                client.enqueue(queue, 1)
        assert sum(client.stats(queue).values()) == (2 if resend else 0)
    assert sum(event.count for event in events) == (2 if resend else 0)


def test_without_reconnecting_a_lost_connection_is_final(kind: str, proxied: Callable[[str], Proxy]) -> None:
    proxy, events = proxied("blipmq"), list[Event]()
    with (
        clients(kind, blipmq.Client, blipmq.AsyncClient) as make,
        make(*proxy.address, KEY, reconnect=False, on_event=events.append) as client,
    ):
        proxy.cut()
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                client.flush()
    assert names(events) == ["connected", "disconnected", "closed"]


def test_a_key_that_was_revoked_meanwhile_ends_the_client(
    kind: str, store: Database, proxied: Callable[[str], Proxy]
) -> None:
    proxy, key, events = proxied("blipmq"), store.add_key(f"revoked {kind}"), list[Event]()
    with (
        clients(kind, blipmq.Client, blipmq.AsyncClient) as make,
        make(*proxy.address, key, reconnect=QUICK, on_event=events.append) as client,
    ):
        store.execute("update queues_apikey set revoked_at = now() where name = %s", key)

        def flush_until_it_is_known() -> None:
            while True:  # the broker ends the connection when it hears of it
                client.flush()

        with pytest.raises(blipmq.NackError, match="401 invalid API key"):
            flush_until_it_is_known()
        with pytest.raises(blipmq.NackError, match="401 invalid API key"):
            client.flush()
    assert names(events)[-1] == "closed"


def test_a_signal_ends_a_client_that_waits_for_its_broker(store: Database) -> None:
    broker = Broker(store).wait_ready()
    with blipmq.Client(*broker.blipmq, KEY, reconnect=QUICK) as client:
        broker.kill()
        timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.poll(1, timeout=None)
