"""The Overhop clients against a scripted broker: blocking, on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.waiting import PATIENCE
from tests.wire.overhop.scripted import SID, WID, Broker, ClosedPort, Peer, jid, quest, talking
from tests.wire.scripted import CLIENT_KINDS, clients
from wire.client.errors import ConnectionLost, ProtocolViolation, ReplyTimeout
from wire.overhop import errors, requests
from wire.overhop.client import WINDOW, AsyncClient, Client, Job, Quest, QueueInfo
from wire.overhop.client_core import ClientCore
from wire.overhop.codec.encoder import Unencodable, encode
from wire.overhop.codec.names import PUSH_RID, Code, Type
from wire.overhop.codec.timestamps import format_timestamp, parse_timestamp

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORD = {
    "uuid": "00000000-0000-4000-8000-000000000001",
    "jid": jid(1),
    "queue_name": "emails",
    "payload": {"to": "ada"},
    "status": "delayed",
    "execution_start_at": "2026-01-02T03:04:05+00:00",
    "max_attempts": 3,
    "retry_interval_ms": 1500,
    "created_at": "2026-01-02T03:04:04.5+00:00",
    "runtime": {"attempts_so_far": 2},
}
UUID = "00000000-0000-4000-8000-000000000001"
JOB = Job(jid(1), UUID, "emails", {"to": "ada"}, "delayed", 2, 3, 1.5, NOW, NOW - timedelta(seconds=0.5))
EMAILS = {
    "id": "9",
    "name": "emails",
    "state": "paused",
    "config": {"concurrency_limit": None, "allow_job_overrides": True},
}


@pytest.fixture(params=CLIENT_KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a connected client of each kind: `with connect(broker) as client`."""
    with clients(request.param, Client, AsyncClient) as make:
        # Most scripts are for one connection.
        yield lambda broker, **kwargs: make(broker.host, broker.port, **{"reconnect": False} | kwargs)


def give_up_after(client: Any, seconds: float) -> None:
    """Shorten the client's patience now that it is connected: that takes as long as it takes."""
    getattr(client, "_client", client)._core.timeout = seconds


# Connecting


def test_a_client_says_hello_registers_and_leaves(connect: Any) -> None:
    with talking(lambda peer: None) as broker, connect(broker):
        pass


def test_the_first_bytes_are_those_of_the_specification() -> None:
    core = ClientCore(timeout=1, max_envelope=1000)
    steps = core.handshake()
    next(steps)
    assert core.outgoing == bytes.fromhex("0000001084a17080a3726964a131a17401a17602")
    core.outgoing.clear()
    core.receive_data(bytes.fromhex("0000001084a17080a3726964a131a17467a17602"))
    steps.send(True)
    assert core.outgoing == bytes.fromhex("0000001084a17080a3726964a132a17402a17602")


def test_the_broker_gives_the_connection_a_name() -> None:
    with talking(lambda peer: None) as broker, Client(broker.host, broker.port) as client:
        assert client.worker_id == WID


@pytest.mark.parametrize("when", ["before HI", "after HI"])
def test_a_challenge_to_register_is_met(connect: Any, when: str) -> None:
    def script(broker: Broker) -> None:
        peer = broker.accept()
        ident = {"register_timeout_seconds": 2, "reply_deadline": "2026-01-01T00:00:00+00:00"}
        hello = peer.expect(Type.HELLO, {})
        if when == "before HI":
            peer.send(Type.IDENT, PUSH_RID, ident)
        peer.answer(hello, t=Type.HI)
        register = peer.expect(Type.REGISTER, {})
        if when == "after HI":
            peer.send(Type.IDENT, PUSH_RID, ident)
        peer.answer(register, {"wid": WID})
        peer.finish()

    with Broker(script) as broker, connect(broker):
        pass


def test_a_refused_registration_is_raised_and_the_connection_closed(connect: Any) -> None:
    def script(broker: Broker) -> None:
        peer = broker.accept()
        peer.answer(peer.expect(Type.HELLO), t=Type.HI)
        peer.refuse(peer.expect(Type.REGISTER), "REGISTER_TIMEOUT", "too late")
        peer.finish()

    with (
        Broker(script) as broker,
        pytest.raises(errors.OverhopError, match=r"^REGISTER_TIMEOUT: too late$"),
        connect(broker),
    ):
        pytest.fail("connected")


