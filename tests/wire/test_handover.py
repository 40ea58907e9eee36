"""`runwire --processes 2`: clients of one topic or queue meet in one process, whichever they came to."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from brokersite.rigs.process import free_ports
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Blip, Broker, Database, Frame, Raw
from tests.wire.net.test_tls import Authority
from tests.wire.overhop.peer import Peer
from wire.blipmq import codec as blipmq
from wire.net.process_group import Place, ProcessGroup
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Type

LOOK = """select pg_notify('fivewire', '{"watched": "connections"}')"""
#: Clients of each kind: that all of them came to one process by chance is a matter of 2^-7.
CLIENTS = 8


class Pair(NamedTuple):
    """A broker of two processes."""

    broker: Broker
    store: Database

    def children(self) -> dict[int, psutil.Process]:
        """The processes by number, as far as they run."""
        found = {}
        for child in psutil.Process(self.broker.process.pid).children():
            with contextlib.suppress(psutil.Error):
                found[int(child.cmdline()[-2])] = child
        return found

    @property
    def directory(self) -> Path:
        """The directory of the processes' sockets."""
        return Path(self.children()[0].cmdline()[-3])

    def pids_of(self, clients: Iterable[Raw]) -> Counter[int]:
        """The processes that list these clients' connections, and how many of them each. For a moment that may be the
        one that has handed a connection over."""
        self.store.execute(LOOK)
        addresses = ["{}:{}".format(*client.socket.getsockname()) for client in clients]
        rows = self.store.rows(
            "select pid from queues_connection c join queues_node n on n.id = c.node_id where c.address = any(%s)",
            addresses,
        )
        return Counter(pid for (pid,) in rows)

    def wait_until_served_by(self, owner: int, clients: Sequence[Raw]) -> None:
        """Wait until this process alone lists the connections of all these clients."""
        wanted = {self.children()[owner].pid: len(clients)}
        wait_until(lambda: self.pids_of(clients) == wanted, lambda: f"{wanted} (now {self.pids_of(clients)})")


def named(prefix: str, kind: str, owner: int) -> str:
    """A name that this process is the owner of."""
    place = Place(Path("/"), 0, 2)
    names = (f"{prefix}{number}" for number in itertools.count())
    return next(name for name in names if place.owner(kind, name.encode()) == owner)


def start(store: Database, **settings: object) -> Broker:
    overhop, blip = (f"127.0.0.1:{port}" for port in free_ports(2))
    arguments = ("--processes", "2", "--overhop", overhop, "--blipmq", blip, "--sspq", "off")
    return Broker(store, *arguments, **settings)


@pytest.fixture(scope="module")
def pair(store: Database) -> Iterator[Pair]:
    with start(store) as broker:
        yield Pair(broker, store)


@pytest.mark.parametrize("owner", [0, 1])
def test_publishers_and_consumers_of_a_topic_meet_in_its_process(pair: Pair, owner: int) -> None:
    topic, address = named("met", "topic", owner).encode(), pair.broker.blipmq
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Blip(address)) for _ in range(3 * CLIENTS)]
        publishers, consumers, subscribers = clients[::3], clients[1::3], clients[2::3]
        subscription = subscribers[0].subscribe(topic)
        for number, client in enumerate(publishers):
            client.publish(topic, *(b"%d.%d" % (number, n) for n in range(3)))
        got = [body for client in consumers for body in client.consume(subscription, 3)]
        assert sorted(got) == sorted(b"%d.%d" % (number, n) for number in range(CLIENTS) for n in range(3))
        for number in range(CLIENTS):  # each producer's in order
            own = [body for body in got if body.startswith(b"%d." % number)]
            assert own == sorted(own)
        for client in subscribers[1:]:
            client.subscribe(topic)
        pair.wait_until_served_by(owner, clients)


@pytest.mark.parametrize("owner", [0, 1])
def test_workers_and_producers_of_a_queue_meet_in_its_process(pair: Pair, store: Database, owner: int) -> None:
    address = pair.broker.overhop
    name = named("worked", "queue", owner)
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(Peer(address)) for _ in range(CLIENTS)]
        workers = [stack.enter_context(Peer(address)) for _ in range(CLIENTS)]
        store.execute(
            "insert into queues_queue (name, uuid, max_attempts, retry_backoff)"
            " values (%s, gen_random_uuid(), 5, '1 s')",
            name,
        )
        for number, producer in enumerate(producers):
            producer.enqueue_many(name, [[number, n] for n in range(3)])
        got = [payload for worker in workers for payload in worker.do(name, 3)]
        assert sorted(got) == [[number, n] for number in range(CLIENTS) for n in range(3)]
        pair.wait_until_served_by(owner, [*producers, *workers])
        wids = {client.wid for client in (*producers, *workers)}  # they are the workers that they were
        told = "select wid::text from queues_worker w join queues_node n on n.id = w.node_id where n.pid = %s"
        wait_until(lambda: {wid for (wid,) in store.rows(told, pair.children()[owner].pid)} >= wids)


