"""The Overhop workers against a scripted broker: in threads and in tasks."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queues.backoff import Backoff
from tests.waiting import PATIENCE
from tests.wire.net.test_tls import Authority
from tests.wire.overhop.scripted import NOISE, SID, Broker, ClosedPort, Peer, jid
from wire.client import reconnecting
from wire.client.errors import ProtocolViolation, TlsFailed
from wire.overhop import worker as module
from wire.overhop.codec.names import Type
from wire.overhop.errors import QueueNotFound, Unavailable
from wire.overhop.worker import AsyncWorker, Retry, Worker

OTHER_SID = "1b8b1f0e-4d0c-4a57-8a39-2d8f5b3f7a11"


class Running:
    """A worker in a thread of its own."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            outcome = self.worker.run()
            if inspect.isawaitable(outcome):
                asyncio.run(self._wait_for(outcome))
        except BaseException as failure:
            self.failure = failure

    @staticmethod
    async def _wait_for(outcome: Any) -> None:
        await outcome

    def end(self) -> None:
        """`run` must return."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.fixture(params=["threads", "tasks"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Running]]:
    """Start a worker of each kind; handlers are plain functions."""
    started: list[Running] = []

    def go(broker: Any, handlers: Any, **options: Any) -> Running:
        if not isinstance(handlers, dict):
            handlers = {"emails": handlers}
        if request.param == "tasks":
            options["handlers"] = {queue: in_task(handler) for queue, handler in handlers.items()}
            made: Any = AsyncWorker(broker.host, broker.port, **options)
        else:
            made = Worker(broker.host, broker.port, handlers, **options)
        started.append(Running(made))
        return started[-1]

    yield go
    for running in started:
        running.worker.stop()
        running._thread.join(PATIENCE)


def in_task(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make an async handler: the plain one runs in a thread, where what it calls on its job is awaited by the loop."""

    class Bridge:
        def __init__(self, job: Any) -> None:
            self._job, self._loop = job, asyncio.get_running_loop()

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._job, name)
            if not callable(value):
                return value
            return lambda *args: asyncio.run_coroutine_threadsafe(value(*args), self._loop).result(PATIENCE)

    async def handle(job: Any) -> Any:
        return await asyncio.to_thread(handler, Bridge(job))

    return handle


@pytest.fixture
def fast_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "Backoff", lambda: Backoff(0.01, 0.02))


def settled(peer: Peer) -> tuple[str, dict[str, Any]]:
    """The next DONE or FAIL, answered."""
    message = peer.serve_until(Type.DONE, Type.FAIL, but=(*NOISE, Type.UNSUBSCRIBE))
    peer.answer(message)
    return Type(message.t).name, message.p


def leave(peer: Peer) -> None:
    """See a worker off that was told to stop."""
    peer.answer(peer.serve_until(Type.GOODBYE, but=(*NOISE, Type.UNSUBSCRIBE)))
    peer.finish()


def worker_broker(script: Callable[[Peer], object], **options: Any) -> Broker:
    """A broker for one worker, from its subscription to its goodbye."""

    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.take_worker(**options)
        script(peer)
        leave(peer)

    return Broker(play)


# Outcomes of jobs


def test_a_job_is_acknowledged_done_and_makes_room_for_the_next(start: Any) -> None:
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1, {"n": 20})
        peer.serve(Type.ACK, {"jid": jid(1)})
        peer.serve(Type.DONE, {"jid": jid(1), "result": 21})
        peer.serve(Type.CREDIT, {"sid": SID, "credits": 1})
        over.set()
        peer.serve(Type.UNSUBSCRIBE, {"sid": SID})
        peer.serve(Type.GOODBYE, {"reason": "the worker stops"})

    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.take_worker()
        script(peer)
        peer.finish()

    with Broker(play) as broker:
        running = start(broker, lambda job: job.payload["n"] + 1)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()


async def test_jobs_that_end_together_make_room_by_one_message() -> None:
    all_begun = asyncio.Event()
    begun: list[str] = []

    def script(peer: Peer) -> None:
        for number in range(3):
            peer.push(number)
        for number in range(3):
            peer.serve(Type.ACK, {"jid": jid(number)})
        for number in range(3):
            peer.serve(Type.DONE, {"jid": jid(number)})
        peer.serve(Type.CREDIT, {"sid": SID, "credits": 3})
        worker.stop()

    async def handler(job: Any) -> None:
        begun.append(job.jid)
        if len(begun) == 3:
            asyncio.get_running_loop().call_soon(all_begun.set)
        await all_begun.wait()

    with worker_broker(script, credits=3) as broker:
        worker = AsyncWorker(broker.host, broker.port, queue="emails", handler=handler, concurrency=3)
        await worker.run()