def test_a_refused_connection_is_an_os_error(connect: Any) -> None:
    with ClosedPort() as closed, pytest.raises(ConnectionRefusedError), connect(closed):
        pytest.fail("connected")


async def test_an_asyncio_client_must_connect_first() -> None:
    client = AsyncClient("127.0.0.1", 1)
    with pytest.raises(ConnectionLost, match=r"^not connected$"):
        await client.ping()
    await client.close()


# Requests and their answers

Call = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("call", "t", "sent", "answer", "result"),
    [
        (
            lambda c: c.queue("emails"),
            Type.GQUEUE,
            {"q": "emails"},
            EMAILS,
            QueueInfo("9", "emails", "paused", None, True),
        ),
        (lambda c: c.queue("none"), Type.GQUEUE, {"q": "none"}, {}, None),
        (
            lambda c: c.queues(),
            Type.LQUEUES,
            {},
            {"queues": [EMAILS]},
            [QueueInfo("9", "emails", "paused", None, True)],
        ),
        (
            lambda c: c.create_queue("emails", 5, allow_job_overrides=False),
            Type.ADDQUEUE,
            {"name": "emails", "config": {"concurrency_limit": 5, "allow_job_overrides": False}},
            {"qid": "9"},
            "9",
        ),
        (
            lambda c: c.create_queue("emails"),
            Type.ADDQUEUE,
            {"name": "emails", "config": {"concurrency_limit": None, "allow_job_overrides": True}},
            {"qid": "9"},
            "9",
        ),
        (lambda c: c.delete_queue("emails"), Type.RMQUEUE, {"q": "emails"}, {}, None),
        (lambda c: c.pause("emails"), Type.PAUSE, {"q": "emails"}, {}, None),
        (lambda c: c.resume("emails"), Type.RESUME, {"q": "emails"}, {}, None),
        (lambda c: c.stats("emails"), Type.QSTATS, {"q": "emails"}, {"q": "emails", "stats": {"new": 3}}, {"new": 3}),
        (lambda c: c.status(), Type.STATUS, {}, {"queues": {"total": 1}}, {"queues": {"total": 1}}),
        (lambda c: c.enqueue("emails"), Type.ENQUEUE, {"q": "emails"}, {"jid": jid(1)}, jid(1)),
        (
            lambda c: c.enqueue(
                "emails",
                {"to": "ada"},
                scheduled_at=datetime(2026, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1))),
                max_attempts=5,
                retry_interval=0.0015,
                key="order-1",
                priority=-7,
            ),
            Type.ENQUEUE,
            {
                "q": "emails",
                "job_payload": {"to": "ada"},
                "scheduled_at": "2026-01-02T03:04:05+00:00",
                "max_attempts": 5,
                "retry_interval_ms": 2,
                "key": "order-1",
                "priority": -7,
            },
            {"jid": jid(1)},
            jid(1),
        ),
        (lambda c: c.job(jid(1)), Type.JOB, {"jid": jid(1)}, RECORD, JOB),
        (lambda c: c.job(jid(1)), Type.JOB, {"jid": jid(1)}, {}, None),
        (
            lambda c: c.jobs("emails", "delayed", page=2, page_size=7),
            Type.LSJOB,
            {"q": "emails", "status": "delayed", "page": 2, "page_size": 7},
            {"q": "emails", "status": "delayed", "page": 2, "page_size": 7, "jobs": [RECORD]},
            [JOB],
        ),
        (lambda c: c.remove_job(jid(1)), Type.RMJOB, {"jid": jid(1)}, {}, None),
        (lambda c: c.subscribe("emails"), Type.SUBSCRIBE, {"q": "emails", "credits": 0}, {"sid": SID}, SID),
        (lambda c: c.unsubscribe(SID), Type.UNSUBSCRIBE, {"sid": SID}, {}, None),
        (lambda c: c.grant(SID, 4), Type.CREDIT, {"sid": SID, "credits": 4}, {}, None),
        (lambda c: c.ack(jid(1)), Type.ACK, {"jid": jid(1)}, {}, None),
        (lambda c: c.done(jid(1)), Type.DONE, {"jid": jid(1)}, {}, None),
        (lambda c: c.done(jid(1), [b"\xff", 0]), Type.DONE, {"jid": jid(1), "result": [b"\xff", 0]}, {}, None),
        (lambda c: c.fail(jid(1)), Type.FAIL, {"jid": jid(1)}, {}, None),
        (
            lambda c: c.fail(jid(1), "x" * 3000, retry_in=0),
            Type.FAIL,
            {"jid": jid(1), "error": "x" * 2000, "retry_in_ms": 0},
            {},
            None,
        ),
        (
            lambda c: c.fail(jid(1), "half a pair: \ud800", retry_in=0.0001),
            Type.FAIL,
            {"jid": jid(1), "error": "half a pair: ?", "retry_in_ms": 1},
            {},
            None,
        ),
        (lambda c: c.beat(jid(1)), Type.BEAT, {"jid": jid(1)}, {}, None),
        (lambda c: c.log(jid(1), "half"), Type.LOG, {"jid": jid(1), "line": "half"}, {}, None),
        (lambda c: c.goodbye(), Type.GOODBYE, {}, {}, None),
        (lambda c: c.goodbye("bored"), Type.GOODBYE, {"reason": "bored"}, {}, None),
    ],
)
def test_a_request_is_sent_and_its_answer_understood(
    connect: Any, call: Call, t: Type, sent: dict[str, Any], answer: dict[str, Any], result: Any
) -> None:
    def script(peer: Peer) -> None:
        peer.serve(t, sent, answer)

    with talking(script) as broker, connect(broker) as client:
        assert call(client) == result


