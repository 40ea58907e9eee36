"""The policy on every page, and that no page needs what it forbids."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.test import AsyncClient, Client
from django.urls import NoReverseMatch, reverse

from brokersite.csp import POLICY
from tests.brokersite.one_of_each import one_of_each

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
