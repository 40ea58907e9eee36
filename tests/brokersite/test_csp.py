"""The policy on every page, and that no page needs what it forbids."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.test import AsyncClient, Client
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django_celery_results.models import GroupResult, TaskResult

from brokersite.csp import POLICY
from hydra.models import Event as HydraEvent
from hydra.models import Node as HydraNode
from queues.audit.chains import append
from queues.audit.events import Event as AuditEvent
from queues.models import (
    ArchivedMessage,
    AuditChain,
    AuditRow,
    EtlRun,
    EtlSchedule,
    Mailbox,
    PeriodicJob,
    Rollup,
    Route,
    State,
    Subscription,
    Worker,
)
from queues.operations import keys
from tests.queues.store import make_node, make_queue, store

#: What a browser would not run or apply.
INLINE = re.compile(r"<script(?![^>]*(\bsrc=|application/json))|<style|\sstyle=|\son[a-z]+=\"|javascript:", re.I)


def pages() -> list[str]:
    found = [reverse("admin:index"), reverse("admin:login"), reverse("admin:password_change")]
    for model in admin.site._registry:
        for action in ("changelist", "add"):
            try:
                found.append(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{action}"))
            except NoReverseMatch:  # as a model that has no page to add one
                continue
    return found


@pytest.mark.django_db
def test_every_page_of_the_admin_has_the_policy_and_keeps_to_it(admin_client: Client) -> None:
    shown = 0
    for page in pages():
        response = admin_client.get(page)
        assert response["Content-Security-Policy"] == POLICY, page
        if response.status_code == 200:
            shown += 1
            assert not INLINE.search(response.content.decode()), page
    assert shown > 20


async def test_other_answers_have_it_too(async_client: AsyncClient) -> None:
    for page in ("/healthz", "/nowhere"):
        assert (await async_client.get(page))["Content-Security-Policy"] == POLICY


def test_files_have_it_too(client: Client) -> None:
    response = client.get("/static/queues/site.css")
    assert b".chart" in response.getvalue()
    assert response["Content-Security-Policy"] == POLICY


def one_of_each() -> list[Model]:
    """An object of every model that the admin shows."""
    now, owner = timezone.now(), keys.create_key("an owner")[0]
    queue, topic = make_queue(), make_queue("_subscription/1", kind="subscription")
    mailbox = make_queue("_peer/bob", kind="mailbox", max_attempts=0)
    append("peerbus", [AuditEvent("send", "m1", "alice", "bob")])
    broker_node, node = make_node(), HydraNode.objects.create(name="alpha", voter="0" * 16)
    archived = ArchivedMessage(
        id=1, queue=queue, outcome=0, attempts=1, published_at=now, finished_at=now, size=3, payload=b"<b>"
    )
    ArchivedMessage.objects.bulk_create([archived])
    return [
        queue, archived, broker_node, node, owner,
        store(queue, State.DEAD, payload=b'{"a":"<script>"}', error="<b>", headers={"x": "y"})[0],
        Mailbox.objects.create(queue=mailbox, name="bob", owner=owner),
        Subscription.objects.create(topic=b"prices", qos=1, queue=topic, owner=owner),
        Route.objects.create(source="queue:a", target="topic:t"),
        Worker.objects.create(wid=uuid4(), node=broker_node, address="192.0.2.7:1", connected_at=now),
        AuditChain.objects.get(), AuditRow.objects.get(),
        PeriodicJob.objects.create(name="nightly", cron="0 3 * * *", queue=queue),
        EtlRun.objects.create(trigger="test", output="/elsewhere"),
        EtlSchedule.objects.create(name="hourly", cron="0 * * * *"),
        Rollup.objects.create(queue=queue.name, hour=now, acknowledged=1),
        HydraEvent.objects.create(node=node, at=now, kind="fault", term=1, text="<i>"),
        TaskResult.objects.create(task_id="t", content_type="application/json", content_encoding="utf-8"),
        GroupResult.objects.create(group_id="g", content_type="application/json", content_encoding="utf-8"),
        User.objects.create_user("someone"), Group.objects.create(name="some"),
    ]  # fmt: skip


@pytest.mark.django_db
def test_pages_of_what_there_is_keep_to_the_policy(admin_client: Client) -> None:
    things = one_of_each()
    assert {type(thing) for thing in things} == set(admin.site._registry)
    shown = 0
    for thing in things:
        meta = thing._meta
        where = f"admin:{meta.app_label}_{meta.model_name}"
        found = [reverse(f"{where}_changelist")]
        found += [reverse(f"{where}_{page}", args=[thing.pk]) for page in ("change", "delete", "history")]
        for page in found:
            response = admin_client.get(page, follow=True)
            if response.status_code == 200:
                shown += 1
                assert response["Content-Security-Policy"] == POLICY, page
                assert not INLINE.search(response.content.decode()), page
    assert shown > 2 * len(things)
