"""Counts of queues."""

from __future__ import annotations

import pytest
from django.db import connection
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.api import publish_many
from queues.engine.statements import statement
from queues.models import QueueTally, State
from queues.store.counts import QueueCounts, many_counts, queue_counts
from tests.queues.store import make_queue, store

pytestmark = pytest.mark.django_db


def test_every_state_is_counted_and_dead_letters_being_read_are_dead() -> None:
    queue = make_queue()
    for n, state in enumerate(State, 1):
        store(queue, state, n)
    assert queue_counts(queue.pk) == QueueCounts(ready=1, leased=2, delayed=3, dead=9, published=15, settled=0)
    assert queue_counts(queue.pk).held == 15


def test_counts_are_the_same_before_and_after_tallies_are_folded() -> None:
    queue = make_queue()
    store(queue, count=3)
    before = queue_counts(queue.pk)
    with connection.cursor() as cursor:
        cursor.execute(statement("fold_tallies").decode(), {"low": 0, "slots": "{0}", "ids": None, "skip": "{}"})
    assert not QueueTally.objects.exists()
    assert queue_counts(queue.pk) == before
    publish_many("orders", [b"", b""])
    assert queue_counts(queue.pk).ready == 5


def test_all_queues_are_counted_in_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    queues = [make_queue(f"q{n}") for n in range(3)]
    store(queues[1], count=2)
    with django_assert_num_queries(1):
        counts = many_counts()
    assert {queue.name: counts[queue.pk].ready for queue in queues} == {"q0": 0, "q1": 2, "q2": 0}
    assert many_counts([queues[1].pk, -1]).keys() == {queues[1].pk}


def test_a_queue_that_does_not_exist_holds_nothing() -> None:
    assert queue_counts(-1) == QueueCounts()
