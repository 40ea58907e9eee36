"""Pages show ready messages that are stored together, as segments, and read the few segments of a page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from queues.models import Message
from tests.queues.admin.test_admin import act, address, confirm, text_of
from tests.queues.store import assert_counts_are_exact, make_queue, segments_read, store, store_segments

pytestmark = pytest.mark.django_db


def test_pages_of_a_backlog_follow_each_other_and_read_their_segments(admin_client: Client) -> None:
    queue, other = make_queue("orders"), make_queue("other")
    firsts = store_segments([queue, other], 3000)
    mine = [id for first in firsts[::2] for id in (first, first + 1)]
    every = [id for first in firsts for id in (first, first + 1)]
    for asked, ids in (({"queue": str(queue.pk)}, mine), ({}, every), ({"state": "0"}, every)):
        seen, more = list[int](), dict[str, str]()
        for _ in range(3):
            with segments_read(400):
                page: Any = admin_client.get(address("message"), {**asked, **more})
            seen += [message.pk for message in page.context["cl"].result_list]
            more = {"after": str(seen[-1])}
        assert seen == ids[:150]


def test_the_page_of_a_message_shows_it_and_reads_its_segment(admin_client: Client) -> None:
    queue = make_queue("orders")
    firsts = store_segments([queue], 3000)
    with segments_read(40):
        page: Any = admin_client.get(address("message", "change", firsts[1500] + 1))
    assert "ready" in text_of(page)
    assert page.context["original"].payload == b"2"
    with segments_read(40):
        response: Any = admin_client.get(f"{address('message')}{firsts[1500]}/payload/")
    assert response.content == b"1"


def test_selected_messages_are_deleted_and_those_beside_them_stay(admin_client: Client) -> None:
    queue = make_queue("orders")
    [first] = store_segments([queue], 1, 4)
    row = store(queue)[0].pk
    preview = act(admin_client, "message", "remove", first + 1, row)
    confirm(admin_client, preview, typed="orders")
    assert list(Message.objects.values_list("pk", flat=True)) == [first, first + 2, first + 3]
    assert assert_counts_are_exact(queue).ready == 3
