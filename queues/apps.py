"""The Django application ``queues``."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class QueuesConfig(AppConfig):
    """The broker's store and engine, and its pages in the admin."""

    name = "queues"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from queues import checks  # noqa: F401
        from queues.groups import keep_groups

        post_migrate.connect(keep_groups)