def test_what_is_sent_at_once_is_taken_once_and_in_order_wherever_it_is_cut(pair: Pair) -> None:
    clients: tuple[list[Blip], list[Blip]] = ([], [])
    with contextlib.ExitStack() as stack:
        for owner, cut in itertools.product((0, 1), range(CLIENTS)):
            topic = named(f"cut{cut}", "topic", owner).encode()
            consumer = stack.enter_context(Blip(pair.broker.blipmq))
            client = stack.enter_context(Blip(pair.broker.blipmq, key=""))
            subscription = consumer.subscribe(topic)
            bodies = [b"%06d" % n + bytes(1000) for n in range(300)]
            frames = [blipmq.encode_publish(8, 1, topic, body) for body in bodies]
            frames[50:50] = [blipmq.encode_publish(8, 1, b"aside", b"x")]  # what comes behind is by itself
            handshake = blipmq.encode_hello(1) + blipmq.encode_auth(2, "dev-key")
            stream = b"".join((handshake, *frames, blipmq.encode_ping(9)))
            at = (len(handshake) + 20, 5000, 100_003, len(stream) - 5)[cut % 4]
            client.send(stream[:at])
            assert client.read() == Frame(blipmq.ACK, 1, bytes(8))
            client.send(stream[at:])
            assert client.read() == Frame(blipmq.ACK, 2, bytes(8))
            assert client.read() == Frame(blipmq.PONG, 9)
            assert pair.store.payloads(pair.store.queue_of(subscription)) == bodies
            assert consumer.consume(subscription, 2) == bodies[:2]
            clients[owner].extend((client, consumer))
        for owner in (0, 1):
            pair.wait_until_served_by(owner, clients[owner])


def test_jobs_that_are_sent_at_once_are_taken_once_and_in_order_wherever_they_are_cut(pair: Pair) -> None:
    for round in range(CLIENTS):
        name = named(f"cut{round}", "queue", round % 2)
        with Peer(pair.broker.overhop) as worker, Peer(pair.broker.overhop, register=False) as client:
            worker.ask(Type.ADDQUEUE, name=name)
            payloads = [{"n": n, "text": "x" * 2000} for n in range(100)]
            handshake = (encoder.encode(Type.HELLO, "hello", {}), encoder.encode(Type.REGISTER, "register", {}))
            jobs = (
                encoder.encode(Type.ENQUEUE, f"job{n}", {"q": name, "job_payload": payload})
                for n, payload in enumerate(payloads)
            )
            stream = b"".join((*handshake, *jobs))
            at = (len(b"".join(handshake)) + 5, 700, 100_003, len(stream) - 5)[round % 4]
            client.send(stream[:at])
            assert client.read().t == Type.HI
            client.send(stream[at:])
            rids = ["register", *(f"job{n}" for n in range(len(payloads)))]
            assert [client.read()[:2] for _ in rids] == [(Type.OK, rid) for rid in rids]
            assert worker.do(name, len(payloads)) == payloads
            assert worker.stats(name).keys() <= {"completed"}


def test_what_cannot_be_handed_over_is_served_where_it_is(pair: Pair, store: Database) -> None:
    topic, queue = named("away", "topic", 1).encode(), named("away", "queue", 1)
    owner = pair.directory / "1"
    with contextlib.ExitStack() as stack:
        blips = [stack.enter_context(Blip(pair.broker.blipmq)) for _ in range(3 * CLIENTS)]
        peers = [stack.enter_context(Peer(pair.broker.overhop)) for _ in range(2 * CLIENTS)]
        peers[0].ask(Type.ADDQUEUE, name=queue)
        owner.rename(owner.with_name("away"))  # as if it were not there
        stack.callback(owner.with_name("away").rename, owner)
        subscriptions = [client.subscribe(topic) for client in blips[::3]]
        for number, client in enumerate(blips[1::3]):
            client.publish(topic, b"%d" % number)
        got = [client.consume(subscriptions[0], 1)[0] for client in blips[2::3]]
        assert sorted(got) == [b"%d" % number for number in range(CLIENTS)]
        for number, peer in enumerate(peers[:CLIENTS]):
            peer.enqueue(queue, number)
        assert sorted(peer.do(queue, 1)[0] for peer in peers[CLIENTS:]) == list(range(CLIENTS))
        pids = {child.pid for child in pair.children().values()}
        wait_until(lambda: pair.pids_of([*blips, *peers]).keys() == pids)


