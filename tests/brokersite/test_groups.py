"""The groups viewer, operator and administrator: what each may do, on pages and by requests of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from brokersite.groups import APPS, GROUPS, keep_groups
from queues.models import AuditRow, Message, Queue, State
from tests.queues.admin.test_admin import act, address, confirm, policy
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.django_db
TYPED = {"confirmed": "yes", "typed": "orders"}


@pytest.fixture(autouse=True)
def _groups() -> None:
    """Tests that empty all tables may have run before."""
    for label in APPS:
        if apps.is_installed(f"django.contrib.{label}") or apps.is_installed(label):
            keep_groups(apps.get_app_config(label), "default")


def member(client: Client, group: str) -> Client:
    user = User.objects.create_user(group, is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client.force_login(user)
    return client


def queue_page(queue: Queue, name: str) -> str:
    return reverse(f"admin:queues_queue_{name}", args=[queue.pk])


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_sees_the_front_page_and_every_list_of_the_broker(client: Client, group: str) -> None:
    member(client, group)
    assert b'id="broker"' in client.get(reverse("admin:index")).content
    assert client.get(reverse("admin:state")).status_code == 200
    for model in admin.site._registry:
        if model._meta.app_label == "queues" and model is not AuditRow:
            response = client.get(reverse(f"admin:queues_{model._meta.model_name}_changelist"))
            assert response.status_code == 200, model


@pytest.mark.parametrize(
    ("group", "operates", "destroys", "administers"),
    [("viewer", False, False, False), ("operator", True, False, False), ("administrator", True, True, True)],
)
def test_permissions_of_each_group(
    client: Client, group: str, operates: bool, destroys: bool, administers: bool
) -> None:
    member(client, group)

    def allowed(response: Any) -> bool:
        assert response.status_code in (200, 302, 403)
        return bool(response.status_code != 403)

    queue = make_queue("orders")
    [dead] = store(queue, State.DEAD)
    store(queue, count=2)
    assert allowed(client.post(address("queue", "add"), policy(name="new"))) is operates
    assert Queue.objects.filter(name="new").exists() is operates
    assert allowed(client.post(queue_page(queue, "pause"))) is operates
    assert Queue.objects.get(name="orders").paused is operates
    text = json.dumps({"version": 1, "queues": {"imported": {}}})
    imported = client.post(reverse("admin:queues_queue_import_definitions"), {"text": text, "apply": "yes"})
    assert allowed(imported) is operates
    assert Queue.objects.filter(name="imported").exists() is operates
    confirm(client, act(client, "message", "put_back", dead.pk))
    assert Message.objects.filter(pk=dead.pk, state=State.DEAD).exists() is not operates
    ended = client.post(f"{reverse('admin:end_backend', args=[1])}?started=1")
    assert allowed(ended) is operates, "there is no such session, which is said to those who may"
    assert allowed(client.get(address("apikey", "add"))) is administers
    assert allowed(client.get(reverse("admin:auth_user_changelist"))) is administers
    assert allowed(client.post(queue_page(queue, "purge"), TYPED)) is destroys
    assert (assert_counts_are_exact(queue).ready == 0) is destroys
    act(client, "queue", "delete_selected", queue.pk, **TYPED)
    assert Queue.objects.filter(name="orders").exists() is not destroys


def test_a_permission_that_was_taken_from_a_group_stays_away() -> None:
    operator = Group.objects.get(name="operator")
    operator.permissions.remove(operator.permissions.get(codename="change_queue"))
    keep_groups(apps.get_app_config("queues"), "default")
    assert not operator.permissions.filter(codename="change_queue").exists()
    assert operator.permissions.filter(codename="add_queue").exists()


def test_a_group_that_was_deleted_comes_again_with_its_permissions() -> None:
    before = set(Group.objects.get(name="viewer").permissions.values_list("codename", flat=True))
    Group.objects.get(name="viewer").delete()
    for label in ("queues", "hydra", "django_celery_results"):
        keep_groups(apps.get_app_config(label), "default")
    after = set(Group.objects.get(name="viewer").permissions.values_list("codename", flat=True))
    assert after == before
    assert all(codename.startswith("view_") for codename in after)
    assert "view_queue" in after
