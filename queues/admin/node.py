"""Processes that run the engine: read only."""

from django.contrib import admin

from queues.admin.audited import ReadOnlyAdmin
from queues.models import Node


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "host", "pid", "started_at")
