"""The tables' own constraints, and the rows they keep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import DateTimeField, Model
from django.utils import timezone

from queues.api import publish
from queues.models import (
    ArchivedMessage,
    Message,
    Queue,
    QueueCount,
    Route,
    State,
    Subscription,
    TaskRun,
    Topology,
)
from queues.models.moment import MomentField
from tests.queues.store import listening, make_node, make_queue, store

pytestmark = pytest.mark.django_db


def refused(model: type[Model], constraint: str, **fields: Any) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        model._default_manager.create(**fields)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"name": ""}, "queue_name_not_empty"),
        ({"name": "a"}, "queues_queue_name"),
        ({"name": "b", "kind": "other"}, "queue_kind_known"),
        ({"name": "b", "overflow": "other"}, "queue_overflow_known"),
        ({"name": "b", "retention": "other"}, "queue_retention_known"),
        ({"name": "b", "concurrency_limit": 0}, "queue_concurrency_positive"),
        ({"name": "b", "max_length": 0}, "queue_length_positive"),
        ({"name": "b", "retry_backoff": timedelta(-1)}, "queue_backoff_not_negative"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(fields: dict[str, Any], constraint: str) -> None:
    make_queue("a")
    refused(Queue, constraint, **fields)


def test_a_queue_is_not_its_own_dead_letter_queue() -> None:
    queue = make_queue()
    with pytest.raises(IntegrityError, match="queue_not_its_own_dead_letter_queue"), transaction.atomic():
        Queue.objects.update(dead_letter_queue=queue)


def test_a_message_is_in_exactly_one_known_state() -> None:
    queue, node = make_queue(), make_node()
    message: dict[str, Any] = {"id": 1, "queue": queue, "payload": b"", "attempts": 0}
    refused(Message, "message_state_known", state=9, **message)
    refused(Message, "message_delayed_has_due_time", state=State.DELAYED, **message)
    refused(Message, "message_leased_has_node", state=State.LEASED, **message)
    refused(Message, "message_leased_has_node", state=State.READY, node=node, **message)
    Message.objects.create(state=State.LEASED, node=node, **message)


def test_a_key_is_unique_in_its_queue_only() -> None:
    queue, other = make_queue(), make_queue("other")
    store(queue, key="a"), store(other, key="a"), store(queue), store(queue)
    refused(Message, "message_key", id=1, queue=queue, state=0, attempts=0, payload=b"", key="a")


@pytest.mark.parametrize(
    ("source", "target", "constraint"),
    [
        ("queue:a", "queue:a", "route_not_to_itself"),
        ("a", "queue:b", "route_addresses"),
        ("queue:a", "topic:", "route_addresses"),
        ("queue:x", "queue:y", "route_once"),
    ],
)
def test_a_route_that_cannot_be_is_refused(source: str, target: str, constraint: str) -> None:
    Route.objects.create(source="queue:x", target="queue:y")
    refused(Route, constraint, source=source, target=target)


def test_a_subscription_has_a_topic_and_a_known_qos() -> None:
    queue = make_queue()
    refused(Subscription, "subscription_qos_known", topic=b"a", qos=2, queue=queue)
    refused(Subscription, "subscription_topic_not_empty", topic=b"", qos=1, queue=queue)


def test_every_queue_has_counts_from_the_beginning() -> None:
    assert QueueCount.objects.get(queue=make_queue()).ready == 0


def test_names_of_the_system_are_known_by_their_first_character() -> None:
    assert [Queue(name=name).is_system for name in ("_a", "a_")] == [True, False]


def test_a_finished_message_lies_in_the_partition_of_its_day_and_goes_with_it() -> None:
    now = timezone.now()
    with connection.cursor() as cursor:  # other tests make older days' partitions, and so does a run since yesterday
        cursor.execute("select queues_drop_archive_partitions(%s)", [now.date()])
    for days in (0, 2):
        ArchivedMessage.objects.create(
            id=days, queue=make_queue(f"q{days}"), outcome=0, attempts=0, published_at=now, size=0,
            finished_at=now - timedelta(days=days),
        )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("select queues_make_archive_partitions(%s, 3)", [(now - timedelta(days=2)).date()])
        assert cursor.fetchone() == (2,)  # today's exists; the row of no partition is moved
        cursor.execute("select count(*) from queues_archive_default")
        assert cursor.fetchone() == (0,)
        assert ArchivedMessage.objects.count() == 2
        cursor.execute("select queues_drop_archive_partitions(%s)", [now.date()])
        assert cursor.fetchone() == (2,)
    assert ArchivedMessage.objects.get().pk == 0


@pytest.mark.django_db(transaction=True)
def test_an_emptied_database_still_routes() -> None:
    call_command("flush", interactive=False, verbosity=0)
    assert Topology.objects.count() == 1
    queue = make_queue()
    assert Topology.objects.get().version > 1
    publish("orders", b"x")
    assert Message.objects.get().queue == queue


@pytest.mark.django_db(transaction=True)
def test_nodes_hear_of_every_change_of_a_queue_that_they_may_know() -> None:
    with listening() as heard:
        queue = make_queue()
        queue.paused = True
        queue.save()
        pk = queue.pk
        queue.delete()
        assert heard.take("queue") == [pk] * 2


def test_every_time_of_a_model_is_aware_also_where_the_project_has_no_time_zones() -> None:
    found = [
        field
        for label in ("queues", "hydra")
        for model in apps.get_app_config(label).get_models()
        for field in model._meta.fields
        if isinstance(field, DateTimeField) and model is not TaskRun  # a task's times are as django-tasks has them
    ]
    assert [str(field) for field in found if not isinstance(field, MomentField)] == []
    assert len(found) > 60
