"""Tests of a project of one's own: Django's test runner and both of its test cases leave nothing of the broker's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from brokersite.environment import CHECKOUT
from queues.database.parameters import connection_parameters
from tests.queues.test_standalone import Project
from tests.wire.broker import create_database, drop_databases

#: Each block of the page that begins with a file's name is that file.
PAGE = CHECKOUT / "docs" / "testing.md"
BLOCK = re.compile(r"^```python\n# ([\w/]+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: As `startproject` and docs/django.md make a project, with tests of messages and tasks in both test cases.
TESTS = """
    from django.db import connections
    from django.test import TestCase, TransactionTestCase
    from queues.api import publish
    from queues.models import Message, Queue
    from shop.celery import ship

    class Shared:
        def test_one(self):
            self.publish()

        def test_two(self):
            self.publish()

        def publish(self):
            assert Message.objects.count() == 0
            queue = Queue.objects.create(name="orders")
            publish("orders", b"1")
            ship.delay(7)
            assert Message.objects.filter(queue=queue).count() == 1
            assert Message.objects.filter(queue__name="celery").count() == 1

    class InTransaction(Shared, TestCase):
        pass

    class Committed(Shared, TransactionTestCase):
        pass

    class Restarted(Shared, TransactionTestCase):
        reset_sequences = True
"""
#: Django itself cannot restore what another class has flushed: the ids of content types are others then.
RESTORED = """
    from django.contrib.auth.models import Permission
    from django.test import TransactionTestCase
    from test_shop import Shared

    class Restored(Shared, TransactionTestCase):
        serialized_rollback = True

        def publish(self):
            super().publish()
            assert Permission.objects.filter(codename="view_queue").count() == 1
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, migrated_database: dict[str, Any]) -> Iterator[Project]:
    """The project; its test databases are copies of one that has the tables."""
    name = f"tested_{os.getpid()}"
    parameters = connection_parameters()
    made = Project(tmp_path_factory.mktemp("tested"), create_database(parameters, name), celery=True)
    with (made.package / "settings.py").open("a") as settings:
        settings.write(f'DATABASES["default"]["TEST"] = {{"TEMPLATE": {migrated_database["dbname"]!r}}}\n')
    (made.directory / "test_shop.py").write_text(dedent(TESTS))
    (made.directory / "restored.py").write_text(dedent(RESTORED))
    for file, text in BLOCK.findall(PAGE.read_text()):
        (made.directory / file).write_text(text)
    yield made
    drop_databases(parameters, name, *(f"test_{name}{copy}" for copy in ("", "_1", "_2")))


def test_messages_and_tasks_of_djangos_tests_leave_nothing_to_the_next_test_and_no_session(project: Project) -> None:
    assert "Ran 7 tests" in project.manage("test")


def test_djangos_tests_run_in_parallel_processes(project: Project) -> None:
    assert "Ran 6 tests" in project.manage("test", "test_shop", "--parallel", "2")


def test_djangos_tests_restore_what_migrations_made(project: Project) -> None:
    assert "Ran 2 tests" in project.manage("test", "restored.Restored")


def test_the_pages_tests_run_with_pytest(project: Project) -> None:
    options = ("-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir=.", "--ds=shop.settings")
    told = project.run("-m", "pytest", *options, "shop")
    assert "2 passed" in told


@pytest.mark.parametrize(("settings", "answer"), [("eager_settings", "SUCCESS"), ("memory_settings", "None")])
def test_tasks_need_no_broker_with_the_pages_settings(project: Project, settings: str, answer: str) -> None:
    script = f"""
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.{settings}"
        import django
        django.setup()
        from queues.models import Queue
        from shop.celery import ship
        result = ship.delay(7)
        print(getattr(result, "_state", None))
    """
    assert project.run("-c", dedent(script)).splitlines()[-1] == answer
