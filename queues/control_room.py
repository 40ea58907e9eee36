"""The admin site whose front page is the state of the broker.

A project has it with "queues.control_room.ControlRoomConfig" in INSTALLED_APPS in place of "django.contrib.admin". It
is no part of `queues.admin`, whose modules register themselves with the site when they are imported. That is when its
addresses or checks are asked for: a process that serves no pages, such as most commands, does not import them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.core.checks import CheckMessage
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse

#: Headings of models, in this order; those that are not named stand under the last.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Messages": (
        "queues.Queue", "queues.Message", "queues.ArchivedMessage", "queues.BulkOperation", "queues.PeriodicJob",
    ),
    "Consumers": ("queues.Connection", "queues.Worker", "queues.Mailbox", "queues.Subscription", "queues.Route"),
    "Access": ("queues.ApiKey", "auth.User", "auth.Group"),
    "History": (
        "queues.QueueSample", "queues.Rollup", "queues.AuditChain", "queues.AuditRow", "queues.EtlRun",
        "queues.EtlSchedule",
    ),
    "System": (),
}  # fmt: skip
OTHERS = "System"


class ControlRoomConfig(SimpleAdminConfig):
    """Django's admin with this site."""

    default_site = "queues.control_room.ControlRoom"


class ControlRoom(admin.AdminSite):
    """Django's admin, with the broker on its front page and the models grouped by the work that is done with them."""

    site_header = site_title = "Fivewire"
    index_title = "Control room"
    index_template = "admin/queues/front.html"

    def check(self, app_configs: Sequence[AppConfig] | None) -> list[CheckMessage]:
        admin.autodiscover()
        return super().check(app_configs)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from queues.admin import front

        admin.autodiscover()
        own = [
            path("state/", self.admin_view(front.state_view), name="state"),
            path("backends/<int:pid>/end/", self.admin_view(front.end_backend_view), name="end_backend"),
        ]
        return [*own, *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        from queues.admin import front

        return super().index(request, {**front.front_context(request), **(extra_context or {})})

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[dict[str, Any]]:
        """The models that the user may see: those of one app, or all in groups."""
        apps: list[dict[str, Any]] = super().get_app_list(request, app_label)
        if app_label is not None:
            return apps
        found = {model["model"]._meta.label: model for app in apps for model in app["models"]}
        named = {name for names in GROUPS.values() for name in names}
        groups = []
        for title, names in GROUPS.items():
            others = [name for name in found if name not in named] if title == OTHERS else []
            if models := [found[name] for name in (*names, *others) if name in found]:
                groups.append(
                    {
                        "name": title, "app_label": title.lower(), "app_url": reverse("admin:index"),
                        "has_module_perms": True, "models": models,
                    }
                )  # fmt: skip
        return groups
