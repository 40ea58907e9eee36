"""Visits of pages in this process, with what each costs: time, queries, and how long the database kept a snapshot."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from queues.operations.monitor import reader
from tests.rigs.control_room.pages import Page

#: A page's limits: seconds of time and of a snapshot, and queries, those for the session and the user included.
MAX_SECONDS, MAX_SNAPSHOT, MAX_QUERIES = 0.3, 1.0, 12


@dataclass(frozen=True, slots=True)
class Visited:
    """One page. `seconds` is the median of its visits by the clock, `processor` what the fewest of them used here."""

    page: Page
    status: int
    queries: int
    seconds: float
    processor: float
    #: Seconds in statements, of the visit that was counted.
    database: float
    #: The longest statement, or run of statements within transactions.
    snapshot: float

    @property
    def faults(self) -> list[str]:
        """The limits that the visit exceeds."""
        found = {
            f"status {self.status}": self.status != self.page.status, "time": self.seconds > MAX_SECONDS,
            "queries": self.queries > MAX_QUERIES, "snapshot": self.snapshot > MAX_SNAPSHOT,
        }  # fmt: skip
        return [fault for fault, is_so in found.items() if is_so]


class Visitor:
    """A browser of this process, in which a user is logged in. It has the front page look anew at each visit."""

    def __init__(self, user: User) -> None:
        self._client = Client(SERVER_NAME="127.0.0.1")
        self._client.force_login(user)

    def open(self, page: Page) -> HttpResponse:
        """Open a page."""
        reader.forget()
        if page.form is None:
            return self._client.get(page.address)  # type: ignore[return-value]
        return self._client.post(page.address, dict(page.form))  # type: ignore[return-value]

    def _timed(self, page: Page) -> tuple[float, float]:
        began, used = time.perf_counter(), time.process_time()
        self.open(page)
        return time.perf_counter() - began, time.process_time() - used

    def visit(self, page: Page, times: int) -> Visited:
        """Open a page once to count, and then so many times by the clock."""
        spent = _Statements()
        with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(spent):
            response = self.open(page)
        count = len(queries)  # the next request empties their list
        seconds, processor = zip(*(self._timed(page) for _ in range(times)), strict=True) if times else ((0.0,),) * 2
        return Visited(
            page, response.status_code, count, statistics.median(seconds), min(processor), spent.total,
            spent.longest,
        )  # fmt: skip


class _Statements:
    """A timer of statements, in seconds. Those that follow each other within a transaction count as one."""

    def __init__(self) -> None:
        self.total = self.longest = 0.0
        self._began: float | None = None

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        in_transaction = context["connection"].in_atomic_block
        if not in_transaction or self._began is None:
            self._began = began
        try:
            return execute(sql, params, many, context)
        finally:
            now = time.perf_counter()
            self.total += now - began
            self.longest = max(self.longest, now - self._began)
            self._began = self._began if in_transaction else None
