"""The state of the broker as figures, and `manage.py top`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection
from django.utils import timezone

from brokersite.environment import CHECKOUT
from queues.api import publish
from queues.management.commands.top import CLEAR
from queues.models import Interest, Message, Queue, SampleMark
from queues.operations import overview
from queues.operations.messages import purge
from queues.operations.overview import oldest_ready, take_overview
from queues.operations.queues import create_queue, delete_queue
from queues.store.queries import query_within, text
from tests.queues.shell import Shell
from tests.queues.store import another_connection, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that the test moves on."""

    class Clock:
        time = timezone.now()

        @classmethod
        def now(cls, zone: object) -> Any:
            return cls.time

    monkeypatch.setattr(overview, "datetime", Clock)
    return Clock


def test_rates_are_messages_a_second_since_the_last_look(clock: Any) -> None:
    create_queue("orders")
    publish("orders", b"1")
    before = take_overview()
    publish("orders", b"2")
    publish("orders", b"3")
    purge("orders")
    clock.time += timedelta(seconds=2)
    now = take_overview(before)
    (orders,) = (queue for queue in now.queues if queue.name == "orders")
    assert (before.in_rate, orders.in_rate, orders.out_rate) == (0.0, 1.0, 1.5)
    assert (now.in_rate, now.out_rate, now.totals.ready) == (1.0, 1.5, 0)


def test_a_queue_that_was_idle_has_its_rates_while_messages_come_and_none_after_that(clock: Any) -> None:
    create_queue("orders")
    look, rates = None, []
    for count in (0, 0, 4, 0, 0, 2):
        for _ in range(count):
            publish("orders", b"1")
        clock.time += timedelta(seconds=2)
        look = take_overview(look)
        rates.append((look.in_rate, look.totals.ready))
    assert rates == [(0.0, 0), (0.0, 0), (2.0, 4), (0.0, 4), (0.0, 4), (1.0, 6)]


@pytest.mark.django_db(transaction=True)
def test_a_later_look_reads_the_queues_that_have_changed_and_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        create_queue(f"orders.{number}")
    node, queues = make_node(), {queue.name: queue for queue in Queue.objects.all()}
    Interest.objects.create(queue=queues["orders.1"], node=node)
    read: list[int] = []
    def counted(name: str, *given: Any, **parameters: Any) -> Any:
        rows = query_within(name, *given, **parameters)
        read.extend([len(rows)] if name == "state_queues" else [])
        return rows

    monkeypatch.setattr(overview, "query_within", counted)

    def look(before: Any) -> Any:
        """The look after one, which is what a look at everything is."""
        after = take_overview(before)
        everything = take_overview().queues
        assert [one._replace(in_rate=0.0, out_rate=0.0) for one in after.queues] == everything
        read.pop()
        return after

    def fold() -> None:
        with connection.cursor() as cursor:
            cursor.execute(text("fold_tallies"), {"low": 0, "slots": [0], "ids": None, "skip": []})

    def mark() -> None:
        figures = dict.fromkeys(("ready", "leased", "delayed", "published", "settled"), 0)
        SampleMark.objects.create(queue=queues["orders.5"].pk, at=timezone.now(), dead=7, **figures)

    def move_interest() -> None:
        Interest.objects.all().delete()
        Interest.objects.create(queue=queues["orders.2"], node=node)

    def make_again() -> None:
        delete_queue("orders.8")
        create_queue("orders.8")

    shown = look(look(take_overview()))
    for change, count in (
        (lambda: None, 0), (lambda: publish("orders.3", b"1"), 1), (fold, 1), (mark, 1),
        (lambda: Queue.objects.filter(name="orders.4").update(paused=True), 1), (move_interest, 20),
        (lambda: Interest.objects.all().delete(), 20), (lambda: delete_queue("orders.6"), 19),
        (lambda: create_queue("orders.7a"), 20), (make_again, 20),
    ):  # fmt: skip
        shown = look(shown)
        change()
        shown = look(shown)
        # The server shows transactions of all its databases; those of other tests make a look read more.
        assert read[-1] == count or ("DATABASE_URL" in os.environ and read[-1] > count), change


