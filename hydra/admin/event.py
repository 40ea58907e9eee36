"""The events of Hydra's nodes, read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from hydra.models import Event
from queues.admin.recorded import RecordedAdmin


@admin.register(Event)
class EventAdmin(RecordedAdmin):
    list_display = ("when", "node", "kind", "term", "text")
    list_display_links = None
    list_filter = ("node", "kind")
    list_select_related = ("node",)
    search_fields = ("text",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(ordering="id")
    def when(self, event: Event) -> str:
        return f"{event.at:%Y-%m-%d %H:%M:%S}"
