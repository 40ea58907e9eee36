"""The page on which operators find messages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin import find
from queues.models import ArchivedMessage, State
from queues.operations import keys
from tests.queues.admin.test_admin import address, text_of
from tests.queues.admin.test_life import MAX_QUERIES
from tests.queues.store import make_queue, store

pytestmark = pytest.mark.django_db


def find_messages(client: Client, **asked: Any) -> Any:
    return client.get(address("message", "find"), asked)


def shown(response: Any) -> list[int]:
    return [row["id"] for row in response.context["rows"]]


def test_a_message_is_found_by_its_body_and_leads_to_its_page(admin_client: Client) -> None:
    queue = make_queue()
    store(queue, payload=b"other")
    message = store(queue, payload=b"<b>needle", key="k")[0]
    page = find_messages(admin_client, queue="orders", text="<b>needle")
    assert shown(page) == [message.pk]
    assert address("message", "change", message.pk) in page.content.decode()
    assert "<b>needle" in text_of(page)
    assert b"<b>needle" not in page.content
    assert "looked at 2 messages so far, which is all" in " ".join(text_of(page).split())
    assert find_messages(admin_client, id=message.pk).headers["Location"] == address("message", "change", message.pk)


def test_the_page_says_how_far_it_has_looked_and_looks_further(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "PAGE", 2)
    ids = [message.pk for message in store(make_queue(), count=5)]
    page, seen = find_messages(admin_client, queue="orders", state="ready"), []
    for looked in (2, 4, 5):
        seen += shown(page)
        assert f"looked at {looked} messages" in " ".join(text_of(page).split())
        further = re.search(r'href="([^"]+)" id="further"', page.content.decode())
        if further is None:
            break
        page = admin_client.get(address("message", "find") + further[1].replace("&amp;", "&"))
    assert seen == ids


def test_finished_messages_are_found_too(admin_client: Client) -> None:
    now = timezone.now()
    ArchivedMessage.objects.create(
        id=5, queue=make_queue(), outcome=0, attempts=0, published_at=now, finished_at=now, size=3, key="k"
    )
    page = find_messages(admin_client, state="finished", key="k")
    assert shown(page) == [5]
    assert "acknowledged" in text_of(page)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"queue": "nowhere"}, "nowhere"),
        ({"state": "lost"}, "Select a valid choice"),
        ({"value": "5"}, "needs its name"),
        ({"since": "yesterday"}, "valid date"),
        ({"id": "x"}, "valid value"),
        ({"state": "ready", "after": "x"}, "no such cursor"),
        ({"state": "finished", "until": "0001-01-01"}, "no such cursor"),
    ],
)
def test_an_invalid_search_gets_a_message(admin_client: Client, asked: dict[str, str], answer: str) -> None:
    page = find_messages(admin_client, **asked)
    assert page.status_code == 200
    assert answer in text_of(page)


def test_search_needs_permission_to_view_messages(client: Client) -> None:
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert find_messages(client).status_code == 403


def test_the_list_of_messages_leads_to_the_page(admin_client: Client) -> None:
    assert reverse("admin:queues_message_find") in admin_client.get(address("message")).content.decode()


@pytest.mark.parametrize("asked", [{"queue": "orders"}, {"key": "k"}, {"state": "finished"}, {}, {"text": "b"}])
def test_the_page_takes_few_queries(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries, asked: dict[str, str]
) -> None:
    keys.create_key("billing")
    queue = make_queue()
    for state in State:
        store(queue, state, 3)
    with django_assert_max_num_queries(MAX_QUERIES):
        assert find_messages(admin_client, producer="billing", **asked).status_code == 200
