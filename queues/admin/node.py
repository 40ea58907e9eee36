"""Processes that run the engine: read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from queues.admin.recorded import RecordedAdmin
from queues.models import Node


@admin.register(Node)
class NodeAdmin(RecordedAdmin):
    list_display = ("id", "name", "host", "pid", "started_at")
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