@pytest.mark.django_db(transaction=True)
def test_a_change_that_was_under_way_during_a_look_is_seen_by_the_next_one() -> None:
    create_queue("orders")
    create_queue("other")
    with another_connection() as another:
        another.execute("update queues_queue set paused = true where name = 'orders'")
        publish("other", b"1")  # later transactions end meanwhile
        shown = take_overview(take_overview())
        assert [queue.paused for queue in shown.queues] == [False, False]
        another.commit()
    assert [queue.paused for queue in take_overview(shown).queues] == [True, False]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.django_db(transaction=True)
def test_a_page_does_not_wait_for_a_locked_table_whatever_the_project_does_with_parameters(
    monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", typed)
    with another_connection() as another:
        another.execute("lock table queues_queue")
        with pytest.raises(OperationalError, match="statement timeout"):
            query_within("state_queues", DEFAULT_DB_ALIAS, 100, queues=None, since=None)
    with connection.cursor() as cursor:
        cursor.execute("show statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_the_age_of_a_queue_is_that_of_its_first_ready_message(clock: Any) -> None:
    create_queue("orders")
    create_queue("empty")
    publish("orders", b"1")
    publish("orders", b"2")
    first = Message.objects.order_by("id")[0]
    clock.time = first.published_at + timedelta(seconds=90)
    ids = dict(Queue.objects.values_list("name", "id"))
    assert oldest_ready(ids.values()) == {ids["orders"]: pytest.approx(90.0)}


def test_a_look_takes_two_queries_with_any_number_of_queues(django_assert_num_queries: Any) -> None:
    for number in range(20):
        create_queue(f"orders.{number}")
    with django_assert_num_queries(4):
        assert len(take_overview(take_overview()).queues) >= 20


def test_top_shows_queues_with_their_counts_in_order(shell: Shell) -> None:
    create_queue("quiet")
    create_queue("busy", paused=True)
    publish("busy", b"1")
    shown = shell("top", "--count", "1", "--interval", "0", "--sort", "ready")
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert "1 ready" in lines[0]
    names = [line.split()[0] for line in lines[4:] if line.strip()]
    assert names[0] == "busy"
    assert "paused" in next(line for line in lines if line.startswith("busy"))
    assert "quiet" in names


def test_top_prints_one_object_a_look(shell: Shell) -> None:
    create_queue("orders")
    publish("orders", b"1")
    shown = shell("top", "--count", "2", "--interval", "0", "--json", "--limit", "1", "--sort", "ready")
    first, second = map(json.loads, shown.out.splitlines())
    assert first["queues"][0] == second["queues"][0] | {"oldest": first["queues"][0]["oldest"]}
    assert (first["queues"][0]["name"], first["queues"][0]["ready"]) == ("orders", 1)


def test_top_refuses_a_sort_that_is_none(shell: Shell) -> None:
    assert shell("top", "--sort", "colour").status == 2


def test_top_refreshes_in_place_on_a_terminal_until_ctrl_c(database_url: str) -> None:
    create_queue("orders")
    publish("orders", b"1")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "manage.py", "top", "--interval", "0.1", "--sort", "ready"], cwd=CHECKOUT, close_fds=True,
        env={**os.environ, "DATABASE_URL": database_url, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        shown = ""
        while shown.count(CLEAR) < 3:
            shown += os.read(ours, 65_536).decode()
        first, second = shown.split(CLEAR)[1:3]
        assert "1 ready" in first
        assert "orders" in second
        assert len(second.splitlines()) <= 10, "it fits the terminal"
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            with suppress(OSError):  # the other end is closed when it has ended
                os.read(ours, 65_536)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
