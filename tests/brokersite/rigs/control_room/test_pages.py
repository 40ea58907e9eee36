"""Every page of the admin, from the one list that the bench visits too: it answers, in few queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.urls import URLPattern, URLResolver, resolve

from brokersite.rigs.control_room.pages import admin_pages
from brokersite.rigs.control_room.store import Size, fill
from brokersite.rigs.control_room.visits import MOST_QUERIES, Visitor
from tests.brokersite.one_of_each import one_of_each

pytestmark = pytest.mark.django_db

#: Addresses that do something and show no page of their own, and those of people who are not logged in.
NO_PAGES = {
    "hydra_node_resign", "queues_auditchain_verify", "queues_bulkoperation_cancel", "queues_etlrun_again",
    "queues_etlrun_cancel", "queues_queue_pause", "queues_queue_resume", "login", "logout", "view_on_site",
}  # fmt: skip


#: Milliseconds that statements of pages may take, by the names of these limits.
TIME_LIMITS = ("LIMIT", "OLDEST_LIMIT", "READ_LIMIT", "TIMEOUT", "ARCHIVE_TIMEOUT")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a second makes no page another one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("queues.admin", "queues.operations", "queues.samples")):
            for limit in TIME_LIMITS:
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, 60_000)


@pytest.fixture
def user() -> User:
    """One who may do everything, in a store with one of each object and several of most."""
    one_of_each()
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


def test_every_page_answers_in_at_most_twelve_queries(user: User) -> None:
    visitor = Visitor(user)
    visited = [visitor.visit(page, 0) for page in admin_pages(user)]
    assert {one.page.name: one.status for one in visited if one.status != one.page.status} == {}
    assert {one.page.name: one.queries for one in visited if not 0 < one.queries <= MOST_QUERIES} == {}
