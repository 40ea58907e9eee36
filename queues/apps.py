"""The Django application ``queues``."""

from __future__ import annotations

from django.apps import AppConfig


class QueuesConfig(AppConfig):
    """The broker's store and engine, and its pages in the admin."""

    name = "queues"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from queues import checks  # noqa: F401
        from queues.config.settings import settings
        from queues.database import hosts

        hosts.directory = lambda: settings.DATA_DIR / "timelines"