def raising(error: BaseException) -> Callable[[Any], Any]:
    def handler(job: Any) -> Any:
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "kind", "payload"),
    [
        (lambda job: None, "DONE", {}),
        (lambda job: {"a": [1, b"\xff"]}, "DONE", {"result": {"a": [1, b"\xff"]}}),
        (lambda job: False, "DONE", {"result": False}),
        (raising(ValueError("no such address")), "FAIL", {"error": "ValueError: no such address"}),
        (raising(ValueError()), "FAIL", {"error": "ValueError"}),
        (raising(ValueError("\ud800")), "FAIL", {"error": "ValueError: ?"}),
        (raising(Retry(1.5)), "FAIL", {"error": "to be tried again in 1.5 s", "retry_in_ms": 1500}),
        (raising(Retry(0, "busy")), "FAIL", {"error": "busy", "retry_in_ms": 0}),
        (
            lambda job: 0.5,
            "FAIL",
            {"error": "the result cannot be sent: Overhop has no floats: 0.5; send an integer or text"},
        ),
        (lambda job: "x" * 5000, "FAIL", {"error": "the result cannot be sent: DONE of 50"}),
    ],
)
def test_the_broker_is_told_a_handlers_result_or_error(
    start: Any, handler: Any, kind: str, payload: dict[str, Any]
) -> None:
    told: list[Any] = []
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1)
        told.append(settled(peer))
        over.set()

    with worker_broker(script) as broker:
        running = start(broker, handler, max_envelope=2000)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    told_kind, told_payload = told[0]
    if told_payload.get("error", "").startswith("the result cannot be sent: DONE"):
        told_payload["error"] = told_payload["error"][: len(payload["error"])]
    assert (told_kind, told_payload) == (kind, {"jid": jid(1), **payload})


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(5), asyncio.CancelledError()])
def test_not_even_an_odd_exception_in_a_thread_ends_the_worker(error: BaseException) -> None:
    told: list[Any] = []

    def script(peer: Peer) -> None:
        for n in (1, 2):
            peer.push(n)
            told.append(settled(peer))
        running[0].stop()

    running: list[Worker] = []
    with worker_broker(script) as broker:
        running.append(Worker(broker.host, broker.port, {"emails": raising(error)}))
        running[0].run()
    for kind, payload in told:
        assert kind == "FAIL"
        assert type(error).__name__ in payload["error"] or "StopIteration" in payload["error"]


async def test_an_async_handler_that_is_cancelled_by_its_own_doing_has_failed() -> None:
    told: list[Any] = []

    def script(peer: Peer) -> None:
        peer.push(1)
        told.append(settled(peer))
        worker.stop()

    async def handler(job: Any) -> None:
        raise asyncio.CancelledError("inner")

    with worker_broker(script) as broker:
        worker = AsyncWorker(broker.host, broker.port, queue="emails", handler=handler)
        await worker.run()
    assert told == [("FAIL", {"jid": jid(1), "error": "CancelledError: inner"})]


def test_a_handler_sees_its_job_and_may_log_and_beat(start: Any) -> None:
    seen: list[Any] = []
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1, {"to": "ada"}, attempt=2, max_attempts=5)
        peer.serve(Type.ACK)
        peer.serve(Type.LOG, {"jid": jid(1), "line": "begun"})
        peer.serve(Type.BEAT, {"jid": jid(1)})
        peer.serve(Type.LOG, {"jid": jid(1), "line": "7"})
        settled(peer)
        over.set()

    def handler(job: Any) -> None:
        seen.append((job.jid, job.queue, job.payload, job.attempt, job.max_attempts, job.deadline.tzname(), job.lost))
        job.log("begun")
        job.beat()
        job.log(7)

    with worker_broker(script) as broker:
        running = start(broker, handler)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    assert seen == [(jid(1), "emails", {"to": "ada"}, 2, 5, "UTC", False)]


# Heartbeats


@pytest.mark.parametrize(
    ("options", "due", "ahead"),
    [({}, 0.3, 0), ({}, 3600.3, 3600), ({}, -3599.7, -3600), ({"heartbeat": 0.1}, 3600, 0)],
    ids=["a third of the time", "of a broker whose clock is ahead", "whose clock is behind", "as told"],
)
def test_heartbeats_go_out_while_a_handler_runs_and_not_afterwards(
    start: Any, options: Any, due: float, ahead: float
) -> None:
    go_on = {jid(n): threading.Event() for n in (1, 2)}
    over = threading.Event()

    def script(peer: Peer) -> None:
        for n in (1, 2):
            peer.push(n, due=due)
            peer.serve(Type.ACK)
            for _ in range(2):
                peer.serve(Type.BEAT, {"jid": jid(n)})  # and none of the one before
            go_on[jid(n)].set()
            peer.answer(peer.serve_until(Type.DONE))
            peer.serve(Type.CREDIT)
        over.set()

    with worker_broker(script, ahead=ahead) as broker:
        running = start(broker, lambda job: go_on[job.jid].wait(PATIENCE), **options)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()


