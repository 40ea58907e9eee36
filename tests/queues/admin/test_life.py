"""The history on a message's page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.api import publish
from queues.audit.chains import append, seal
from queues.audit.events import AuditEvent
from queues.models import ArchivedMessage, Content, Message, Queue, State
from queues.operations import keys
from queues.operations import messages as message_operations
from queues.operations.jobs import write_log
from queues.operations.life import life_of
from tests.queues import moving
from tests.queues.admin.test_admin import address, text_of
from tests.queues.store import make_queue, store

pytestmark = pytest.mark.django_db

#: A page's queries at most; the session and the user are two of them.
MAX_QUERIES = 13


def events(message: Any) -> list[str]:
    return [step.event for step in life_of(message)]


def archived(queue: Queue, **fields: Any) -> ArchivedMessage:
    now = timezone.now()
    return ArchivedMessage.objects.create(
        **{
            "id": 4096, "queue": queue, "outcome": 0, "attempts": 1, "published_at": now, "delivered_at": now,
            "finished_at": now, "size": 3, **fields,
        }
    )  # fmt: skip


def test_the_life_of_a_dead_letter_shows_publisher_reason_and_requeueing_operator(admin_client: Client) -> None:
    key, _ = keys.create_key("billing", protocols=["sspq"])
    now = timezone.now()
    message = store(
        make_queue(), State.DEAD, producer=key, attempts=3, error="<b>no such account", key="k1",
        published_at=now - timedelta(hours=1), dead_at=now,
    )[0]  # fmt: skip
    shown = text_of(admin_client.get(address("message", "change", message.pk)))
    for part in ("billing", "over sspq, with key k1", "3 deliveries ended without success; the last: <b>no such"):
        assert part in shown
    assert events(message) == ["publish", "dead-letter"]
    moving.put_back("orders", [message.pk], by="alice")
    message = Message.objects.get()
    put_back = life_of(message)[-1]
    assert (put_back.event, put_back.who, put_back.source) == ("put-back", "alice", "audit: operators")
    assert "alice" in text_of(admin_client.get(address("message", "change", message.pk)))


@pytest.mark.django_db(transaction=True)
def test_in_an_audited_queue_steps_are_known_from_the_chain() -> None:
    make_queue(audited=True)
    id = publish("orders", b"body", key="k")
    assert id is not None
    message_operations.remove_messages("orders", [id], by="bob")
    seal()
    steps = life_of(ArchivedMessage.objects.get())
    assert [(step.event, step.source) for step in steps if step.source != "archive"] == [
        ("publish", "audit: queue:orders"), ("remove", "audit: operators"), ("remove", "audit: queue:orders"),
    ]  # fmt: skip
    assert steps[0].detail == "with key k"
    assert [step.at for step in steps] == sorted(step.at for step in steps if step.at)


def test_steps_say_with_how_many_others_they_are_recorded(admin_client: Client) -> None:
    queue = make_queue(audited=True)
    shared = [AuditEvent("publish", "4000-4999", "shop", "orders"), AuditEvent("deliver", "4096-4097", "orders", "app")]
    append("queue:orders", [*shared, AuditEvent("settle", "4096", "app", ""), AuditEvent("settle", "4097", "app", "")])
    append("peerbus", [AuditEvent("deliver", "4096-4097", "bob", "alice")])
    steps = life_of(archived(queue))
    assert {(step.event, step.others) for step in steps if step.source == "audit: queue:orders"} == {
        ("publish", 999), ("settle", 0), ("deliver", 1)
    }  # fmt: skip
    assert "audit: peerbus" not in {step.source for step in steps}
    shown = " ".join(text_of(admin_client.get(address("archivedmessage", "change", 4096))).split())
    assert "publish shop with 999 others" in shown
    assert "deliver orders to app, with 1 other " in shown


def test_a_dead_letter_in_another_queue_says_where_it_came_from() -> None:
    cause = {"queue": "orders", "attempts": 5, "error": "timeout", "at": "2026-11-23T10:00:00+00:00"}
    message = store(make_queue("dead"), headers={"dead-letter": cause})[0]
    left = next(step for step in life_of(message) if step.event == "dead-letter")
    assert left.detail == "left orders after 5 attempts: timeout"
    assert left.at is not None
    assert left.at.hour == 10


@pytest.mark.parametrize(("attempts", "text"), [(1, "1 delivery ended"), (2, "2 deliveries ended")])
def test_a_delivery_is_no_plural(admin_client: Client, attempts: int, text: str) -> None:
    [message] = store(make_queue(), attempts=attempts)
    assert text in text_of(admin_client.get(address("message", "change", message.pk)))


@pytest.mark.parametrize("headers", [None, [], "text", {"dead-letter": 5}, {"dead-letter": {"queue": 1, "at": "soon"}}])
def test_headers_that_are_no_dead_letters_break_no_page(admin_client: Client, headers: Any) -> None:
    message = store(make_queue(), headers=headers)[0]
    assert admin_client.get(address("message", "change", message.pk)).status_code == 200


def test_the_life_of_a_job_shows_its_log_and_the_settling_worker() -> None:
    queue = make_queue()
    key, _ = keys.create_key("worker")
    done = archived(queue, consumer_id=key.pk, producer_id=key.pk + 7)
    write_log(queue.pk, done.pk, "half way")
    steps = {step.event: step for step in life_of(done)}
    assert steps["settle"].who == "worker"
    assert steps["publish"].who == f"deleted key {key.pk + 7}"
    assert steps["log"].detail == "half way"
    assert steps["return"].at is None


def test_a_celery_task_is_summed_up(admin_client: Client) -> None:
    headers = {"task": "mail.send", "id": "a1", "argsrepr": "('ann',)", "retries": 2}
    message = store(make_queue(), content=Content.CELERY, headers=headers, payload=b"[[], {}, {}]")[0]
    shown = text_of(admin_client.get(address("message", "change", message.pk)))
    assert "mail.send ('ann',); id a1, retries 2" in shown


def test_a_message_has_one_address_wherever_it_is(admin_client: Client) -> None:
    queue = make_queue()
    message = store(queue, State.DEAD)[0]
    first = message.pk
    moving.put_back("orders")
    assert Message.objects.get().pk != first
    assert admin_client.get(address("message", "change", first)).status_code == 200
    Message.objects.all()._raw_delete("default")
    archived(queue, id=first)
    gone = admin_client.get(address("message", "change", first))
    assert gone.headers["Location"] == address("archivedmessage", "change", first)
    assert admin_client.get(address("message", "change", first + 1)).headers["Location"] != gone.headers["Location"]
    archived(queue, id=first)
    assert admin_client.get(gone.headers["Location"]).status_code == 200


@pytest.mark.parametrize("id", ["9" * 19, "9" * 30, "x", "-", "٣"])
def test_an_address_that_is_no_id_leads_to_no_message(admin_client: Client, id: str) -> None:
    for model in ("message", "archivedmessage"):
        assert admin_client.get(address(model, "change", id)).status_code == 302


def test_a_kept_payload_is_downloaded_as_a_file_from_the_archive_too(admin_client: Client, client: Client) -> None:
    archived(make_queue(), payload=b"<script>")
    download = admin_client.get(address("archivedmessage", "payload", 4096))
    assert download.content == b"<script>"
    assert download.headers["Content-Disposition"] == 'attachment; filename="message-4096.bin"'
    assert download.headers["X-Content-Type-Options"] == "nosniff"
    assert admin_client.get(address("archivedmessage", "payload", 5)).status_code == 404
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(address("archivedmessage", "payload", 4096)).status_code == 403


def test_a_messages_page_takes_few_queries_and_changes_nothing(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    key, _ = keys.create_key("billing")
    queue = make_queue(audited=True)
    message = store(queue, State.DEAD, producer=key, attempts=1, dead_at=timezone.now(), headers={"a": 1})[0]
    before = Message.objects.values().get()
    for model, pk in (("message", message.pk), ("archivedmessage", archived(queue, producer_id=key.pk).pk)):
        with django_assert_max_num_queries(MAX_QUERIES):
            assert admin_client.get(address(model, "change", pk)).status_code == 200
    assert Message.objects.values().get() == before
