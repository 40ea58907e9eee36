"""The policy on every page, and that no page needs what it forbids."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from brokersite.csp import POLICY
from brokersite.rigs.control_room.pages import admin_pages
from tests.brokersite.one_of_each import one_of_each

#: Elements that a browser would not run or apply.
INLINE = re.compile(r"<script(?![^>]*(\bsrc=|application/json))|<style|\sstyle=|\son[a-z]+=\"|javascript:", re.I)


@pytest.mark.django_db
def test_every_page_of_the_admin_has_the_policy_and_keeps_to_it(admin_client: Client, admin_user: User) -> None:
    things = one_of_each()
    pages = admin_pages(admin_user)
    assert {type(thing) for thing in things} == set(admin.site._registry)
    shown = {page.name: admin_client.get(page.address) for page in pages if page.form is None}
    shown |= {page.name: admin_client.post(page.address, page.form) for page in pages if page.form is not None}
    shown["login"] = Client().get("/admin/login/")
    for page, response in shown.items():
        assert response["Content-Security-Policy"] == POLICY, page
        if response["Content-Type"].startswith("text/html"):
            assert not INLINE.search(response.getvalue().decode()), page


async def test_other_answers_have_it_too(async_client: AsyncClient) -> None:
    for page in ("/healthz", "/nowhere"):
        assert (await async_client.get(page))["Content-Security-Policy"] == POLICY


def test_files_have_it_too(client: Client) -> None:
    response = client.get("/static/queues/site.css")
    assert b".chart" in response.getvalue()
    assert response["Content-Security-Policy"] == POLICY