def test_ping_tells_the_brokers_time(connect: Any) -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.expect(Type.PING, {}), {"server_time": "2026-01-02T04:04:05+01:00"}, Type.PONG)

    with talking(script) as broker, connect(broker) as client:
        assert client.ping() == NOW


def test_a_job_has_what_only_some_jobs_have(connect: Any) -> None:
    finished = {
        **RECORD, "result": {"sent": True}, "error": "was slow", "execution_start_at": None, "log": ["begun"],
    }  # fmt: skip
    with talking(lambda peer: peer.serve(Type.JOB, None, finished)) as broker, connect(broker) as client:
        job = client.job(jid(1))
        assert (job.result, job.error, job.scheduled_at, job.record["log"]) == (
            {"sent": True}, "was slow", None, ["begun"],
        )  # fmt: skip


def test_a_delay_is_by_the_brokers_clock_which_is_asked_for_once(connect: Any) -> None:
    times: list[datetime] = []

    def script(peer: Peer) -> None:
        peer.pong(ahead=3600)
        for _ in range(2):
            request = peer.expect(Type.ENQUEUE)
            times.append(parse_timestamp(request.p["scheduled_at"]))
            peer.answer(request, {"jid": jid(1)})

    before = datetime.now(UTC)
    with talking(script) as broker, connect(broker) as client:
        client.enqueue("emails", delay=60)
        client.enqueue_many("emails", [1], delay=0.5)
    after = datetime.now(UTC)
    hour = timedelta(hours=1)
    unsure = (after - before) / 2  # half of the time that the PONG took is what the clock may be wrong by
    assert before < times[0] - hour - timedelta(seconds=60) < after + unsure
    assert before < times[1] - hour - timedelta(seconds=0.5) < after + unsure


# Bad input is refused before anything is sent


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.enqueue("emails", 0.5), "Overhop has no floats"),
        (lambda c: c.enqueue("emails", {1: 2}), "a map's keys are strings"),
        (lambda c: c.enqueue_many("emails", [1, 2, object()]), "Overhop has no object"),
        (lambda c: c.enqueue("emails", scheduled_at=datetime(2026, 1, 1)), "a time without an offset"),
        (lambda c: c.enqueue("emails", scheduled_at=NOW, delay=1), "give scheduled_at or delay, not both"),
        (lambda c: c.enqueue("emails", delay=-1), "delay is -1: give seconds, 0 or more"),
        (lambda c: c.enqueue("emails", delay=float("nan")), "delay is nan: give seconds, 0 or more"),
        (lambda c: c.enqueue("emails", delay=1e12), "delay is 1000000000000.0: the date is out of range"),
        (lambda c: c.enqueue("emails", retry_interval=float("inf")), "retry_interval is inf: give seconds, 0 or more"),
        (lambda c: c.fail(jid(1), retry_in=-0.5), "retry_in is -0.5: give seconds, 0 or more"),
        (lambda c: c.enqueue("emails", "x" * 2000), r"ENQUEUE of 20\d\d bytes is over 2000"),
    ],
)
def test_values_that_cannot_be_sent_are_refused_and_the_client_goes_on(connect: Any, call: Call, message: str) -> None:
    def script(peer: Peer) -> None:
        peer.pong()
        peer.serve(Type.BEAT)

    with talking(script) as broker, connect(broker, max_envelope=2000) as client:
        client.ping()
        with pytest.raises(ValueError, match=f"^{message}"):
            call(client)
        client.beat(jid(1))


