"""Overhop against a running broker: clients that mean harm, or do not read."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.waiting import PATIENCE
from tests.wire.broker import Broker
from tests.wire.overhop.peer import Peer, framed
from tests.wire.overhop.test_session_errors import FIRST_TIER
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Type

MIB = 1 << 20
HELLO = encoder.encode(Type.HELLO, "a", {})
REGISTER = encoder.encode(Type.REGISTER, "b", {})


@pytest.fixture
def flat(broker: Broker) -> Iterator[None]:
    """Within a test the broker's memory stays as it is, but for what Python keeps to use again."""
    process = psutil.Process(broker.process.pid)
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < 48 * MIB


def attack(broker: Broker, data: bytes) -> None:
    """Connect, send, and see the connection end, be it by a reset."""
    with Peer(broker.overhop, register=False) as attacker, contextlib.suppress(ConnectionError):
        attacker.send(data)
        attacker.end_of_input()
        attacker.rest()


def mutated(rng: random.Random) -> bytes:
    """A conversation in which some bytes are wrong."""
    requests = [
        HELLO,
        REGISTER,
        *(encoder.encode(t, "r", {"q": "hostile", "jid": "x", "n": [1, {"a": b"b"}]}) for t in range(3, 30)),
    ]
    data = bytearray(b"".join(requests))
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randint(1, len(data))])


@pytest.mark.usefixtures("flat")
def test_random_bytes_end_their_connection_and_no_other(broker: Broker, worker: Peer, queue: str) -> None:
    rng = random.Random(2)
    worker.subscribe(queue, 10)
    for number in range(100):
        attack(broker, rng.randbytes(rng.randint(1, 3000)))
        attack(broker, HELLO + REGISTER + rng.randbytes(rng.randint(1, 3000)))
        attack(broker, HELLO + REGISTER + framed(rng.randbytes(rng.randint(1, 3000))))
        attack(broker, mutated(rng))
        if number % 20 == 0:
            jid = worker.enqueue(queue, number)
            assert worker.quest()["job_payload"] == number
            worker.ask(Type.DONE, jid=jid)


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize(
    "name", [name for name in FIRST_TIER if "claims" in name or "deep" in name or "millions" in name]
)
def test_a_bomb_costs_nothing_however_often_it_comes(broker: Broker, worker: Peer, name: str) -> None:
    for _ in range(30):
        attack(broker, HELLO + FIRST_TIER[name])
    worker.ask(Type.PING)


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("inner", [b"\x90", b"\x80", b"\xa0", b"\x81\xa0\xc0"])
def test_millions_of_small_values_cost_nothing(broker: Broker, worker: Peer, inner: bytes) -> None:
    count = 7 * MIB // len(inner)
    value = b"\xdd" + count.to_bytes(4, "big") + inner * count
    frame = framed(b"\x84\xa1p\x81\xa1x" + value + b"\xa3rid\xa1a\xa1t\x03\xa1v\x02")
    for _ in range(3):
        attack(broker, HELLO + REGISTER + frame)
    worker.ask(Type.PING)


@pytest.mark.usefixtures("flat")
def test_a_length_that_is_only_claimed_takes_no_memory(broker: Broker, worker: Peer) -> None:
    with contextlib.ExitStack() as stack:
        claimers = [stack.enter_context(Peer(broker.overhop)) for _ in range(100)]
        for fetcher in claimers:
            fetcher.send((8 * MIB).to_bytes(4, "big") + b"\x84")
        worker.ask(Type.PING)
        assert claimers[-1].is_silent()


def test_a_request_id_of_megabytes_is_echoed(worker: Peer) -> None:
    rid = "é" * MIB
    worker.send(encoder.encode(Type.PING, rid, {}))
    assert worker.read().rid == rid
    worker.ask(Type.PING)


def flood(peer: Peer, data: bytes) -> int:
    """Send until the server takes no more; how many bytes it was."""
    peer.socket.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += peer.socket.send(data)
    peer.socket.settimeout(PATIENCE)
    return sent


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("t", [Type.PING, Type.LQUEUES, Type.ACK])
def test_a_client_that_does_not_read_answers_is_not_read_from(broker: Broker, worker: Peer, t: Type) -> None:
    with Peer(broker.overhop) as flooder:
        p = {"jid": "none"} if t == Type.ACK else {}
        sent = flood(flooder, encoder.encode(t, "r" * 100, p) * 1000)
        assert sent < 64 * MIB
        worker.ask(Type.PING)


# A worker that does not read.


def pushed_at_last(peer: Peer, queue: str) -> int:
    """The number of jobs that workers have once pushes have ceased for 1 s, in which memory is handed back, too."""
    active, since = -1, time.monotonic()
    while time.monotonic() - since < 1.0:
        if (now := peer.stats(queue)["active"]) != active:
            active, since = now, time.monotonic()
        time.sleep(0.05)
    return active


@pytest.mark.usefixtures("flat")
def test_a_worker_that_stops_reading_gets_no_more_pushes_until_it_reads_again(
    broker: Broker, worker: Peer, other: Peer, queue: str
) -> None:
    total, payload = 9000, b"x" * 8000
    with Peer(broker.overhop) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        deaf.subscribe(queue, 2**32 - 1)
        for _ in range(total // 300):
            other.enqueue_many(queue, [payload] * 300)
        first = pushed_at_last(other, queue)
        assert 0 < first < total / 2
        worker.subscribe(queue, total - first - 1000)
        worker.quests(total - first - 1000)
        assert other.stats(queue)["active"] == total - 1000
        deaf.quests(first + 1000)
        other.wait_for_stats(queue, active=total)
        assert deaf.no_quest()


def test_credit_sent_by_a_worker_that_does_not_read_is_kept(broker: Broker, other: Peer, queue: str) -> None:
    with Peer(broker.overhop) as deaf:
        sid = deaf.subscribe(queue, 3000)
        other.enqueue_many(queue, [b"x" * 5000] * 3000)
        credits = [deaf.request(Type.CREDIT, sid=sid, credits=1) for _ in range(100)]
        other.enqueue_many(queue, [b"y"] * 100)
        quests: list[bytes] = []
        while len(quests) < 3100 or credits:
            message = deaf.read()
            if message.t == Type.QUEST:
                quests.append(message.p["job_payload"])
            else:
                assert message.rid == credits.pop(0)
        assert quests == [b"x" * 5000] * 3000 + [b"y"] * 100
        assert deaf.no_quest()


def test_log_lines_show_no_failure(broker: Broker, worker: Peer) -> None:
    worker.ask(Type.PING)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