@pytest.mark.parametrize(("left", "seconds"), [(30, 10), (0.3, 0.1), (0.01, 0.05), (-5, 0.05)])
def test_two_heartbeats_may_be_lost_before_the_deadline(left: float, seconds: float) -> None:
    now = datetime.now(UTC)
    assert module._time_between_beats(now + timedelta(seconds=left), now) == pytest.approx(seconds)


def test_a_job_without_a_deadline_needs_no_heartbeat(start: Any) -> None:
    go_on, over = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1, deadline=None)
        peer.serve(Type.ACK)
        go_on.set()
        peer.serve(Type.DONE)
        over.set()

    with worker_broker(script) as broker:
        running = start(broker, lambda job: go_on.wait(PATIENCE) and None)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()


def test_a_handler_learns_that_its_job_is_not_ours_any_more(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1, due=0.15)
        peer.serve(Type.ACK)
        peer.refuse(peer.expect(Type.BEAT), "JOB_NOT_FOUND", "too late")
        peer.refuse(peer.serve_until(Type.DONE, but=(Type.BEAT,)), "JOB_NOT_FOUND", "too late")
        over.set()

    def handler(job: Any) -> None:
        while not job.lost:
            threading.Event().wait(0.01)
        job.log("into the void")

    with worker_broker(script) as broker:
        running = start(broker, handler)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    refused = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert refused == [f"job {jid(1)}: {kind} refused: JOB_NOT_FOUND: too late" for kind in ("BEAT", "DONE")]


# Concurrency


def test_as_many_jobs_run_at_once_as_was_said(start: Any) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)
    over = threading.Event()

    def script(peer: Peer) -> None:
        for n in range(3):
            peer.push(n)
        for _ in range(3):
            settled(peer)
        over.set()

    with worker_broker(script, credits=3) as broker:
        running = start(broker, lambda job: together.wait() and None, concurrency=3)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()


def test_a_worker_does_the_jobs_of_several_queues(start: Any) -> None:
    over = threading.Event()
    told: list[Any] = []

    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.take_worker()
        request = peer.expect(Type.SUBSCRIBE, {"q": "images", "credits": 1})
        peer.push(1)  # before it has subscribed to all
        peer.answer(request, {"sid": OTHER_SID})
        peer.push(2, sid=OTHER_SID, q="images")
        told.extend((settled(peer), settled(peer)))
        over.set()
        leave(peer)

    with Broker(play) as broker:
        running = start(broker, {"emails": lambda job: "sent", "images": lambda job: "shrunk"})
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    assert sorted(payload["result"] for _, payload in told) == ["sent", "shrunk"]
    assert {payload["jid"]: payload["result"] for _, payload in told}[jid(2)] == "shrunk"


# Stopping


