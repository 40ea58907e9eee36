"""The page of the queues' history."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.models import QueueSample
from queues.store.samples import ALL_QUEUES
from tests.queues.admin.test_admin import LOGIN, address, text_of, unprivileged
from tests.queues.store import make_queue

__all__ = ["unprivileged"]
pytestmark = pytest.mark.django_db


def sample(queue: int, **fields: int) -> None:
    values = dict.fromkeys(("ready", "leased", "delayed", "dead", "peak", "published", "settled", "died"), 0)
    at = timezone.now().replace(second=0, microsecond=0)
    QueueSample.objects.create(queue=queue, at=at, seconds=60, **values | fields)


@pytest.mark.parametrize("span", ["hour", "day", "month"])
def test_the_history_of_a_queue_is_drawn(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, span: str
) -> None:
    queue = make_queue().pk
    sample(queue, published=120, settled=60, ready=77, died=3)
    sample(ALL_QUEUES, published=600)
    with django_assert_num_queries(LOGIN + 2):
        text = text_of(admin_client.get(address("queuesample"), {"queue": "orders", "span": span}))
    assert "in is highest at" in text
    assert "with 2/s" in text
    assert "ready is highest at" in text
    assert "with 77" in text
    assert "dead letters is highest at" in text
    assert "10/s" in text_of(admin_client.get(address("queuesample")))


def test_a_queue_that_does_not_exist_is_said_so(admin_client: Client) -> None:
    assert "There is no queue “nowhere”" in text_of(admin_client.get(address("queuesample"), {"queue": "nowhere"}))


def test_the_history_needs_view_permission(unprivileged: Client) -> None:
    assert unprivileged.get(address("queuesample")).status_code == 403