def test_bad_input_has_exceptions_of_its_own(connect: Any) -> None:
    with talking(lambda peer: None) as broker, connect(broker, max_envelope=2000) as client:
        with pytest.raises(Unencodable):
            client.enqueue("emails", 0.5)
        with pytest.raises(errors.MessageTooLarge):
            client.enqueue("emails", "x" * 2000)


# Refusals


@pytest.mark.parametrize("code", [code for code in Code if code not in ("CONNECTION_TIMEOUT", "REGISTER_TIMEOUT")])
def test_every_refusal_of_a_request_has_a_class_of_its_own(code: Code) -> None:
    error = errors.refusal({"code": str(code), "msg": "no"})
    assert type(error) is not errors.OverhopError
    assert getattr(errors, type(error).__name__) is type(error)
    assert isinstance(error, errors.OverhopError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), f"{code}: no")


def test_a_refusal_is_raised_with_all_that_was_said_and_the_client_goes_on(connect: Any) -> None:
    def script(peer: Peer) -> None:
        peer.refuse(peer.expect(Type.PAUSE), "QUEUE_NOT_FOUND", "no queue 'none'", details={"q": "none"})
        peer.send(Type.ERR, peer.expect(Type.PAUSE).rid, {"code": "NEW_ONE"})
        peer.serve(Type.PAUSE)

    with talking(script) as broker, connect(broker) as client:
        with pytest.raises(errors.QueueNotFound, match=r"^QUEUE_NOT_FOUND: no queue 'none'$") as caught:
            client.pause("none")
        assert (caught.value.code, caught.value.msg, caught.value.details) == (
            "QUEUE_NOT_FOUND", "no queue 'none'", {"q": "none"},
        )  # fmt: skip
        with pytest.raises(errors.OverhopError, match=r"^NEW_ONE$") as other:
            client.pause("other")
        assert type(other.value) is errors.OverhopError
        client.pause("emails")


# Many at once


def test_many_jobs_are_sent_without_waiting_for_each(connect: Any) -> None:
    def script(peer: Peer) -> None:
        asked = [peer.expect(Type.ENQUEUE, {"q": "emails", "job_payload": n, "max_attempts": 2}) for n in range(3)]
        for n, request in enumerate(asked):
            peer.answer(request, {"jid": jid(n)})

    with talking(script) as broker, connect(broker) as client:
        assert client.enqueue_many("emails", (n for n in range(3)), max_attempts=2) == [jid(0), jid(1), jid(2)]
        assert client.enqueue_many("emails", []) == []


def test_more_jobs_than_may_be_unanswered_are_sent_window_by_window(connect: Any) -> None:
    count = 2 * WINDOW + 5

    def script(peer: Peer) -> None:
        for n in range(count):
            peer.serve(Type.ENQUEUE, {"q": "emails", "job_payload": n}, {"jid": jid(n)})

    with talking(script) as broker, connect(broker) as client:
        assert client.enqueue_many("emails", range(count)) == [jid(n) for n in range(count)]


def test_of_many_jobs_the_refused_ones_are_named(connect: Any) -> None:
    def script(peer: Peer) -> None:
        peer.serve(Type.ENQUEUE, None, {"jid": jid(0)})
        peer.refuse(peer.expect(Type.ENQUEUE), "QUEUE_FULL", "first")
        peer.refuse(peer.expect(Type.ENQUEUE), "UNAVAILABLE", "second")
        peer.serve(Type.ENQUEUE, None, {"jid": jid(3)})

    with talking(script) as broker, connect(broker) as client:
        with pytest.raises(errors.QueueFull, match=r"^QUEUE_FULL: first$") as caught:
            client.enqueue_many("emails", "abcd")
        assert caught.value.jids == [jid(0), None, None, jid(3)]


