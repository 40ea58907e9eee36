"""`queues` in a Django project of its own: one entry in INSTALLED_APPS, without the site and the other packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import django
import pytest
from django.core import management

from brokersite.environment import CHECKOUT
from queues.database.parameters import connection_parameters
from tests.bare import EXTRAS, link_packages
from tests.process import Process
from tests.waiting import wait_until
from tests.wire.broker import create_database, drop_databases

#: The page that shows the project; each of its blocks that begins with a file's name is that file.
PAGE = CHECKOUT / "docs" / "django.md"
BLOCK = re.compile(r"^```python\n# (shop/\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A test's additions to the settings that `startproject` writes.
TESTED = """
    DATABASES["default"] |= DATABASE
    ALLOWED_HOSTS = ["testserver"]
    DATA_DIR = BASE_DIR / "data"
"""
#: The Celery application with a beat that does not wait for the hour.
HURRY = """
    from shop.celery import app

    for entry in app.conf.beat_schedule.values():
        entry["schedule"] = 0.5
"""
PAGES = """
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import reverse
    from queues.api import publish
    from queues.models import Message, Queue

    Queue.objects.get_or_create(name="pages")
    publish("pages", b'{"order": 1}', headers={"a": 1})
    client = Client(raise_request_exception=True)
    client.force_login(User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("root"))
    answer = {}
    for model, shown in admin.site._registry.items():
        if model._meta.app_label == "queues":
            views = {"changelist": ()}
            if (row := model.objects.first()) is not None:
                views["change"] = (row.pk,)
            if shown.has_add_permission(client.get("/admin/").wsgi_request):
                views["add"] = ()
            for view, args in views.items():
                name = f"{model._meta.model_name}_{view}"
                answer[name] = client.get(reverse(f"admin:queues_{name}", args=args)).status_code
"""
PUBLISH = """
    from django.db import transaction
    from queues.api import publish
    from queues.models import Message, Queue

    Queue.objects.get_or_create(name="sales")
    try:
        with transaction.atomic():
            publish("sales", b"taken back")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        publish("sales", b"kept")
    payloads = Message.objects.filter(queue__name="sales").values_list("payload", flat=True)
    answer = [bytes(payload).decode() for payload in payloads]
"""
DELAY = """
    from django.db import transaction
    from shop.celery import ship

    try:
        with transaction.atomic():
            ship.delay("never")
            raise KeyError
    except KeyError:
        pass
    answer = None
"""
#: Something for each task of the upkeep to do; then whether it is done.
NEGLECT = """
    from datetime import UTC, datetime, timedelta
    from django.db import connection
    from queues.models import Node, PeriodicJob, Queue, Rollup

    day = f"queues_archive_{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute(f"drop table {day}")
    queue, _ = Queue.objects.get_or_create(name="reports")
    hour = datetime.now(UTC)
    PeriodicJob.objects.create(name="report", queue=queue, cron="* * * * *", next_run_at=hour - timedelta(minutes=1))
    Node.objects.create(name="dead", pid=0, first_message_id=0)
    Rollup.objects.create(queue="orders", hour=hour - timedelta(days=500))
    answer = None
"""
UPKEPT = """
    from datetime import UTC, datetime, timedelta
    from django.db import connection
    from queues.models import AuditAnchor, Message, Node, Rollup

    day = f"queues_archive_{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute("select to_regclass(%s) is not null", [day])
        [partition] = cursor.fetchone()
    answer = {
        "keep_archive": partition,
        "keep_audit": AuditAnchor.objects.exists(),
        "return_leases": not Node.objects.filter(name="dead").exists(),
        "run_periodic": Message.objects.filter(queue__name="reports").exists(),
        "forget_old": not Rollup.objects.exists(),
    }
