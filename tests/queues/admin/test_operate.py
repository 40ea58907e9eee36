"""Operations on messages from the pages: preview, question, progress, cancellation, permissions."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from msgpack import packb  # type: ignore[import-untyped]
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.models import (
    ArchivedMessage,
    AuditJournalEntry,
    BulkAction,
    BulkOperation,
    BulkState,
    Content,
    Message,
    State,
)
from queues.operations import bulk
from queues.operations.bulk import BulkPlan
from queues.operations.search import Criteria
from tests.queues.admin.test_admin import act, address, confirm, text_of
from tests.queues.admin.test_life import MAX_QUERIES
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.django_db


def words(response: Any) -> str:
    return " ".join(text_of(response).split())


def operate(client: Client, action: str, ids: list[int] | None = None, **asked: str) -> Any:
    """The preview of an action for what is selected, or for all that a search finds."""
    scope = [("scope", "all")] if ids is None else [("scope", "selected"), *(("ids", str(id)) for id in ids)]
    return client.get(address("message", "operate"), [("action", action), *scope, *asked.items()])


@pytest.fixture
def person(client: Client) -> Client:
    """A user who may see messages and nothing more; `permit` adds to it."""
    client.force_login(User.objects.create_user("staff", is_staff=True))
    permit("view_message")
    return client


def permit(*names: str) -> None:
    User.objects.get(username="staff").user_permissions.add(*Permission.objects.filter(codename__in=names))


def test_a_selection_is_moved_after_a_preview(admin_client: Client) -> None:
    source, target = make_queue("orders"), make_queue("other")
    chosen = [message.pk for message in store(source, count=2, payload=b"<b>this")]
    store(source)
    preview = operate(admin_client, "move", chosen)
    assert "2 selected: 2 messages" in words(preview)
    assert "<b>this" in text_of(preview)
    assert assert_counts_are_exact(source).ready == 3
    assert "This field is required" in words(confirm(admin_client, preview))
    done = confirm(admin_client, preview, target="other")
    assert "2 done, 0 left alone." in words(done)
    assert assert_counts_are_exact(target).ready == 2
    told = set(AuditJournalEntry.objects.values_list("event", "record_id", "sender"))
    assert {("move", f"message:{id}", "admin") for id in chosen} <= told


def test_the_page_of_a_message_speaks_of_one(admin_client: Client) -> None:
    [message] = store(make_queue(), State.DEAD)
    page = words(admin_client.get(address("message", "change", message.pk)))
    assert "Put it back where it came from" in page
    assert "Deliver it now" in page
    assert "Put dead letters back" not in page


def test_all_that_a_search_finds_is_done_and_recorded_once(admin_client: Client) -> None:
    queue = make_queue("orders")
    store(queue, State.DEAD, 60, attempts=3)
    preview = operate(admin_client, "put-back", queue="orders", state="dead")
    assert "60 messages" in words(preview)
    assert len(preview.context["rows"]) == bulk.SAMPLE
    assert "60 done, 0 left alone." in words(confirm(admin_client, preview))
    assert assert_counts_are_exact(queue).ready == 60
    assert AuditJournalEntry.objects.filter(chain="operators").count() == 2


def test_so_many_of_what_a_search_finds_are_done_and_the_rest_is_left(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 4)
    queue = make_queue("orders")
    first = [message.pk for message in store(queue, State.DEAD, 20)][:10]
    confirm(admin_client, operate(admin_client, "put-back", queue="orders", state="dead"), most="10")
    operation = BulkOperation.objects.get()
    while bulk.step(operation.pk):
        pass
    operation.refresh_from_db()
    assert (operation.done, operation.expected, operation.state) == (10, 10, BulkState.DONE)
    assert assert_counts_are_exact(queue).ready == 10
    assert set(Message.objects.filter(state=State.READY).values_list("origin_id", flat=True)) == set(first)


@pytest.mark.parametrize(
    ("action", "answers", "state"),
    [("delay", {"delay": "60"}, State.DELAYED), ("deliver-now", {}, State.READY), ("copy", {"target": "orders"}, None)],
)
def test_a_message_is_delayed_delivered_now_or_copied(
    admin_client: Client, action: str, answers: dict[str, str], state: State | None
) -> None:
    queue = make_queue("orders")
    message = store(queue, State.DELAYED if action == "deliver-now" else State.READY)[0]
    confirm(admin_client, operate(admin_client, action, [message.pk]), **answers)
    assert_counts_are_exact(queue)
    if state is None:
        assert Message.objects.count() == 2
    else:
        assert Message.objects.get().state == state


def test_a_deletion_asks_for_the_name_of_the_queue(admin_client: Client) -> None:
    queue = make_queue("orders")
    message = store(queue)[0]
    preview = operate(admin_client, "remove", [message.pk])
    for answers in ({}, {"typed": "Orders"}):
        assert "orders" in words(confirm(admin_client, preview, **answers))
        assert assert_counts_are_exact(queue).ready == 1
    confirm(admin_client, preview, typed="orders")
    assert assert_counts_are_exact(queue).ready == 0
    other = store(make_queue("other"))[0]
    refused = operate(admin_client, "remove", [store(queue)[0].pk, other.pk])
    assert "Messages of one queue" in words(admin_client.get(refused.headers["Location"]))


def test_a_finished_message_is_copied_from_its_page(admin_client: Client) -> None:
    now, queue = timezone.now(), make_queue("orders")
    for id in (5, 6):
        ArchivedMessage.objects.create(
            id=id, queue=queue, outcome=0, attempts=0, published_at=now, finished_at=now, size=3, payload=b"old"
        )
    page = admin_client.get(address("archivedmessage", "change", 5))
    names = dict((name, link) for link, name in page.context["operations"])
    assert list(names) == ["Copy to another queue", "Edit and publish again"]
    confirm(admin_client, admin_client.get(names["Copy to another queue"]), target="orders")
    assert bytes(Message.objects.get().payload) == b"old"


def test_the_list_and_the_page_of_a_message_lead_to_a_preview(admin_client: Client) -> None:
    message = store(make_queue("orders"))[0]
    for action in ("put_back", "move", "copy", "delay", "deliver_now", "remove"):
        shown = act(admin_client, "message", action, message.pk)
        assert shown.context["plan"].criteria.ids == (message.pk,)
    page = admin_client.get(address("message", "change", message.pk))
    for link, _ in page.context["operations"]:
        assert link.replace("&", "&amp;") in page.content.decode()
        assert admin_client.get(link).status_code == 200


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"action": "explode"}, "Choose what is to be done"),
        ({"action": "move", "scope": "selected"}, "Select at least one"),
        ({"action": "move", "scope": "selected", "ids": "x"}, "Select at least one"),
        ({"action": "move", "queue": "nowhere"}, "nowhere"),
        ({"action": "move", "since": "yesterday"}, "no such search"),
        ({"action": "move", "state": "finished"}, "Finished messages can be copied"),
    ],
)
def test_an_invalid_operation_is_reported_on_the_page_of_searches(
    admin_client: Client, asked: dict[str, str], answer: str
) -> None:
    assert answer in words(admin_client.get(address("message", "operate"), asked, follow=True))


def test_a_target_that_cannot_be_is_said(admin_client: Client) -> None:
    message = store(make_queue("orders"))[0]
    for target, answer in (("nowhere", "nowhere"), ("_peer/bob", "the system's")):
        assert answer in words(confirm(admin_client, operate(admin_client, "move", [message.pk]), target=target))
    assert not BulkOperation.objects.exists()


def test_an_operation_shows_its_progress_and_is_cancelled(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    woken: list[None] = []
    monkeypatch.setattr(bulk.local_runner, "wake", lambda: woken.append(None))
    queue = make_queue("orders")
    store(queue, count=8)
    page = confirm(admin_client, operate(admin_client, "remove", queue="orders"), typed="orders")
    assert woken
    assert b"data-every" in page.content
    assert "2 of 8" in words(page)
    assert "25%" in words(page)
    cancelled = admin_client.post(reverse("admin:queues_bulkoperation_cancel", args=[page.context["original"].pk]))
    shown = admin_client.get(cancelled.headers["Location"])
    assert "What was done stays done" in words(shown)
    assert b"data-every" not in shown.content
    assert assert_counts_are_exact(queue).ready == 6
    again = admin_client.post(cancelled.headers["Location"].replace("change", "cancel"), follow=True)
    assert "It has ended already" in words(again)


def test_bulk_operations_are_offered_and_allowed_with_permission_only(person: Client) -> None:
    queue = make_queue("orders")
    message = store(queue)[0]
    for action in BulkAction:
        assert operate(person, action, [message.pk]).status_code == 403
    assert person.get(address("message", "publish")).status_code == 403
    assert person.get(address("message", "change", message.pk)).context["operations"] == []
    found = person.get(address("message", "find"), {"queue": "orders"})
    assert found.context["actions"] == []
    permit("change_message")
    assert operate(person, "move", [message.pk]).status_code == 200
    assert operate(person, "remove", [message.pk]).status_code == 403
    permit("delete_message")
    assert operate(person, "remove", [message.pk]).status_code == 200


def test_viewing_an_operation_needs_permission_to_view_messages_and_cancelling_that_to_begin_it(person: Client) -> None:
    make_queue("orders")
    operation = bulk.start(BulkPlan(action=BulkAction.DELETE, criteria=Criteria(queue="orders")), "alice")
    cancel = reverse("admin:queues_bulkoperation_cancel", args=[operation.pk])
    assert person.get(address("bulkoperation")).status_code == 200
    permit("change_message")
    assert person.post(cancel).status_code == 403
    permit("delete_message")
    assert person.get(cancel).status_code == 403
    assert person.post(cancel).status_code == 302
    operation.refresh_from_db()
    assert operation.state == BulkState.CANCELLED
    User.objects.get(username="staff").user_permissions.clear()
    assert person.get(address("bulkoperation")).status_code == 403


def test_the_pages_take_few_queries(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    queue = make_queue("orders")
    for state in State:
        store(queue, state, 3)
    operation = bulk.start(BulkPlan(action=BulkAction.DELETE, criteria=Criteria(queue="orders")), "alice")
    bulk.step(operation.pk)
    ids = list(Message.objects.values_list("pk", flat=True))
    pages = [
        address("bulkoperation"), address("bulkoperation", "change", operation.pk),
        f"{address('message', 'operate')}?action=move&queue=orders",
        f"{address('message', 'operate')}?action=remove&scope=selected&ids={ids[0]}",
        f"{address('message', 'publish')}?from={ids[0]}",
    ]  # fmt: skip
    for page in pages:
        with django_assert_max_num_queries(MAX_QUERIES):
            assert admin_client.get(page).status_code == 200


# Publishing.


def publish(client: Client, **fields: str) -> Any:
    return client.post(address("message", "publish"), {"address": "orders", "priority": "0", **fields}, follow=True)


def test_a_message_is_published_from_a_form(admin_client: Client) -> None:
    make_queue("orders")
    shown = publish(admin_client, body="a\r\nb", headers='{"a": 1}', key="k", content_type="", priority="3")
    message = Message.objects.get()
    assert (bytes(message.payload), message.headers, message.key) == (b"a\nb", {"a": 1}, "k")
    assert -(message.pk >> 56) == 3
    assert f"Published message {message.origin_id}" in words(shown)
    assert AuditJournalEntry.objects.get().record_id == f"message:{message.origin_id}"


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"text \xc3\xa9", None), (b"\x00\xff", None), (b"a\r\nb", None), (b'{"a": 1}', Content.JSON),
        (packb({"a": [1, "é", None]}), Content.MSGPACK), (packb({"a": b"\xff"}), Content.MSGPACK),
    ],
)
def test_a_message_is_edited_and_published_again_byte_for_byte(
    admin_client: Client, body: bytes, content: int | None
) -> None:
    headers = {"tenant": "a", "dead-letter": {"queue": "x"}}
    old = store(make_queue("orders"), State.DEAD, payload=body, headers=headers, content=content)[0]
    form = admin_client.get(address("message", "publish"), {"from": old.pk}).context["form"]
    data = {name: form[name].value() for name in form.fields}
    publish(admin_client, **{name: str(value) for name, value in data.items() if value not in (None, False, "")})
    new = Message.objects.exclude(pk=old.pk).get()
    assert f"to orders, a copy of message {old.pk}" in words(admin_client.get(address("message", "change", new.pk)))
    assert bytes(new.payload) == body
    assert (new.headers, new.content, new.state) == ({"tenant": "a"}, content, State.READY)


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"address": "nowhere"}, "nowhere"), ({"address": "_peer/bob"}, "system"), ({"headers": "[]"}, "JSON object"),
        ({"headers": "{"}, "valid JSON"), ({"body": "é", "is_base64": "on"}, "no base64"), ({"priority": "101"}, "100"),
        ({"content_type": "application/msgpack", "body": "x" * 9}, "not valid JSON"),
        ({"content_type": "application/msgpack", "body": "[1.5]"}, "MessagePack cannot be made of it: it has a float"),
        ({"content_type": "application/msgpack", "body": str(1 << 63)}, "more than 64 bits"),
        ({"content_type": "application/msgpack", "body": '"\\ud800"'}, "no UTF-8"),
        ({"content_type": "application/msgpack", "body": "[" * 70 + "]" * 70}, "nested more than 62 deep"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_is_refused_on_the_form(
    admin_client: Client, fields: dict[str, str], answer: str
) -> None:
    make_queue("orders")
    assert answer in words(publish(admin_client, **fields))
    assert not Message.objects.exists()


def test_a_payload_that_is_too_large_or_gone_is_not_edited(admin_client: Client) -> None:
    large = store(make_queue("orders"), payload=b"x" * 300_000)[0]
    for source, answer in ((large.pk, "too large"), (1, "not there any more")):
        page = admin_client.get(address("message", "publish"), {"from": source})
        assert answer in words(page)
        assert not page.context["form"]["body"].value()