def test_many_jobs_on_a_connection_that_is_lost_are_not_passed_over(connect: Any) -> None:
    def script(peer: Peer) -> None:
        peer.serve(Type.ENQUEUE, None, {"jid": jid(0)})
        peer.expect(Type.ENQUEUE)
        peer.hang_up()

    with suppress(OSError), talking(script) as broker, connect(broker) as client:
        with pytest.raises(ConnectionLost):
            client.enqueue_many("emails", "ab")
        raise OSError  # the script ends with a connection that it has closed itself


# Delivery


def test_a_job_is_delivered_and_none_comes_when_there_is_none(connect: Any) -> None:
    due = datetime.now(UTC) + timedelta(seconds=30)

    def script(peer: Peer) -> None:
        peer.serve(Type.SUBSCRIBE, {"q": "emails", "credits": 2}, {"sid": SID})
        peer.push(1, {"to": "ada"}, attempt=2, deadline=format_timestamp(due))
        peer.push(2, None, max_attempts=None, deadline=None)
        peer.serve(Type.BEAT)

    with talking(script) as broker, connect(broker) as client:
        client.subscribe("emails", 2)
        assert client.next_quest() == Quest(SID, jid(1), "emails", {"to": "ada"}, 2, 3, due)
        assert client.next_quest(timeout=PATIENCE) == Quest(SID, jid(2), "emails", None, 1, None, None)
        assert client.next_quest(timeout=0.01) is None
        client.beat(jid(1))


def test_jobs_that_arrive_before_an_answer_are_kept(connect: Any) -> None:
    def script(peer: Peer) -> None:
        request = peer.expect(Type.BEAT)
        peer.push(1)
        peer.push(2)
        peer.answer(request)

    with talking(script) as broker, connect(broker) as client:
        client.beat(jid(9))
        assert client.next_quest(timeout=0).jid == jid(1)
        assert client.next_quest(timeout=0).jid == jid(2)


# The end of a connection


def test_a_broker_that_goes_away_is_noticed_and_stays_away(connect: Any) -> None:
    def script(broker: Broker) -> None:
        peer = broker.accept()
        peer.greet()
        peer.expect(Type.BEAT)

    with Broker(script) as broker, connect(broker) as client:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                client.beat(jid(1))
        with pytest.raises(ConnectionLost):
            client.next_quest()


def test_a_broker_that_says_why_it_closes_is_heard(connect: Any) -> None:
    def script(peer: Peer) -> None:
        peer.expect(Type.BEAT)
        peer.send(Type.ERR, PUSH_RID, {"code": "CONNECTION_TIMEOUT", "msg": "too slow"})

    with talking(script) as broker, connect(broker) as client:
        with pytest.raises(ConnectionLost, match=r"CONNECTION_TIMEOUT: too slow$") as caught:
            client.beat(jid(1))
        assert isinstance(caught.value.__cause__, errors.OverhopError)


def test_an_answer_just_before_the_end_still_counts(connect: Any) -> None:
    def script(broker: Broker) -> None:
        peer = broker.accept()
        peer.greet()
        peer.serve(Type.BEAT)

    with Broker(script) as broker, connect(broker) as client:
        client.beat(jid(1))


def test_a_silent_broker_is_given_up(connect: Any) -> None:
    with talking(lambda peer: peer.expect(Type.BEAT)) as broker, connect(broker) as client:
        give_up_after(client, 0.3)
        with pytest.raises(ReplyTimeout, match=r"^no answer for 0\.3 s$"):
            client.beat(jid(1))
        with pytest.raises((ConnectionLost, ReplyTimeout)):
            client.beat(jid(1))


def test_jobs_that_are_pushed_do_not_hide_that_an_answer_is_missing(connect: Any) -> None:
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.expect(Type.BEAT)
        with suppress(OSError):
            while not over.wait(0.05):
                peer.push(1)

    with talking(script) as broker, connect(broker) as client:
        give_up_after(client, 0.3)
        try:
            with pytest.raises(ReplyTimeout):
                client.beat(jid(1))
        finally:
            over.set()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"\0\0\0\0", "frame length is 0"),
        (b"HTTP/1.1 400 Bad Request", "frame length is 1213486160"),
        (encode(Type.OK, "77", {}), "message type 101 with request id '77' answers nothing"),
        (encode(Type.PONG, "3", {}), "SUBSCRIBE was answered with message type 105"),
        (encode(Type.OK, "3", {}), "malformed OK: KeyError: 'sid'"),
        (encode(Type.OK, "3", {"sid": 5}), "malformed OK: TypeError: sid is not a string"),
        (encode(Type.ERR, "3", {"msg": "no"}), "malformed ERR: KeyError: 'code'"),
        (encode(Type.QUEST, PUSH_RID, quest(1, deadline="soon")), "malformed QUEST: ValueError: not an RFC 3339"),
    ],
)
def test_an_invalid_answer_of_the_broker_ends_the_connection(connect: Any, answer: bytes, message: str) -> None:
    def script(peer: Peer) -> None:
        assert peer.expect(Type.SUBSCRIBE).rid == "3"
        peer.send_bytes(answer)

    with talking(script) as broker, connect(broker) as client:
        with pytest.raises(ProtocolViolation, match=message):
            client.subscribe("emails")
        with pytest.raises((ConnectionLost, ProtocolViolation)):
            client.subscribe("emails")