"""
UPKEEP = ("keep_archive", "keep_audit", "return_leases", "run_periodic", "forget_old")
#: Packages that only the site needs.
OF_THE_SITE = ("channels", "daphne", "twisted", "uvloop", "websockets")


def shown() -> dict[str, str]:
    """The files of the project as the page shows them, by their names."""
    return dict(BLOCK.findall(PAGE.read_text()))


class Project:
    """A new Django project with the files of the page, whose processes find their modules by PYTHONPATH."""

    def __init__(self, directory: Path, database: dict[str, Any], *, celery: bool) -> None:
        self.directory = directory
        self.package = directory / "shop"
        management.call_command("startproject", "shop", directory, verbosity=0)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        given = {names[name]: str(value) for name, value in database.items() if name in names}
        files = shown()
        with (self.package / "settings.py").open("a") as settings:
            settings.write(f"{files.pop('shop/settings.py')}\nDATABASE = {given!r}\n{dedent(TESTED)}")
        if celery:
            for name, text in files.items():
                (directory / name).write_text(text)
            (self.package / "hurry.py").write_text(dedent(HURRY))

    #: For Python, and further directories of modules.
    options: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BROKER_", "DATABASE_"))}
        del kept["DATA_DIR"]
        path = os.pathsep.join(map(str, (self.directory, CHECKOUT, *self.paths)))
        return kept | {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": path}

    def run(self, *arguments: str) -> str:
        """Run Python; returns what it writes. Fails with all that it wrote when it fails."""
        done = subprocess.run(
            [sys.executable, "-W", "error", *self.options, *arguments], cwd=self.directory, text=True,
            env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def manage(self, *arguments: str) -> str:
        return self.run("-m", "django", *arguments)

    def answer(self, script: str) -> Any:
        """Run a script with Django set up; returns its `answer`."""
        lines = ["import json, django", "django.setup()", dedent(script), "print(json.dumps(answer))"]
        return json.loads(self.run("-c", "\n".join(lines)).splitlines()[-1])


class BareProject(Project):
    """The project with the first of the settings alone, under Python without the packages of the extras."""

    def __init__(self, directory: Path, database: dict[str, Any], packages: Path) -> None:
        super().__init__(directory, database, celery=False)
        self.options, self.paths = ("-S",), (packages,)


@pytest.fixture(scope="module")
def database(django_db_setup: None) -> Iterator[dict[str, Any]]:
    """A database without tables."""
    name = f"standalone_{os.getpid()}"
    parameters = connection_parameters()
    yield create_database(parameters, name)
    drop_databases(parameters, name)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, database: dict[str, Any]) -> Project:
    """The project with its tables made."""
    made = Project(tmp_path_factory.mktemp("standalone"), database, celery=True)
    made.manage("migrate", "-v", "0")
    return made


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, project: Project, database: dict[str, Any]) -> BareProject:
    """The project without Celery, on the same tables, and without the packages of the extras."""
    packages = link_packages(tmp_path_factory.mktemp("packages"), (*EXTRAS, *OF_THE_SITE))
    return BareProject(tmp_path_factory.mktemp("bare"), database, packages)


def test_the_project_passes_its_checks_and_lacks_no_migration(project: Project) -> None:
    assert "no issues" in project.manage("check", "--database", "default")
    assert "No changes" in project.manage("makemigrations", "--check", "--dry-run", "queues")


@pytest.fixture(scope="module")
def shown_pages(project: Project) -> list[Any]:
    """The status of each page of the admin, and the other packages that were imported for them."""
    others = "import sys\nanswer = [answer, sorted({'brokersite', 'hydra', 'peers', 'wire'} & set(sys.modules))]"
    answer: list[Any] = project.answer(f"{dedent(PAGES)}\n{others}")
    return answer


def test_every_page_of_the_admin_is_shown(shown_pages: list[Any]) -> None:
    answer = shown_pages[0]
    assert {status for status in answer.values()} == {200}, answer
    assert {"queue_change", "queue_add", "message_change", "etlrun_changelist", "auditchain_changelist"} <= set(answer)


def test_the_admins_files_are_found(project: Project) -> None:
    assert "site.css" in project.manage("findstatic", "queues/site.css", "-v", "0")


def test_a_message_published_in_a_transaction_is_there_with_the_commit(project: Project) -> None:
    assert project.answer(PUBLISH) == ["kept"]


def test_settings_are_the_declared_defaults_or_the_projects_own(project: Project) -> None:
    script = "from queues.config.settings import settings\nanswer = [settings.BROKER_PREFETCH, str(settings.DATA_DIR)]"
    assert project.answer(script) == [10_000, str(project.directory / "data")]


def test_the_other_packages_are_not_imported(shown_pages: list[Any]) -> None:
    assert shown_pages[1] == []


def test_without_the_packages_of_any_extra_the_app_works(bare: BareProject) -> None:
    assert "no issues" in bare.manage("check")
    assert set(bare.answer(PAGES).values()) == {200}
    assert bare.answer(PUBLISH)[-1] == "kept"


def test_a_feature_that_needs_an_extra_names_it(bare: BareProject) -> None:
    script = """
        from django.core.management import CommandError, call_command
        from queues.etl.errors import EtlError
        from queues.etl.schedules import publish_task

        answer = []
        for call in (lambda: call_command("runtasks"), lambda: call_command("etl", "run"), lambda: publish_task(None)):
            try:
                call()
            except (CommandError, EtlError) as error:
                answer.append(str(error).partition("pip install ")[2])
    """
    tasks, *others = bare.answer(script)
    assert tasks == ("" if django.VERSION >= (6, 0) else "'fivewire[tasks]'.")  # Django 6 has tasks of its own
    assert others == ["'fivewire[etl]'.", "'fivewire[celery]'."]


def test_the_page_shows_every_file_of_the_project() -> None:
    assert set(shown()) == {"shop/settings.py", "shop/celery.py", "shop/__init__.py", "shop/example.py"}
    assert re.findall("^[A-Z_]+", shown()["shop/settings.py"], re.MULTILINE) == [
        "DATABASES", "INSTALLED_APPS", "CELERY_BROKER_URL", "CELERY_BROKER_TRANSPORT_OPTIONS"
    ]  # fmt: skip


def test_a_new_project_with_sqlite_is_told_which_setting_to_change(project: Project) -> None:
    database = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "a"}}
    (project.package / "lite.py").write_text(f"from shop.settings import *\nDATABASES = {database}\n")
    done = subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--settings=shop.lite"], cwd=project.directory, text=True,
        env=project.environment(), capture_output=True,
    )  # fmt: skip
    assert "(fivewire.E001) The database is sqlite" in done.stderr
    assert 'HINT: Give DATABASES["default"] the ENGINE "django.db.backends.postgresql"' in done.stderr
    assert "DATABASE_URL" not in done.stderr


def test_a_project_without_listeners_of_its_own_is_told_what_a_node_is(project: Project) -> None:
    script = """
        from queues.operations.monitor import reader

        answer = [problem.advice for problem in reader.read().problems if problem.kind == "nodes"]
    """
    assert project.answer(script) == ["Start one: a Celery worker of this project, or fivewire runwire."]


def test_a_celery_worker_runs_what_was_sent_in_a_transaction_and_the_upkeep(project: Project) -> None:
    for command in re.findall(r"^python manage.py (queue create .*)$", PAGE.read_text(), re.MULTILINE):
        project.manage(*command.split())
    project.answer(DELAY)
    project.answer(NEGLECT)
    project.run("-W", "ignore", "-c", "import django; django.setup(); import shop.example")
    worker = Process(
        sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop.hurry", "worker", "-B", "-c", "1", "-l", "info",
        cwd=project.directory, environment=project.environment(), bare=True, merged=True,
    )  # fmt: skip
    done = ["shipped order 7", *(rf"Task queues\.{name}\S+ succeeded" for name in UPKEEP)]
    try:
        wait_until(lambda: all(re.search(text, worker.log) for text in done), lambda: worker.log)
    finally:
        worker.stop()
    assert project.answer(UPKEPT) == dict.fromkeys(UPKEEP, True), worker.log
    assert "order never" not in worker.log
