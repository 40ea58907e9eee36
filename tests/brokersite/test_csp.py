"""The policy on answers outside the admin; `rigs/control_room/test_pages.py` has it on every page of that."""

from __future__ import annotations

from django.test import AsyncClient, Client

from brokersite.csp import POLICY


async def test_other_answers_have_it_too(async_client: AsyncClient) -> None:
    for page in ("/healthz", "/nowhere"):
        assert (await async_client.get(page))["Content-Security-Policy"] == POLICY


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