# Several tasks


async def test_tasks_share_a_connection_and_each_has_its_own_answer() -> None:
    def script(peer: Peer) -> None:
        asked = [peer.expect(Type.JOB) for _ in range(20)]
        for request in asked:
            peer.answer(request, {**RECORD, "jid": request.p["jid"]})

    with talking(script) as broker:
        async with AsyncClient(broker.host, broker.port) as client:
            jobs = await asyncio.gather(*(client.job(jid(n)) for n in range(20)))
            assert [job.jid if job else None for job in jobs] == [jid(n) for n in range(20)]


async def test_a_task_that_waits_for_a_job_keeps_no_other_waiting() -> None:
    def script(peer: Peer) -> None:
        peer.serve(Type.BEAT)
        peer.push(1)
        peer.serve(Type.BEAT)

    with talking(script) as broker:
        async with AsyncClient(broker.host, broker.port) as client:
            waiting = asyncio.create_task(client.next_quest())
            await asyncio.sleep(0)  # now it waits
            await client.beat(jid(1))
            quest = await waiting
            assert quest is not None
            await client.beat(quest.jid)


async def test_each_job_goes_to_one_of_the_tasks_that_wait_and_none_is_lost_to_a_cancelled_one() -> None:
    with talking(lambda peer: None) as broker:
        async with AsyncClient(broker.host, broker.port) as client:
            waiting = [asyncio.create_task(client.next_quest()) for _ in range(5)]
            await asyncio.sleep(0)  # now they wait
            waiting[0].cancel()
            for n in range(3):
                client._core.on_quest(requests.quest(quest(n)))  # as when a QUEST arrives
            waiting[1].cancel()  # it has been woken, and has not run yet
            waiting[2].cancel()
            jobs = await asyncio.gather(client.next_quest(), *waiting[3:])
            assert sorted(job.jid for job in jobs if job) == [jid(0), jid(1), jid(2)]


async def test_the_answer_to_a_cancelled_request_is_taken_for_no_other() -> None:
    def script(peer: Peer) -> None:
        first = peer.expect(Type.QSTATS, {"q": "a"})
        second = peer.expect(Type.QSTATS, {"q": "b"})
        peer.answer(first, {"stats": {"new": 1}})
        peer.answer(second, {"stats": {"new": 2}})

    with talking(script) as broker:
        async with AsyncClient(broker.host, broker.port) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.stats("a")
            assert await client.stats("b") == {"new": 2}


async def test_all_tasks_hear_that_the_connection_is_lost() -> None:
    def script(broker: Broker) -> None:
        peer = broker.accept()
        peer.greet()
        for _ in range(3):
            peer.expect(Type.BEAT)

    with Broker(script) as broker:
        async with AsyncClient(broker.host, broker.port, reconnect=False) as client:
            calls = [client.next_quest(), *(client.beat(jid(n)) for n in range(3))]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 4
            assert len({id(outcome) for outcome in outcomes}) == 4


async def test_a_task_that_waits_for_a_job_hears_that_the_broker_was_given_up() -> None:
    with talking(lambda peer: peer.expect(Type.BEAT)) as broker:
        async with AsyncClient(broker.host, broker.port, reconnect=False) as client:
            give_up_after(client, 0.2)
            waiting = asyncio.create_task(client.next_quest(timeout=10))
            await asyncio.sleep(0)
            with pytest.raises(ReplyTimeout):
                await client.beat(jid(1))
            with pytest.raises(ReplyTimeout):
                await waiting
