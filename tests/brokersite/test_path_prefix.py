"""The site below a path of a proxy: every address that it gives has the prefix of the request."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client
from django.urls import reverse, set_script_prefix

from brokersite.path_prefix import path_within, with_whole_path
from tests.queues.store import make_queue

#: What a proxy makes of `/broker/PATH`: it passes that on, or what is below the prefix.
PROXIES = {"passes the prefix on": "/broker{}", "removes the prefix": "{}"}
LINK = re.compile(r'(?:href|src|action|data-address)="([^"#?]+)')


async def answer(path: str, prefix: str = "/broker") -> tuple[int, dict[str, str], str]:
    """The status, the headers and the body of the answer to a GET."""
    told: list[Any] = []
    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Future()

    async def send(event: Any) -> None:
        told.append(event)

    scope = {"type": "http", "method": "GET", "path": path, "root_path": prefix, "query_string": b"",
             "headers": [(b"host", b"testserver")]}  # fmt: skip
    await with_whole_path(get_asgi_application())(scope, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], headers, b"".join(event["body"] for event in told[1:]).decode()


@pytest.mark.parametrize("proxy", PROXIES)
async def test_every_link_of_a_page_has_the_prefix_whether_the_proxy_removes_it_or_not(proxy: str) -> None:
    below = PROXIES[proxy]
    status, headers, _ = await answer(below.format("/admin/"))
    assert (status, headers["location"]) == (302, "/broker/admin/login/?next=/broker/admin/")
    status, _, page = await answer(below.format("/admin/login/"))
    links = LINK.findall(page)
    assert status == 200
    assert "/broker/static/queues/site.css" in links
    assert [link for link in links if not link.startswith("/broker/")] == []
    assert (await answer(below.format("/")))[1]["location"] == "/broker/admin/"


async def test_the_prefix_is_that_of_the_request_and_not_of_the_first_one() -> None:
    for prefix in ("", "/a", "/b/c"):
        _, _, page = await answer(f"{prefix}/admin/login/", prefix)
        assert f'href="{prefix}/static/queues/site.css"' in page


@pytest.mark.parametrize(
    ("prefix", "path", "within"),
    [("", "/admin/", "/admin/"), ("/broker", "/broker/admin/", "/admin/"), ("/broker", "/admin/", "/admin/"),
     ("/broker", "/broker", "/"), ("/broker/", "/broker/admin/", "/admin/"), ("/broker", "/brokers/", "/brokers/")],
)  # fmt: skip
def test_the_path_within_a_prefix(prefix: str, path: str, within: str) -> None:
    assert path_within({"root_path": prefix, "path": path}) == within


@pytest.mark.django_db
def test_the_front_page_that_is_kept_for_a_second_is_no_other_prefixs(client: Client) -> None:
    queue = make_queue("orders")
    client.force_login(User.objects.create_superuser("admin"))

    def links() -> Any:
        return LINK.findall("".join(part["html"] for part in client.get("/admin/state/").json().values()))

    plain = reverse("admin:queues_queue_change", args=[queue.pk])
    assert plain in links()
    set_script_prefix("/broker/")
    try:
        assert f"/broker{plain}" in links()
        assert [link for link in links() if not link.startswith("/broker/")] == []
    finally:
        set_script_prefix("/")
    assert plain in links()
