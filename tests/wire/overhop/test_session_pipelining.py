"""Overhop against a running broker: answers in order, however requests arrive, and what each answer stands for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec import encoder
from wire.overhop.codec.decoder import OverhopEnvelope
from wire.overhop.codec.names import Type

LATER = "2999-01-01T00:00:00Z"


def conversation(queue: str) -> list[bytes]:
    """Frames that meet nearly every kind of answer, each depending on those before it."""
    requests: list[tuple[int, dict[str, Any]]] = [
        (Type.HELLO, {}),
        (Type.REGISTER, {}),
        (Type.ADDQUEUE, {"name": queue, "config": {"concurrency_limit": 7}}),
        (Type.ADDQUEUE, {"name": queue}),
        (Type.GQUEUE, {"q": queue}),
        (Type.ENQUEUE, {"q": queue, "job_payload": {"n": 1}, "key": "k"}),
        (Type.ENQUEUE, {"q": queue, "job_payload": "plain"}),
        (Type.ENQUEUE, {"q": queue, "job_payload": {"n": 2}, "key": "k"}),
        (Type.ENQUEUE, {"q": queue, "scheduled_at": LATER}),
        (Type.ENQUEUE, {"q": "nowhere"}),
        (Type.QSTATS, {"q": queue}),
        (Type.RMQUEUE, {"q": queue}),
        (Type.LSJOB, {"q": queue, "status": "new"}),
        (Type.PING, {}),
        (Type.ENQUEUE, {"q": queue, "max_attempts": 0}),
        (Type.PAUSE, {"q": queue}),
        (Type.PAUSE, {"q": queue}),
        (Type.ENQUEUE, {"q": queue, "job_payload": b"x" * 3000, "priority": 5}),
        (Type.SUBSCRIBE, {"q": queue}),
        (Type.SUBSCRIBE, {"q": queue}),
        (Type.UNSUBSCRIBE, {"sid": "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"}),
        (Type.QSTATS, {"q": queue}),
        (Type.RESUME, {"q": queue}),
        (Type.GQUEUE, {"q": queue}),
        (Type.LSJOB, {"q": queue, "status": "delayed"}),
        (Type.DONE, {"jid": f"{queue}:8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"}),
        (Type.GOODBYE, {}),
    ]
    return [encoder.encode(t, f"rid-{number}", p) for number, (t, p) in enumerate(requests)]


def told(message: OverhopEnvelope, ids: dict[str, str]) -> Any:
    """An answer with its ids numbered and its times left out: what is the same each time."""

    def plain(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {key: plain(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        if key in ("wid", "qid", "sid", "jid", "id", "uuid", "queue_name", "q", "name", "msg"):
            return ids.setdefault(value, f"id {len(ids)}") if key != "msg" else key
        return key if key in ("server_time", "created_at") else value

    return message.t, message.rid, plain(message.p)


def answers(broker: Broker, pieces: list[bytes], count: int) -> list[Any]:
    """Send these pieces, each in a packet of its own; all that is answered until the end."""
    ids: dict[str, str] = {}
    with Peer(broker.overhop, register=False) as client:
        for piece in pieces:
            client.send(piece)
        read = [told(client.read(), ids) for _ in range(count)]
        client.ended()
    return read


CHUNKINGS = ["one frame at a time", "all at once", "a byte at a time", "pairs and a half", *map(str, range(6))]


@pytest.fixture(scope="module")
def expected(broker: Broker) -> list[Any]:
    """The answers to a client that waits for each of them."""
    ids: dict[str, str] = {}
    read = []
    with Peer(broker.overhop, register=False) as client:
        for frame in conversation("patient"):
            client.send(frame)
            read.append(told(client.read(), ids))
        client.ended()
    assert [message[1] for message in read] == [f"rid-{number}" for number in range(len(read))]
    return read


@pytest.mark.parametrize("chunking", CHUNKINGS)
def test_a_conversation_is_answered_alike_however_it_is_cut(broker: Broker, expected: list[Any], chunking: str) -> None:
    frames = conversation(f"patient-{CHUNKINGS.index(chunking)}")
    data = b"".join(frames)
    if chunking == "one frame at a time":
        pieces = frames
    elif chunking == "all at once":
        pieces = [data]
    elif chunking == "a byte at a time":
        pieces = [data[at : at + 1] for at in range(len(data))]
    elif chunking == "pairs and a half":
        size = len(data) // 11
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
    else:
        rng = random.Random(chunking)
        cuts = sorted(rng.sample(range(1, len(data)), 12))
        pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert answers(broker, pieces, len(frames)) == expected


def test_a_conversation_is_what_the_specification_says(expected: list[Any]) -> None:
    codes = [payload.get("code", "") for _, _, payload in expected]
    assert [(number, code) for number, code in enumerate(codes) if code] == [
        (3, "DUPLICATE_QUEUE"), (9, "QUEUE_NOT_FOUND"), (11, "QUEUE_NOT_EMPTY"), (14, "INVALID_MAX_ATTEMPTS"),
        (16, "QUEUE_ALREADY_PAUSED"), (19, "DUPLICATE_SUBSCRIPTION"), (20, "SUBSCRIPTION_NOT_FOUND"),
        (25, "JOB_NOT_FOUND"),
    ]  # fmt: skip
    assert expected[5][2]["jid"] == expected[7][2]["jid"] != expected[6][2]["jid"]
    assert {key: count for key, count in expected[10][2]["stats"].items() if count} == {"new": 2, "delayed": 1}
    assert [job["payload"] for job in expected[12][2]["jobs"]] == [{"n": 1}, "plain"]
    assert {key: count for key, count in expected[21][2]["stats"].items() if count} == {"new": 3, "delayed": 1}


def test_pong_is_a_barrier_what_came_before_it_is_committed(
    worker: Peer, other: Peer, store: Database, queue: str
) -> None:
    number = store.queue(queue)
    for count in range(1, 30):
        worker.request(Type.ENQUEUE, q=queue, job_payload=b"x" * 1000)
        ping = worker.request(Type.PING)
        while worker.read().rid != ping:
            pass
        assert store.states(number).total() == count


def test_an_answer_to_enqueue_and_to_done_means_that_it_is_committed(worker: Peer, store: Database, queue: str) -> None:
    number = store.queue(queue)
    worker.subscribe(queue, 50)
    for _ in range(50):
        jid = worker.enqueue(queue)
        assert store.states(number).total() == 1
        assert worker.quest()["jid"] == jid
        worker.ask(Type.DONE, jid=jid)
        assert store.states(number).total() == 0


def test_thousands_of_requests_in_one_go_are_answered_in_order(worker: Peer, other: Peer, queue: str) -> None:
    kinds: list[tuple[int, dict[str, Any]]] = [
        (Type.ENQUEUE, {"q": queue}), (Type.PING, {}), (Type.ENQUEUE, {"q": queue, "key": "same"}),
        (Type.ENQUEUE, {"q": queue, "priority": 3}), (Type.ENQUEUE, {"q": "nowhere"}), (Type.ENQUEUE, {"q": queue}),
        (Type.ACK, {"jid": "no jid"}),
    ]  # fmt: skip
    requests = [kinds[number % len(kinds)] for number in range(2000)]
    for number in (500, 1200, 1999):
        requests[number] = (Type.GQUEUE, {"q": queue})
    worker.send(*(encoder.encode(t, str(number), p) for number, (t, p) in enumerate(requests, 1)))
    replies = [worker.reply(str(number)) for number in range(1, 2001)]
    for (t, p), reply in zip(requests, replies, strict=True):
        wrong = p.get("q") == "nowhere" or t == Type.ACK
        assert reply.t == (Type.ERR if wrong else Type.PONG if t == Type.PING else Type.OK), reply
    assert len({reply.p["jid"] for (_, p), reply in zip(requests, replies, strict=True) if p.get("key")}) == 1


def test_first_jobs_of_many_queues_in_one_go_are_answered_as_if_they_came_one_by_one(
    worker: Peer, other: Peer, store: Database
) -> None:
    queues = [make_queue(other, store) for _ in range(20)]
    outcomes: list[tuple[dict[str, Any], str]] = []
    for number, queue in enumerate(queues):
        outcomes += [({"q": queue, "job_payload": number}, "")] * (1 + number % 20)  # some are read as runs
        outcomes += [({"q": f"{queue}-nowhere"}, "QUEUE_NOT_FOUND")]
        outcomes += [({"q": "_system", "job_payload": number}, "SYSTEM_QUEUE_FORBIDDEN")] * (1 + number % 20)
        outcomes += [({"q": f"{queue}\0", "job_payload": number}, "QUEUE_NOT_FOUND")]
    worker.send(*(encoder.encode(Type.ENQUEUE, f"{n:03}", p) for n, (p, _) in enumerate(outcomes)))
    for n, (p, code) in enumerate(outcomes):
        reply = worker.reply(f"{n:03}")
        assert reply.p.get("code", "") == code, (p, reply)
    for number, queue in enumerate(queues):
        assert worker.stats(queue) == {"new": 1 + number % 20}


def test_a_worker_pipelines_done_and_credit(worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store)
    sid = worker.subscribe(queue, 10)
    payloads = list(range(2000))
    other.enqueue_many(queue, payloads)
    other.wait_for_stats(queue, active=10, new=1990)  # none is in memory, or on its way back from there
    seen: list[int] = []
    rids: list[str] = []
    while len(seen) < len(payloads):
        message = worker.read()
        if message.t == Type.QUEST:
            seen.append(message.p["job_payload"])
            rids.append(worker.request(Type.DONE, jid=message.p["jid"], result=len(seen)))
            rids.append(worker.request(Type.CREDIT, sid=sid, credits=1))
        else:
            assert (message.t, message.rid) == (Type.OK, rids.pop(0))
    assert seen == payloads
    for rid in rids:
        assert worker.reply(rid).t == Type.OK
    assert worker.stats(queue) == {"completed": 2000}
