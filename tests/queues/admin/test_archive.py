"""The list of finished messages, of rows and of segments, page by page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from queues.admin.archive import ArchivedMessageAdmin
from tests.queues.segments import ArchiveRow, Range, Segment, archive_rows
from tests.queues.store import make_queue
from tests.queues.test_archive import expanded

pytestmark = pytest.mark.django_db

LIST = reverse("admin:queues_archivedmessage_changelist")
SECOND = timedelta(seconds=1)


@pytest.fixture
def queues() -> list[int]:
    """Two queues; segments of the first, smaller ones of the second and rows among them, all of the last 30 minutes."""
    first, second = make_queue("orders").pk, make_queue("invoices").pk
    now = timezone.now()
    for n in range(60):
        at = now - n * 30 * SECOND
        Segment(4096 * (200 - n), first, [1] * 9, [Range(0, 3, 1, at), Range(5, 8, None, None)], at, at).store()
        Segment(4096 * (400 - n), second, [1, 2], [Range(n % 2, 1, None, at)], at, at).store()
        ArchiveRow(n, second, 0, 1, None, None, at, None, at - SECOND * (n % 2), 5).store()
    return [first, second]


def pages(client: Client, monkeypatch: pytest.MonkeyPatch, **choice: Any) -> tuple[list[list[int]], list[int]]:
    """The ids of each page, and how many segments were looked into for each."""
    looked: list[int] = []
    within_reach = ArchivedMessageAdmin.within_reach

    def watched(self: Any, rows: Any, page: Any, most: int) -> Any:
        found = within_reach(self, rows, page, most)
        looked.append(expanded(found[:most]))
        return found

    monkeypatch.setattr(ArchivedMessageAdmin, "within_reach", watched)
    ids, after = [], ""
    while True:
        response = client.get(LIST, {**choice, **({"after": after} if after else {})})
        page = response.context["cl"]
        ids.append([row.pk for row in page.result_list])
        if not page.next_page:
            return ids, looked
        last = page.result_list[-1]
        after = f"{last.finished_at.isoformat()},{last.pk}"


@pytest.mark.parametrize("chosen", [None, 0, 1])
@pytest.mark.parametrize("within", ["1", "all"])
def test_pages_have_every_message_once_and_look_into_no_more_segments_than_fill_them(
    admin_client: Client, queues: list[int], monkeypatch: pytest.MonkeyPatch, chosen: int | None, within: str
) -> None:
    choice = {} if chosen is None else {"queue": queues[chosen]}
    wanted = [row for row in archive_rows() if chosen is None or row.queue == queues[chosen]]
    wanted.sort(key=lambda row: (row.finished, row.id), reverse=True)
    found, looked = pages(admin_client, monkeypatch, within=within, **choice)
    assert [id for page in found for id in page] == [row.id for row in wanted]
    assert all(len(page) == ArchivedMessageAdmin.list_per_page for page in found[:-1])
    most = 15 if chosen is None else (10, 40)[chosen]
    assert looked[0] <= most
    assert all(one <= most for one in looked[:-2])


def test_other_conditions_are_still_obeyed(admin_client: Client, queues: list[int]) -> None:
    response = admin_client.get(LIST, {"attempts": "1", "within": "all"})
    assert [row.pk for row in response.context["cl"].result_list] == list(range(50))


def test_the_page_of_one_message_of_a_segment(admin_client: Client, queues: list[int]) -> None:
    response = admin_client.get(reverse("admin:queues_archivedmessage_change", args=[4096 * 200 + 5]))
    assert response.status_code == 200
    assert "orders" in response.text
    assert "not kept" in response.text
    for gone in (4096 * 200 + 4, 4096 * 200 + 9):
        assert admin_client.get(reverse("admin:queues_archivedmessage_change", args=[gone])).status_code == 302
