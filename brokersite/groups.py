"""Three groups of users that come with the tables: viewer, operator, administrator.

Every page and action asks for one of three kinds of permission of what it is about: to view, to operate (add and
change), to destroy (delete). A group gets its permissions of an app when it has none of that app's; later changes are
left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.apps import AppConfig, apps
from django.db import connections

#: Apps whose pages the groups are for.
APPS = ("queues", "hydra", "django_celery_results", "auth")
#: Models that only administrators change: users and their permissions.
ACCESS = ("apikey", "user", "group", "permission")
END_BACKEND = "end_backend"


def _views(app: str, codename: str) -> bool:
    return app != "auth" and codename.startswith("view_")


def _operates(app: str, codename: str) -> bool:
    if _views(app, codename) or codename == END_BACKEND:
        return True
    kind, _, model = codename.partition("_")
    return app in ("queues", "hydra") and kind in ("add", "change") and model not in ACCESS


GROUPS: Mapping[str, Callable[[str, str], bool]] = {
    "viewer": _views, "operator": _operates, "administrator": lambda app, codename: True,
}  # fmt: skip


def keep_groups(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """After a migration: make the groups, and give each its permissions of the app that was migrated."""
    if sender.label not in APPS or not apps.is_installed("django.contrib.auth"):
        return
    with connections[using].cursor() as cursor:
        cursor.execute("select to_regclass('auth_group_permissions') is not null")
        if not cursor.fetchone()[0]:
            return
    from django.contrib.auth.management import create_permissions
    from django.contrib.auth.models import Group, Permission

    create_permissions(sender, verbosity=0, using=using)  # they may be made after this, in the order of the apps
    permissions = Permission.objects.using(using).filter(content_type__app_label=sender.label)
    known = list(permissions.values_list("pk", "codename"))
    for name, has in GROUPS.items():
        group, _ = Group.objects.using(using).get_or_create(name=name)
        if not group.permissions.using(using).filter(content_type__app_label=sender.label).exists():
            group.permissions.add(*(pk for pk, codename in known if has(sender.label, codename)))
