"""The threads in which Django answers requests, each with its connections to the database.

Under ASGI Django starts a thread for each request and ends it afterwards; its connections belong to threads, so each
request opens one. Connecting costs PostgreSQL and this process more than most pages do. Here a request borrows a thread
that an earlier one has used, with the connection. A pool of connections would do as well, but for good loses those of
threads that end without giving them back.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from asgiref.sync import ThreadSensitiveContext
from django.core.signals import request_started
from django.db import connections
from django.urls import reverse

from brokersite.admission import PageScheduler
from brokersite.path_prefix import path_within
from queues.database.parameters import KEEPALIVES

#: Idle threads that are kept. So many pages are rarely under way at the same time; where they are, as when browsers
#: that refresh a page ask at the same moment, more are kept as long as they are needed again within some seconds.
MAX_IDLE: Final = 4
MAX_SPARE: Final = 16
SPARE_AGE: Final = 10.0
#: Seconds after which a connection is replaced, at the next request.
CONNECTION_AGE: Final = 60
#: Milliseconds for which the server of a kept connection may be silent to what was sent.
SILENCE: Final = 15_000
#: Poll events of a socket whose other side is gone.
CLOSED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL

Application = Callable[[Any, Any, Any], Awaitable[None]]


class RequestThread(ThreadPoolExecutor):
    """One thread."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="request")
        #: Seconds for which it has worked, and since when it does not.
        self.worked = 0.0
        self.idle_since = 0.0

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have the thread do something."""
        return super().submit(self._work, work, *args, **kwargs)

    def _work(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            return work(*args, **kwargs)
        finally:
            self.worked += time.monotonic() - began


class RequestThreads:
    """An ASGI application around Django's that lends a worker to each request. The admin's are admitted first."""

    def __init__(self, application: Application, admission: PageScheduler) -> None:
        self._application = application
        self._admission = admission
        self._admin = reverse("admin:index")  # no request, so no prefix
        self._idle: list[RequestThread] = []
        self._ending: asyncio.TimerHandle | None = None
        for database in connections.databases.values():
            database["CONN_MAX_AGE"] = CONNECTION_AGE
            database["OPTIONS"] = KEEPALIVES | {"tcp_user_timeout": SILENCE} | database["OPTIONS"]
        request_started.connect(leave_lost_connections)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_page = path_within(scope).startswith(self._admin)
        if is_page:
            await self._admission.turn()
        worker = self._idle.pop() if self._idle else RequestThread()
        worked = worker.worked
        try:
            async with ThreadSensitiveContext(executor=worker):
                await self._application(scope, receive, send)
        finally:
            if is_page:
                self._admission.end(worker.worked - worked)
            worker.idle_since = time.monotonic()
            self._idle.append(worker)  # the last one is the next to work
            if len(self._idle) > MAX_SPARE:
                _end(self._idle.pop(0))
            if len(self._idle) > MAX_IDLE and self._ending is None:
                self._ending = asyncio.get_running_loop().call_later(SPARE_AGE, self._end_spare)

    def _end_spare(self) -> None:
        """End threads that were not needed for some seconds, but for a few."""
        self._ending = None
        while len(self._idle) > MAX_IDLE and time.monotonic() - self._idle[0].idle_since >= SPARE_AGE:
            _end(self._idle.pop(0))
        if len(self._idle) > MAX_IDLE:
            self._ending = asyncio.get_running_loop().call_later(SPARE_AGE, self._end_spare)

    async def stop(self) -> None:
        """End the idle threads, and their connections."""
        if self._ending is not None:
            self._ending.cancel()
        while self._idle:
            _end(self._idle.pop())


def leave_lost_connections(**kwargs: Any) -> None:
    """Close this thread's connections whose server has gone, so that the next statement opens another."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and _is_lost(connection.connection.fileno()):
            connection.close()


def _is_lost(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, CLOSED)
    return any(what & CLOSED for _, what in poll.poll(0))


def _end(worker: RequestThread) -> None:
    worker.submit(connections.close_all)
    worker.shutdown(wait=False)
