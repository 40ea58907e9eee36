"""The policy on answers outside the admin; `rigs/control_room/test_pages.py` has it on every page of that."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import AsyncClient, Client

#: SECURE_CSP as a header.
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


async def test_other_answers_have_it_too(async_client: AsyncClient) -> None:
    for page in ("/healthz", "/nowhere"):
        assert (await async_client.get(page))["Content-Security-Policy"] == POLICY


@pytest.mark.django_db
def test_debug_pages_which_are_inline_go_without(client: Client, settings: Any) -> None:
    settings.DEBUG = True
    missing = client.get("/nowhere")
    assert (missing.status_code, b"<style>" in missing.content) == (404, True)
    assert "Content-Security-Policy" not in missing
    assert client.get("/admin/login/")["Content-Security-Policy"] == POLICY


def test_files_have_it_too(client: Client) -> None:
    response = client.get("/static/queues/site.css")
    assert b".chart" in response.getvalue()
    assert response["Content-Security-Policy"] == POLICY


def test_a_browser_finds_the_icon_that_every_page_names(client: Client) -> None:
    page = client.get("/admin/login/").content
    assert b'<link rel="icon" href="/static/queues/icon.svg">' in page
    icon = client.get("/static/queues/icon.svg")
    assert icon.getvalue().startswith(b"<svg")  # which closes the file, too
    assert icon["Content-Type"] == "image/svg+xml"
