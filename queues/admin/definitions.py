"""Definitions out and in as JSON, as buttons of the list of queues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from queues.admin.audited import demand, operator, render_page
from queues.admin.generic import ModelAdmin
from queues.operations.definitions import (
    InvalidDefinitions,
    decode_definitions,
    export_definitions,
    import_definitions,
    parse_definitions,
)

#: The permissions to see definitions, and to change each section of them.
VIEWED = ("view_queue", "view_route", "view_periodicjob", "view_apikey")
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "queues": ("add_queue", "change_queue"), "routes": ("add_route",),
    "periodic_jobs": ("add_periodicjob", "change_periodicjob"), "api_keys": ("change_apikey",),
}  # fmt: skip
#: Bytes of a file.
MAX_BYTES = 4 << 20


def _has(request: HttpRequest, *names: str) -> bool:
    return request.user.has_perms([f"queues.{name}" for name in names])


def may_export(request: HttpRequest) -> bool:
    """Whether the user may see all that definitions hold."""
    return _has(request, *VIEWED)


def may_import(request: HttpRequest) -> bool:
    """Whether the user may bring in any section."""
    return any(_has(request, *names) for names in SECTIONS.values())


def export_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """All definitions as a file."""
    demand(may_export(request))
    text = json.dumps(export_definitions(), indent=2, ensure_ascii=False)
    name = f"fivewire-definitions-{datetime.now(UTC):%Y-%m-%d}.json"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return HttpResponse(text, content_type="application/json", headers=disposition)


def import_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Take definitions, show what they would change, and change it."""
    demand(may_import(request))
    context: dict[str, Any] = {"text": "", "changes": None}
    if request.method == "POST":
        try:
            text = _given(request)
            context |= {"text": text}
            given = parse_definitions(text)
            _check_rights(request, given)
            apply = "apply" in request.POST
            context["changes"] = import_definitions(given, operator(request), dry_run=not apply)
        except InvalidDefinitions as error:
            context["problem"] = str(error)
        else:
            if apply:
                made = sum(change.action != "skip" for change in context["changes"])
                messages.success(request, f"Changes made: {made}.")
                return HttpResponseRedirect(reverse("admin:queues_queue_changelist"))
    return render_page(model_admin, request, "import_definitions", "Import definitions", **context)


def _given(request: HttpRequest) -> str:
    """The text of the form or its file. Raises InvalidDefinitions."""
    file = request.FILES.get("file")
    text = request.POST.get("text", "")
    data = text.encode(errors="surrogatepass") if file is None else bytes(file.read(MAX_BYTES + 1))
    if len(data) > MAX_BYTES:
        raise InvalidDefinitions(f"They have more than {MAX_BYTES >> 20} MiB; use manage.py definitions import.")
    return text if file is None else decode_definitions(data)


def _check_rights(request: HttpRequest, given: object) -> None:
    """Raises PermissionDenied for a section that the user may not change."""
    if isinstance(given, Mapping) and not all(
        _has(request, *names) for section, names in SECTIONS.items() if given.get(section)
    ):
        raise PermissionDenied
