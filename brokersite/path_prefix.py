"""The site below a path of a proxy: `daphne --root-path /broker`, or what an ASGI server says with each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.contrib.staticfiles.storage import StaticFilesStorage
from django.urls import get_script_prefix

Application = Callable[[Any, Any, Any], Awaitable[None]]


def path_within(scope: Any) -> str:
    """The path of a request below the prefix, whether the proxy passes the prefix on or removes it."""
    prefix = scope.get("root_path", "").rstrip("/")
    path = str(scope["path"])
    inside = path.removeprefix(prefix) if path == prefix or path.startswith(f"{prefix}/") else path
    return inside or "/"


def with_whole_path(application: Application) -> Application:
    """An ASGI application whose requests have the prefix in their path, as ASGI says, also where a proxy removes it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("root_path"):
            prefix = scope["root_path"].rstrip("/")
            scope = {**scope, "root_path": prefix, "path": prefix + path_within(scope)}
        await application(scope, receive, send)

    return answer


class PrefixedStaticFiles(StaticFilesStorage):
    """Addresses of styles and scripts with the prefix of the request: Django asks for it once a process."""

    def url(self, name: str | None) -> str:
        return get_script_prefix().rstrip("/") + str(super().url(name))
