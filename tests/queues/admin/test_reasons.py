"""Dead letters by reason: groups, their figures, and what can be done to all of one."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.models import AuditJournalEntry, BulkAction, BulkOperation, EtlRun, Message, State
from queues.operations import bulk, search
from queues.operations.bulk import BulkPlan
from queues.operations.monitor import reader
from queues.operations.search import Criteria
from tests.queues.admin.test_admin import address, confirm, text_of
from tests.queues.admin.test_front import MAX_QUERIES, user_with
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.django_db

REFUSED = "card <number> refused"


@pytest.fixture(autouse=True)
def _a_look_now() -> None:
    reader.forget()


def words(response: Any) -> str:
    return " ".join(text_of(response).split())


def bury(count: int = 40, **fields: Any) -> Any:
    """A queue with dead letters whose reasons differ in a number, and one with another cause."""
    queue = make_queue("orders")
    for n in range(count):
        store(queue, State.DEAD, error=f"card {n} refused", attempts=3, **fields)
    store(queue, State.DEAD, error="timed out after 30 s")
    return queue


def follow(client: Client, page: Any, link: str, reason: str = REFUSED) -> Any:
    """The page that a link of a group leads to."""
    [row] = [row for row in page.context["rows"] if row["reason"] == reason]
    return client.get(dict(row["links"])[link])


def test_dead_letters_that_differ_in_a_number_are_one_group(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    now = timezone.now()
    queue = bury(39, dead_at=now - timedelta(minutes=5))
    store(queue, State.DEAD, error="card 700 refused", dead_at=now - timedelta(hours=3))
    with django_assert_max_num_queries(MAX_QUERIES):
        page = admin_client.get(address("message", "reasons"), {"queue": "orders"})
    assert [(row["reason"], row["count"]) for row in page.context["rows"]] == [
        (REFUSED, 40), ("timed out after <number> s", 1)
    ]  # fmt: skip
    text = words(page)
    assert re.search(f"{REFUSED} Example card [0-9]+ refused orders 40 3 hours ago 5 minutes ago", text)
    assert f'datetime="{(now - timedelta(hours=3)).isoformat(timespec="seconds")}"' in page.content.decode()


def test_the_page_of_a_queue_has_the_groups_and_leads_to_all(admin_client: Client) -> None:
    queue = bury()
    page = admin_client.get(address("queue", "change", queue.pk))
    assert re.search(f"{REFUSED} Example card [0-9]+ refused 40", words(page))
    links = re.findall(r'href="([^"]*/reasons/[^"]*)"', page.content.decode())
    assert links
    assert all(REFUSED in words(admin_client.get(unescape(link))) for link in links)


def test_the_messages_of_a_group_are_shown(admin_client: Client) -> None:
    bury()
    found = follow(admin_client, admin_client.get(address("message", "reasons")), "See")
    assert len(found.context["rows"]) == 40
    assert {row.error for row in Message.objects.filter(pk__in=[row["id"] for row in found.context["rows"]])} == {
        f"card {n} refused" for n in range(40)
    }


@pytest.mark.parametrize(
    ("link", "answers", "ready", "elsewhere"),
    [("Put back", {}, 40, 0), ("Move", {"target": "other"}, 0, 40), ("Delete", {"typed": "orders"}, 0, 0)],
)
def test_all_of_a_group_is_put_back_moved_or_deleted_after_its_number_was_shown(
    admin_client: Client, link: str, answers: dict[str, str], ready: int, elsewhere: int
) -> None:
    queue, other = bury(), make_queue("other")
    preview = follow(admin_client, admin_client.get(address("message", "reasons")), link)
    assert "40 messages" in words(preview)
    assert Message.objects.filter(state=State.DEAD).count() == 41
    assert "40 done, 0 left alone." in words(confirm(admin_client, preview, **answers))
    counts = assert_counts_are_exact(queue)
    assert (counts.ready, counts.dead, assert_counts_are_exact(other).ready) == (ready, 1, elsewhere)
    assert Message.objects.get(state=State.DEAD).error == "timed out after 30 s"
    assert AuditJournalEntry.objects.filter(chain="operators").count() == 2


def test_a_group_is_done_over_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.operations.bulk.STEP", 7)
    monkeypatch.setattr(search, "ROWS_WITH_BODIES", 3)
    queue = bury(30)
    operation = bulk.start(
        BulkPlan(action=BulkAction.PUT_BACK, criteria=Criteria(queue="orders", state="dead", reason=REFUSED)), "alice"
    )
    steps = 1
    while bulk.step(operation.pk):
        steps += 1
    operation.refresh_from_db()
    assert (operation.done, operation.skipped) == (30, 0)
    assert steps >= 30 / 7
    assert assert_counts_are_exact(queue).ready == 30


def test_what_other_queues_sent_to_a_dead_letter_queue_has_its_reasons(admin_client: Client) -> None:
    target = make_queue("orders.dead")
    make_queue("orders", dead_letter_queue=target)
    for n in range(3):
        letter = {"queue": "orders", "error": f"card {n} refused", "attempts": 3, "at": "2026-01-02T03:04:05+00:00"}
        store(target, headers={"dead-letter": letter})
    store(target, headers={"dead-letter": {"error": None, "at": "yesterday"}})
    store(target, headers={"dead-letter": 5})
    page = admin_client.get(address("message", "reasons"))
    assert [(row["reason"], row["count"]) for row in page.context["rows"]] == [(REFUSED, 3), ("no reason was given", 1)]
    assert "2026-01-02T03:04:05" in page.content.decode()
    shown = words(admin_client.get(address("queue", "change", target.pk)))
    assert re.search(f"{REFUSED} Example card [0-9] refused 3", shown)
    assert "3 done" in words(confirm(admin_client, follow(admin_client, page, "Put back")))
    assert assert_counts_are_exact(target).ready == 2


def test_a_page_looks_at_the_newest_alone_and_says_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(5)
    monkeypatch.setattr("queues.admin.reasons.MAX_LETTERS", 3)
    page = admin_client.get(address("message", "reasons"), {"queue": "orders"})
    assert "3 dead letters were looked at, the newest" in words(page)
    assert [row["count"] for row in page.context["rows"]] == [2, 1]


def test_a_queue_that_is_not_there_is_said(admin_client: Client) -> None:
    assert "nowhere" in words(admin_client.get(address("message", "reasons"), {"queue": "nowhere"}))


def test_groups_offer_what_the_user_may_do(client: Client) -> None:
    bury(1)
    client.force_login(user_with("view_message"))
    page = client.get(address("message", "reasons"))
    assert [words for words, _ in page.context["rows"][0]["links"]] == ["See"]
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    assert client.get(address("message", "reasons")).status_code == 403


@pytest.mark.parametrize("model", ["etlrun", "bulkoperation"])
def test_failures_of_other_kinds_are_grouped_above_their_list(admin_client: Client, model: str) -> None:
    now = timezone.now()
    failed = [
        EtlRun.objects.create(output="/o", state="failed", error=f"file {n} is full", ended_at=now)
        if model == "etlrun"
        else BulkOperation.objects.create(
            action="move", criteria={}, by="alice", high=0, state="failed", error=f"file {n} is full", ended_at=now
        )
        for n in range(3)
    ]
    page = admin_client.get(address(model))
    assert "file <number> is full Example file 2 is full 3 now now The last one" in words(page)
    assert [row["links"] for row in page.context["failures"]] == [
        [("The last one", address(model, "change", failed[-1].pk))]
    ]