def test_a_connection_that_has_begun_elsewhere_stays_and_is_served(pair: Pair) -> None:
    first, second = (named("both", "topic", owner).encode() for owner in (0, 1))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Blip(pair.broker.blipmq)) for _ in range(CLIENTS)]
        for client in clients:
            client.publish(first, b"unheard")
            subscription = client.subscribe(second)
            client.publish(second, b"x")
            assert client.consume(subscription, 1) == [b"x"]
        pair.wait_until_served_by(0, clients)


def test_over_tls_connections_stay_where_they_are(store: Database, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    trusting = ssl.create_default_context(cafile=str(authority.file))

    def wrap(raw: socket.socket) -> socket.socket:
        return trusting.wrap_socket(raw, server_hostname="localhost")

    topic = named("tls", "topic", 0).encode()
    with start(store, BROKER_TLS_CERT=cert, BROKER_TLS_KEY=key) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Blip(broker.blipmq, wrap=wrap)) for _ in range(CLIENTS)]
        subscription = clients[0].subscribe(topic)
        for client in clients:
            client.publish(topic, b"x")
        assert [body for client in clients for body in client.consume(subscription, 1)] == [b"x"] * CLIENTS


def test_the_clients_of_a_process_that_is_killed_are_served_by_the_other(store: Database) -> None:
    topic = named("killed", "topic", 1).encode()
    with start(store) as broker:
        pair = Pair(broker, store)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Blip(broker.blipmq)) for _ in range(CLIENTS)]
            subscription = clients[0].subscribe(topic)
            for number, client in enumerate(clients):
                client.publish(topic, b"%d" % number)
            held = clients[0].next(subscription)
            victim = pair.children()[1]
            pair.wait_until_served_by(1, clients)
            victim.kill()
            assert psutil.wait_procs([victim], PATIENCE)[1] == []  # its sockets are closed
            assert {client.rest() for client in clients} == {b""}
        with Blip(broker.blipmq) as client:
            client.publish(topic, b"after")
            wanted = {b"%d" % number for number in range(CLIENTS)} | {b"after"}
            got = client.consume(subscription, CLIENTS + 1)
            assert set(got) == wanted, held
        wait_until(lambda: pair.children().keys() == {0, 1} and pair.children()[1].pid != victim.pid)
        wait_until(lambda: broker.lines.count(f"[1] blipmq 127.0.0.1:{broker.blipmq[1]}") == 2)  # it listens again
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Blip(broker.blipmq)) for _ in range(CLIENTS)]
            for client in clients:
                client.publish(topic, b"again")
            pair.wait_until_served_by(1, clients)
        directory = pair.directory
        assert broker.stop() == 0
        assert not directory.exists()


@pytest.mark.parametrize(("key", "is_served"), [("dev-key", True), ("another", False)])
async def test_the_key_is_looked_up_again(pair: Pair, key: str, is_served: bool) -> None:
    """Here the test is a third process, and hands over a connection of its own."""
    directory = pair.directory
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), PATIENCE)
        far, _ = server.accept()
    third = ProcessGroup(Place(directory, 2, 3), lambda name, sock, state: None)
    third.start()
    try:
        with near:
            with far:
                state = {"key": key, "grant": 1, "since": 0.0}
                ping = blipmq.encode_ping(5)
                assert await third.give(0, far.fileno(), "blipmq", state, lambda: ping)
            near.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert near.recv(100) == (blipmq.encode_pong(5) if is_served else b"")
    finally:
        third.stop()


async def test_an_offer_to_a_listener_that_is_not_there_is_refused(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), PATIENCE)
        far, _ = server.accept()
    third = ProcessGroup(Place(pair.directory, 2, 3), lambda name, sock, state: None)
    third.start()
    try:
        with near, far:
            assert not await third.give(0, far.fileno(), "sspq", {}, lambda: b"")
            far.sendall(b"x")
            assert near.recv(1) == b"x"
    finally:
        third.stop()
