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