def test_stopping_lets_jobs_finish_and_gives_back_what_has_not_begun(start: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    started: Future[Running] = Future()
    seen: list[str] = []

    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.take_worker(credits=2)
        peer.push(1)
        peer.serve(Type.ACK)
        assert begun.wait(PATIENCE)
        started.result(PATIENCE).worker.stop()
        unsubscribe = peer.expect(Type.UNSUBSCRIBE, {"sid": SID})
        peer.push(2)  # it was on its way
        peer.answer(unsubscribe)
        go_on.set()
        assert settled(peer) == ("DONE", {"jid": jid(1), "result": 1})
        peer.serve(Type.GOODBYE)
        peer.finish()

    def handler(job: Any) -> int:
        seen.append(job.jid)
        begun.set()
        go_on.wait(PATIENCE)
        return job.attempt  # type: ignore[no-any-return]

    with Broker(play) as broker:
        running = start(broker, handler, concurrency=2)
        started.set_result(running)
        running.end()
    assert seen == [jid(1)]


def test_a_thread_that_takes_longer_than_its_grace_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.push(1)
        assert begun.wait(PATIENCE)
        worker.stop()

    def handler(job: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE)
        job.log("into the void")
        left.set()

    with worker_broker(script) as broker:
        worker = Worker(broker.host, broker.port, {"emails": handler}, grace=0.05)
        worker.run()
        go_on.set()
    assert left.wait(PATIENCE)
    assert f"job {jid(1)}: still running after 0.05 s, and given back" in caplog.messages


async def test_an_async_handler_is_cancelled_when_its_grace_is_over() -> None:
    outcome: list[str] = []

    def script(peer: Peer) -> None:
        peer.push(1)
        peer.serve(Type.ACK)
        worker.stop()

    async def handler(job: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise

    with worker_broker(script) as broker:
        worker = AsyncWorker(broker.host, broker.port, {"emails": handler}, grace=0.01)
        await worker.run()
    assert outcome == ["cancelled"]


def test_a_handler_may_stop_its_worker(start: Any) -> None:
    def script(peer: Peer) -> None:
        peer.push(1)
        assert settled(peer)[0] == "DONE"

    with worker_broker(script) as broker:
        known: Future[Callable[[], None]] = Future()
        running = start(broker, lambda job: known.result(PATIENCE)())
        known.set_result(running.worker.stop)
        running.end()


def test_a_signal_handler_may_stop_a_worker() -> None:
    def script(peer: Peer) -> None:
        peer.push(1)
        settled(peer)
        signal.raise_signal(signal.SIGUSR1)

    with worker_broker(script) as broker:
        worker = Worker(broker.host, broker.port, queue="emails", handler=lambda job: None)
        before = signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
        try:
            worker.run()
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_a_worker_that_was_stopped_before_does_nothing_and_none_runs_twice() -> None:
    worker = Worker("127.0.0.1", 1, {"emails": lambda job: None})
    worker.stop()
    worker.run()
    worker.stop()
    with pytest.raises(RuntimeError, match=r"^this worker has run: make another$"):
        worker.run()


def test_a_worker_stops_while_it_tries_to_connect(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Event()

    class Tell(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tried.set()

    logger = logging.getLogger(module.__name__)
    logger.addHandler(tell := Tell())
    try:
        with ClosedPort() as closed:
            running = start(closed, lambda job: None)
            assert tried.wait(PATIENCE)
            running.worker.stop()
            running.end()
    finally:
        logger.removeHandler(tell)


# Reconnecting


def test_a_lost_connection_is_made_again_and_late_answers_are_dropped(
    start: Any, fast_reconnects: None, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, over = threading.Event(), threading.Event()

    def play(broker: Broker) -> None:
        first = broker.accept()
        first.take_worker(credits=2)
        first.push(1)
        first.serve(Type.ACK)
        first.hang_up()
        second = broker.accept()
        second.take_worker(credits=1)  # one handler is still at it
        go_on.set()
        second.serve(Type.CREDIT, {"sid": SID, "credits": 1})  # and no DONE
        second.push(2)
        assert settled(second) == ("DONE", {"jid": jid(2), "result": jid(2)})
        over.set()
        leave(second)

    def handler(job: Any) -> str:
        go_on.wait(PATIENCE)
        return job.jid  # type: ignore[no-any-return]

    with Broker(play) as broker:
        running = start(broker, handler, concurrency=2)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    assert f"job {jid(1)}: its connection is gone, and its DONE is dropped" in caplog.messages
    assert any("connection lost: the broker closed the connection" in message for message in caplog.messages)


def test_an_answer_that_was_never_confirmed_is_told(
    start: Any, fast_reconnects: None, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def play(broker: Broker) -> None:
        first = broker.accept()
        first.take_worker()
        first.push(1)
        first.serve_until(Type.DONE)
        first.hang_up()
        second = broker.accept()
        second.take_worker()
        over.set()
        leave(second)

    with Broker(play) as broker:
        running = start(broker, lambda job: None)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    assert any(message.startswith(f"job {jid(1)}: DONE was not confirmed: ") for message in caplog.messages)


def test_a_broker_that_is_not_there_yet_is_waited_for(
    start: Any, fast_reconnects: None, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def play(broker: Broker) -> None:
        broker.accept().hang_up()
        second = broker.accept()
        second.greet()
        second.pong()
        second.refuse(second.expect(Type.SUBSCRIBE), "UNAVAILABLE", "the database is away")
        third = broker.accept()
        third.take_worker()
        over.set()
        leave(third)

    with Broker(play) as broker:
        running = start(broker, lambda job: None)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()
    assert any("UNAVAILABLE: the database is away; next attempt in" in message for message in caplog.messages)


def test_the_pauses_between_attempts_grow_and_are_never_quite_the_same() -> None:
    pauses = Backoff().delays()
    for longest in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5):
        assert longest / 2 <= next(pauses) <= longest
    assert len({next(pauses) for _ in range(5)}) == 5


def test_a_queue_that_is_not_there_is_told_at_once(start: Any) -> None:
    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.greet()
        peer.pong()
        peer.refuse(peer.expect(Type.SUBSCRIBE), "QUEUE_NOT_FOUND", "no queue 'emails'")
        peer.finish()

    with Broker(play) as broker, pytest.raises(QueueNotFound):
        start(broker, lambda job: None).end()


def test_a_server_of_another_kind_is_told_at_once(start: Any) -> None:
    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.expect(Type.HELLO)
        peer.send_bytes(b"HTTP/1.1 400 Bad Request")
        peer.finish()

    with Broker(play) as broker, pytest.raises(ProtocolViolation):
        start(broker, lambda job: None).end()


def test_a_queue_that_takes_no_credits_any_more_is_subscribed_to_again(
    start: Any, fast_reconnects: None, caplog: pytest.LogCaptureFixture
) -> None:
    def play(broker: Broker) -> None:
        first = broker.accept()
        first.take_worker()
        first.push(1)
        first.refuse(first.serve_until(Type.CREDIT, but=(Type.ACK, Type.DONE)), "SUBSCRIPTION_NOT_FOUND")
        second = broker.accept()
        second.greet()
        second.pong()
        second.refuse(second.expect(Type.SUBSCRIBE), "QUEUE_NOT_FOUND", "deleted")
        second.finish()

    with Broker(play) as broker, pytest.raises(QueueNotFound, match="deleted"):
        start(broker, lambda job: None).end()
    assert any("no credits taken (SUBSCRIPTION_NOT_FOUND: no)" in message for message in caplog.messages)


def test_an_idle_worker_asks_whether_the_broker_is_still_there(
    start: Any, fast_reconnects: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET", 0.05)
    over = threading.Event()
    started: Future[Running] = Future()

    def play(broker: Broker) -> None:
        first = broker.accept()
        first.take_worker()
        ping = first.expect(Type.PING)
        worker = started.result(PATIENCE).worker
        connection = getattr(worker, "_worker", worker)._connection
        connection.core.timeout = 0.3  # from here on: all that came before takes as long as it takes
        first.answer(ping, {"server_time": "2026-01-02T03:04:05+00:00"}, Type.PONG)
        first.expect(Type.PING)  # which stays unanswered
        second = broker.accept()
        second.take_worker()
        over.set()
        leave_with_pings(second)

    with Broker(play) as broker:
        running = start(broker, lambda job: None)
        started.set_result(running)
        assert over.wait(PATIENCE)
        running.worker.stop()
        running.end()


def leave_with_pings(peer: Peer) -> None:
    while (message := peer.read()) is not None:
        if message.t == Type.PING:
            peer.answer(message, {"server_time": "2026-01-02T03:04:05+00:00"}, Type.PONG)
        else:
            peer.answer(message)


def test_a_broker_that_is_not_trusted_is_told_at_once(start: Any, tmp_path: Any) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*Authority(tmp_path, "stranger").issue("server"))
    context = ssl.create_default_context(cafile=str(Authority(tmp_path).file))

    def play(broker: Broker) -> None:
        peer = broker.accept()
        with pytest.raises(ssl.SSLError):
            server.wrap_socket(peer._connection, server_side=True)

    with Broker(play) as broker, pytest.raises(TlsFailed, match="certificate is not trusted"):
        start(broker, lambda job: None, tls=context, server_hostname="localhost").end()


# Misuse


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"handlers": {}},
        {"queue": "emails"},
        {"handler": print},
        {"handlers": {"emails": print}, "queue": "emails", "handler": print},
    ],
)
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_worker_needs_handlers(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^give handlers by queue, or one queue and its handler$"):
        kind("127.0.0.1", 1, **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0: it must be 1 or more"),
        ({"heartbeat": 0}, "heartbeat is 0: give seconds, or None"),
        ({"heartbeat": float("nan")}, "heartbeat is nan: give seconds, or None"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Worker("127.0.0.1", 1, {"emails": print}, **options)
    with pytest.raises(ValueError, match=r"^seconds is -1: give seconds, 0 or more$"):
        Retry(-1)


def test_unavailable_is_the_kind_of_refusal_that_passes() -> None:
    assert reconnecting.passes(Unavailable("UNAVAILABLE"))
    assert reconnecting.passes(ConnectionResetError())
    assert not reconnecting.passes(QueueNotFound("QUEUE_NOT_FOUND"))
    assert reconnecting.passes(TlsFailed("the broker closed the connection within the TLS handshake"))
