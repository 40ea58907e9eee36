"""`queues` as a guest in projects whose settings are not Fivewire's: every page, command and call works there, and
nothing that is the project's own changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from queues.database.parameters import connection_parameters
from tests.queues.test_standalone import Project
from tests.wire.broker import create_database, drop_databases

pytestmark = pytest.mark.timeout(600)

OWN_USER = {
    "people/__init__.py": "",
    "people/migrations/__init__.py": "",
    "people/models.py": """
        from django.contrib.auth.models import AbstractUser

        class Customer(AbstractUser):
            pass
    """,
}
OWN_ADMIN = {
    "people/__init__.py": "",
    "people/admin.py": """
        from django.contrib import admin
        from django.contrib.auth.admin import UserAdmin
        from django.contrib.auth.models import User

        admin.site.unregister(User)

        @admin.register(User)
        class OwnUserAdmin(UserAdmin):
            list_display = ("username",)
    """,
    "people/router.py": """
        class Router:
            def allow_migrate(self, db, app_label, **hints):
                return db == "default" or app_label == "people"
    """,
}
NO_USERS = {
    "people/__init__.py": "",
    "people/admin.py": """
        from django.contrib import admin
        from django.contrib.auth.models import Group, User

        admin.site.unregister((User, Group))
    """,
}


@dataclass(frozen=True)
class Guest:
    """A project: its settings beside those of the page, its own application `people`, and its admin's other classes."""

    settings: str
    files: dict[str, str]
    registered: dict[str, str]


GROUP_ADMIN = {"auth.Group": "django.contrib.auth.admin.GroupAdmin"}
GUESTS = {
    "own user admin, no time zones, German, lasting connections, serializable": Guest(
        """
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        LANGUAGE_CODE, USE_THOUSAND_SEPARATOR = "de", True
        USE_TZ, TIME_ZONE = False, "America/New_York"
        INSTALLED_APPS.insert(INSTALLED_APPS.index("queues"), "people")
        DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
        DATABASES["default"]["CONN_MAX_AGE"] = 60
        DATABASES["default"]["OPTIONS"] = {"isolation_level": IsolationLevel.SERIALIZABLE}
        DATABASES["other"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "other.sqlite3"}
        DATABASE_ROUTERS = ["people.router.Router"]
        """,
        OWN_ADMIN,
        GROUP_ADMIN | {"auth.User": "people.admin.OwnUserAdmin"},
    ),
    "own user, French, below a path, typed parameters": Guest(
        """
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        LANGUAGE_CODE, USE_THOUSAND_SEPARATOR = "fr", True
        TIME_ZONE, DATABASES["default"]["TIME_ZONE"] = "Europe/Paris", "Asia/Kathmandu"
        INSTALLED_APPS.insert(0, "people")
        AUTH_USER_MODEL = "people.Customer"
        FORCE_SCRIPT_NAME = "/broker"
        DATABASES["default"]["OPTIONS"] = {
            "server_side_binding": True, "isolation_level": IsolationLevel.REPEATABLE_READ
        }
        """,
        OWN_USER,
        GROUP_ADMIN,
    ),
    "no users in the admin, Arabic, a pool, serializable": Guest(
        """
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        LANGUAGE_CODE, USE_THOUSAND_SEPARATOR = "ar", True
        TIME_ZONE = "Asia/Kolkata"
        APPEND_SLASH = False
        INSTALLED_APPS.append("people")
        INSTALLED_APPS[INSTALLED_APPS.index("django.contrib.admin")] = "queues.control_room.ControlRoomConfig"
        DATABASES["default"]["OPTIONS"] = {"pool": True, "isolation_level": IsolationLevel.SERIALIZABLE}
        """,
        NO_USERS,
        {},
    ),
    "no time zones, a pool with typed parameters": Guest(
        """
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        USE_TZ, TIME_ZONE = False, "Asia/Kolkata"
        DATABASES["default"]["OPTIONS"] = {
            "pool": True, "server_side_binding": True, "isolation_level": IsolationLevel.READ_UNCOMMITTED
        }
        """,
        {},
        GROUP_ADMIN | {"auth.User": "django.contrib.auth.admin.UserAdmin"},
    ),
}  # fmt: skip
TOUR = """
    import logging
    from pathlib import Path

    before = list(logging.getLogger().handlers)
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Group, Permission
    from django.urls import get_script_prefix
    from tests.queues import guest
    from tests.queues.crawl import Crawl
    from tests.queues.one_of_each import one_of_each

    user = get_user_model().objects.create_superuser("root", password="x")
    guest.begin_ids_above_a_thousand()
    failed = guest.use_every_command(Path("."))
    from queues.models import Queue
    Queue.objects.filter(name="orders").update(name="shop")
    one_of_each()
    guest.use_the_api()
    failed += guest.fill_in_forms(user)
    guest.set_clocks_back()
    guest.keep_it_up()
    ids = list(Queue.objects.values_list("id", flat=True))
    crawl = Crawl(user)
    crawl.walk(f"{get_script_prefix()}admin/")
    crawl.act()
    answer = {
        "failed": failed + crawl.faults, "pages": sorted(crawl.pages), "registered": guest.registrations(),
        "groups": list(Group.objects.values_list("name", flat=True)),
        "logging": logging.getLogger().handlers == before,
        "ids": ids,
    }
"""


#: Those of the short run, which have the rarest settings; the long one has all.
SHORT = (
    "own user admin, no time zones, German, lasting connections, serializable",
    "own user, French, below a path, typed parameters",
)


@pytest.fixture(
    scope="module", params=[name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in GUESTS]
)
def toured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_setup: None
) -> Iterator[tuple[Guest, dict[str, Any]]]:
    """A project made as docs/django.md says, and what a tour through it has found."""
    guest, parameters, name = GUESTS[request.param], connection_parameters(), f"guest_{os.getpid()}"
    directory: Path = tmp_path_factory.mktemp("guest")
    project = Project(directory, create_database(parameters, name), celery=True)
    for path, text in guest.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(dedent(text))
    with (directory / "shop" / "settings.py").open("a") as settings:
        settings.write(dedent(guest.settings))
    try:
        if "people/models.py" in guest.files:
            project.manage("makemigrations", "people", "-v", "0")
        project.manage("migrate", "-v", "0")
        if "people/router.py" in guest.files:
            project.manage("migrate", "-v", "0", "--database", "other")
        assert "no issues" in project.manage("check", "--database", "default")
        assert "No changes" in project.manage("makemigrations", "--check", "--dry-run", "queues")
        yield guest, project.answer(TOUR)
    finally:
        drop_databases(parameters, name)


def test_every_page_command_and_call_works_in_a_project_with_its_own_settings(
    toured: tuple[Guest, dict[str, Any]],
) -> None:
    _, found = toured
    assert not found["failed"], "\n".join(found["failed"])
    assert len(found["pages"]) > 80
    assert min(found["ids"]) > 999


def test_what_is_the_projects_own_stays_as_it_is(toured: tuple[Guest, dict[str, Any]]) -> None:
    guest, found = toured
    others = {"people.admin", "django.contrib.auth.admin"}
    registered = found["registered"].items()
    assert {label: shown for label, shown in registered if shown.rpartition(".")[0] in others} == guest.registered
    assert found["groups"] == []
    assert found["logging"]
