"""Every page of the admin, from the one list that the bench visits too: it answers, in few queries, and needs nothing
that the policy forbids."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, resolve, reverse

from brokersite.groups import APPS, GROUPS, keep_groups
from queues.models import AuditChain, BulkOperation, EtlRun, Queue
from tests.brokersite.one_of_each import one_of_each
from tests.brokersite.test_csp import POLICY
from tests.rigs.control_room.pages import Page, admin_pages
from tests.rigs.control_room.store import Size, fill
from tests.rigs.control_room.visits import MAX_QUERIES, Visitor

pytestmark = pytest.mark.django_db

#: Addresses that do something and show no page of their own, and those of people who are not logged in.
NO_PAGES = {
    "hydra_node_resign", "queues_auditchain_verify", "queues_bulkoperation_cancel", "queues_etlrun_again",
    "queues_etlrun_cancel", "queues_queue_pause", "queues_queue_resume", "login", "logout", "view_on_site",
}  # fmt: skip

#: Pages of a user's own account, and the front page without the broker's state.
OWN = {"index", "jsi18n", "password_change", "password_change_done"}
#: Pages for the group viewer, beside lists, objects and their histories.
SEEN = {
    "app_list", "autocomplete", "queues_archivedmessage_payload", "queues_message_find", "queues_message_reasons",
    "queues_message_payload", "queues_queue_export_definitions", "queues_route_picture", "queues_subscription_topics",
    "state",
}  # fmt: skip
#: Pages for the group operator besides; those for the group administrator are all.
OPERATED = {
    "end_backend", "hydra_node_disconnect_link", "hydra_node_drop", "hydra_node_resign", "queues_connection_disconnect",
    "queues_etlrun_start", "queues_etlschedule_add", "queues_mailbox_disconnect", "queues_mailbox_free_name",
    "queues_message_operate", "queues_message_publish", "queues_periodicjob_add", "queues_queue_add",
    "queues_queue_import_definitions", "queues_route_add",
}  # fmt: skip
#: Elements that a browser would not run or apply.
INLINE = re.compile(r"<script(?![^>]*(\bsrc=|application/json))|<style|\sstyle=|\son[a-z]+=\"|javascript:", re.I)
#: Milliseconds that statements of pages may take, by the names of these limits.
TIME_LIMITS = ("LIMIT", "OLDEST_LIMIT", "READ_LIMIT", "TIMEOUT", "ARCHIVE_TIMEOUT")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a second makes no page another one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("queues.admin", "queues.operations", "queues.store.samples")):
            for limit in TIME_LIMITS:
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, 60_000)


@pytest.fixture
def user() -> User:
    """One who may do everything, in a store with one of each object and several of most."""
    reverse("admin:index")  # the models are registered when the site's addresses are read
    assert {type(thing) for thing in one_of_each()} == set(admin.site._registry)
    with connection.cursor() as cursor:
        fill(cursor, Size(messages=1000, queues=60, connections=4), lambda text: None)
    return User.objects.create_superuser("admin")


def names_of_addresses(patterns: list[URLPattern | URLResolver]) -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from names_of_addresses(pattern.url_patterns)
        elif pattern.name is not None:
            yield pattern.name


def test_every_address_of_the_admin_is_in_the_list_of_pages(user: User) -> None:
    listed = {resolve(page.address.partition("?")[0]).url_name for page in admin_pages(user)}
    patterns, *_ = admin.site.urls
    never_shown = {f"queues_auditrow_{page}" for page in ("add", "change", "delete", "history")}
    missing = set(names_of_addresses(patterns)) - listed - NO_PAGES - never_shown
    assert {name for name in missing if not name.endswith(("_add", "_delete"))} == set(), "pages that nothing measures"


def name_of(address: str) -> str:
    return resolve(address.partition("?")[0]).url_name or ""


@pytest.mark.timeout(600)  # hundreds of pages
def test_each_group_opens_its_pages_and_no_others(user: User, client: Client) -> None:
    for label in APPS:
        keep_groups(apps.get_app_config(label), "default")
    by_name = {name_of(page.address): page.address for page in admin_pages(user) if page.form is None}
    addresses, names = list(by_name.values()), set(by_name)
    seen = {name for name in names if name.endswith(("_changelist", "_change", "_history")) and "auth_" not in name}
    allowed = {"none": OWN, "viewer": OWN | SEEN | seen}
    allowed |= {"operator": allowed["viewer"] | OPERATED, "administrator": names}
    assert set(GROUPS) < set(allowed)
    posted = [
        reverse(f"admin:queues_{name}", args=[model.objects.order_by("pk")[0].pk])
        for model, *names in (
            (AuditChain, "auditchain_verify"), (EtlRun, "etlrun_cancel", "etlrun_again"),
            (Queue, "queue_pause", "queue_resume"), (BulkOperation, "bulkoperation_cancel"),
        )
        for name in names
    ]  # fmt: skip
    for name, expected in allowed.items():
        person = User.objects.create_user(name, is_staff=True)
        person.groups.set(Group.objects.filter(name=name))
        client.force_login(person)
        opened = {address for address in addresses if client.get(address).status_code not in (403, 404)}
        assert set(map(name_of, opened)) == expected, name
        refused = [address for address in addresses if address not in opened and name_of(address) != "app_list"]
        refused += posted if name in ("none", "viewer") else []
        answers = {address: client.post(address).status_code for address in refused}
        assert set(answers.values()) <= {403, 405}, answers


class Reader(Visitor):
    """A browser that keeps the pages that it was shown last."""

    def __init__(self, user: User) -> None:
        super().__init__(user)
        self.shown: dict[str, HttpResponse] = {}

    def open(self, page: Page) -> HttpResponse:
        self.shown[page.name] = super().open(page)
        return self.shown[page.name]


def test_every_page_answers_in_at_most_twelve_queries_with_the_policy_and_keeps_to_it(user: User) -> None:
    visitor = Reader(user)
    visited = [visitor.visit(page, 0) for page in admin_pages(user)]
    assert {one.page.name: one.status for one in visited if one.status != one.page.status} == {}
    assert {one.page.name: one.queries for one in visited if not 0 < one.queries <= MAX_QUERIES} == {}
    visitor.shown["login"] = Client().get("/admin/login/")  # type: ignore[assignment]
    for name, response in visitor.shown.items():
        assert response["Content-Security-Policy"] == POLICY, name
        if response["Content-Type"].startswith("text/html"):
            assert not INLINE.search(response.getvalue().decode()), name
