"""The events of Hydra's nodes, read only."""

from __future__ import annotations

from django.contrib import admin

from hydra.models import Event
from queues.admin.audited import ReadOnlyAdmin


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("when", "node", "kind", "term", "text")
    list_display_links = None
    list_filter = ("node", "kind")
    list_select_related = ("node",)
    search_fields = ("text",)

    @admin.display(ordering="id")
    def when(self, event: Event) -> str:
        return f"{event.at:%Y-%m-%d %H:%M:%S}"
