"""Threads and connections that one request leaves for the next, in front of Django's own ASGI handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from django.contrib import admin
from django.core.asgi import get_asgi_application
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.urls import path

from brokersite import workers as module
from brokersite.admission import PageScheduler
from brokersite.workers import MAX_IDLE, SILENCE, RequestThreads
from queues.database.parameters import connection_parameters
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

#: Requests that are under way at the same time meet here.
_meeting = threading.Barrier(1)


def where(request: HttpRequest) -> HttpResponse:
    """The thread that answers, and the session of the database."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return HttpResponse(f"{threading.get_ident()} {cursor.fetchone()[0]}")


def meet(request: HttpRequest) -> HttpResponse:
    _meeting.wait(60)
    return where(request)


def fail(request: HttpRequest) -> HttpResponse:
    where(request)
    raise ValueError


def silence(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse(connection.connection.info.get_parameters()["tcp_user_timeout"])


async def late(request: HttpRequest) -> HttpResponse:
    return HttpResponse("late")


urlpatterns = [
    path("where", where), path("meet", meet), path("fail", fail), path("silence", silence), path("late", late),
    path("admin/where", where), path("admin/", admin.site.urls),
]  # fmt: skip


class Turns(PageScheduler):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(100)
        self.asked = 0
        self.spent: list[float] = []

    async def turn(self) -> None:
        self.asked += 1

    def end(self, seconds: float) -> None:
        self.spent.append(seconds)


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
async def workers(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RequestThreads]:
    for name in ("CONN_MAX_AGE", "OPTIONS"):  # what the workers set is the site's alone
        monkeypatch.setitem(connections.databases["default"], name, connections.databases["default"][name])
    made = RequestThreads(get_asgi_application(), turns)
    yield made
    await made.stop()


Get = Callable[[str], Any]


@pytest.fixture
def get(workers: RequestThreads) -> Get:
    """The status and the body of an address."""

    async def get(address: str) -> tuple[int, str]:
        sent: list[Any] = []
        requests = [{"type": "http.request"}]

        async def receive() -> Any:
            return requests.pop() if requests else await asyncio.Event().wait()

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "GET", "path": address, "headers": [(b"host", b"localhost")]}
        async with asyncio.timeout(60):
            await workers({**scope, "query_string": b""}, receive, send)
        return sent[0]["status"], sent[1]["body"].decode()

    return get


async def together(get: Get, count: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The threads and sessions of so many requests at the same time."""
    monkeypatch.setattr(f"{__name__}._meeting", threading.Barrier(count))
    answers = await asyncio.gather(*(get("/meet") for _ in range(count)))
    return [(thread, session) for _, body in answers for thread, session in [body.split()]]


def sessions(pids: list[str]) -> list[str]:
    """Those of these sessions that are there still."""
    with psycopg.connect(**connection_parameters()) as operator:
        rows = operator.execute("select pid::text from pg_stat_activity where pid = any(%s::int[])", [pids]).fetchall()
    return [pid for (pid,) in rows]


async def test_the_next_request_has_the_thread_and_the_session_of_the_one_before(get: Get) -> None:
    first = await get("/where")
    assert first[0] == 200
    assert {await get("/where") for _ in range(3)} == {first}


async def test_requests_at_the_same_time_have_threads_and_sessions_of_their_own(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await together(get, 3, monkeypatch)
    assert [len(set(column)) for column in zip(*found, strict=True)] == [3, 3]
    assert (await get("/where"))[1].split() in [list(one) for one in found]


async def test_a_few_threads_are_kept_and_the_others_end_with_their_sessions(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPARE_AGE", 0.2)
    found = [session for _, session in await together(get, MAX_IDLE + 3, monkeypatch)]
    await until(lambda: len(sessions(found)) == MAX_IDLE)


async def test_browsers_that_ask_together_again_and_again_have_the_same_sessions(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = [sorted(await together(get, MAX_IDLE + 6, monkeypatch)) for _ in range(3)]
    assert bursts[0] == bursts[1] == bursts[2]


async def test_more_than_so_many_threads_are_never_kept(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPARE", MAX_IDLE + 1)
    found = [session for _, session in await together(get, MAX_IDLE + 3, monkeypatch)]
    await until(lambda: len(sessions(found)) == MAX_IDLE + 1)


async def test_a_session_that_the_server_has_ended_is_replaced_unseen(get: Get) -> None:
    _, before = await get("/where")
    thread, session = before.split()
    with psycopg.connect(**connection_parameters(), autocommit=True) as operator:
        operator.execute("select pg_terminate_backend(%s)", [session])
    await until(lambda: not sessions([session]))
    status, after = await get("/where")
    assert status == 200
    assert after.split()[0] == thread
    assert after.split()[1] != session


async def test_a_request_that_fails_leaves_its_thread_to_the_next(get: Get) -> None:
    before = await get("/where")
    assert (await get("/fail"))[0] == 500
    assert await get("/where") == before


async def test_an_asynchronous_view_is_answered_too(get: Get) -> None:
    assert await get("/late") == (200, "late")


async def test_the_end_leaves_no_session(get: Get, workers: RequestThreads) -> None:
    _, session = (await get("/where"))[1].split()
    assert sessions([session]) == [session]
    await workers.stop()
    await until(lambda: not sessions([session]))


async def test_a_server_that_falls_silent_is_left(get: Get) -> None:
    assert await get("/silence") == (200, str(SILENCE))


async def test_pages_of_the_admin_are_admitted_and_their_work_is_counted(get: Get, turns: Turns) -> None:
    await get("/where")
    assert turns.asked == 0
    await get("/admin/where")
    assert turns.asked == 1
    [spent] = turns.spent
    assert spent > 0.0
