"""The Django application ``queues``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class QueuesConfig(AppConfig):
    """The broker's store and engine, and its pages in the admin."""

    name = "queues"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from queues import checks, hosts  # noqa: F401
        from queues.groups import keep_groups
        from queues.settings import settings

        post_migrate.connect(keep_topology, sender=self)
        post_migrate.connect(keep_groups)
        hosts.directory = lambda: settings.DATA_DIR / "timelines"


def keep_topology(using: str, **kwargs: Any) -> None:
    """Put the one row of the topology back, without which nothing is routed: `manage.py flush` empties every table, but
    for the changes of the earlier topology."""
    with connections[using].cursor() as cursor:
        cursor.execute("select to_regclass('queues_topologychange') is not null")
        if cursor.fetchone()[0]:
            cursor.execute("insert into queues_topology (id, version) values (1, 1) on conflict do nothing")
            if cursor.rowcount:
                cursor.execute("delete from queues_topologychange")
