"""The announcement of messages that Django's transactions made ready."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from queues.api import publish, publish_many
from queues.models import Message
from tests.queues.store import listening, make_queue

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def notifying(fails: bool = False) -> Iterator[list[tuple[bool, str]]]:
    """The statements that notify: whether each is in a transaction of the caller's, and its text."""
    found: list[tuple[bool, str]] = []

    def wrapper(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if "pg_notify" in sql:
            found.append((connection.in_atomic_block, sql))
            sql = "no statement" if fails else sql
        return execute(sql, *args)

    with connection.execute_wrapper(wrapper):
        yield found


def test_publishers_of_django_do_not_wait_for_each_others_disk() -> None:
    queue = make_queue()
    with listening() as heard, notifying() as found:
        id = publish("orders", b"1")
        assert heard.take("ready") == [{str(queue.pk): id}]
        with transaction.atomic():
            first = publish("orders", b"2")
            publish("orders", b"3")
            publish_many("orders", [b"4", b"5"])
            assert len(found) == 1
        assert heard.take("ready") == [{str(queue.pk): first}]
    assert [(inside, "'synchronous_commit', 'off', true" in sql) for inside, sql in found] == [(False, True)] * 2


def test_what_a_savepoint_takes_back_is_not_announced() -> None:
    queue = make_queue()
    with listening() as heard:
        with transaction.atomic():
            with transaction.atomic():
                publish("orders", b"gone")
                transaction.set_rollback(True)
            id = publish("orders", b"stays")
        assert heard.take("ready") == [{str(queue.pk): id}]


def test_a_transaction_that_is_rolled_back_announces_nothing() -> None:
    make_queue()
    with notifying() as found, transaction.atomic():
        publish("orders", b"gone")
        transaction.set_rollback(True)
    assert found == []


def test_a_publish_whose_announcement_fails_is_stored_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    make_queue()
    with caplog.at_level(logging.ERROR, "django.db"), notifying(fails=True) as found:
        id = publish("orders", b"x")
    assert (len(found), Message.objects.get().pk) == (1, id)
    assert publish("orders", b"y") is not None


def test_a_caller_who_commits_by_hand_announces_with_the_commit() -> None:
    queue = make_queue()
    with listening() as heard:
        transaction.set_autocommit(False)
        try:
            id = publish("orders", b"x")
            assert heard.take("ready") == []
            transaction.commit()
            assert heard.take("ready") == [{str(queue.pk): id}]
        finally:
            transaction.set_autocommit(True)
