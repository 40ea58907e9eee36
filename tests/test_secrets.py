"""Planted secrets are shown nowhere: not in logs, pages, errors, the output of commands or the list of processes."""

from __future__ import annotations

import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, RequestFactory
from django.urls import reverse
from django.views.debug import ExceptionReporter

from brokersite.environment import Environment
from brokersite.rigs.process import free_ports
from queues.database.parameters import connection_parameters
from queues.engine.access import key_digest
from queues.operations.keys import create_key
from tests.process import Process
from tests.queues.one_of_each import one_of_each
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Blip, Broker, Database, create_database, drop_databases
from wire.blipmq import codec

pytestmark = pytest.mark.timeout(600)

KEY = "planted-api-key-9f2c7b1e5d"
#: Settings that are secrets, with values that stand nowhere else.
SETTINGS = {
    "SECRET_KEY": "planted-django-secret-4b7f1c9a2e6d8035",
    "PEERBUS_HMAC_SECRET": "planted-hmac-secret-71c0e5a94db8f326",
    "PEERBUS_TOKEN": "planted-peerbus-token-c83e1f60", "BROKER_HYDRA_SECRET": "planted-hydra-secret-5ad90b72",
    "BROKER_HYDRA_IRC_PASSWORD": "planted-irc-password-e4176f2d",
    "BROKER_KEY_PEPPERS": "planted-django-secret-4b7f1c9a2e6d8035,planted-second-pepper-90be23",
}  # fmt: skip
GUESS = "planted-guess-of-a-password-11aa"
HYDRA = "runhydra --listen 127.0.0.1:0 --found --name alone --recv off --send off"
COMMANDS = (
    "doctor --json", "check --deploy --database default", "apikey list --json", "definitions export",
    "connections --json", "audit show --json", "help runwire", "diffsettings",
)  # fmt: skip


def planted(database_password: str = "") -> dict[str, str]:
    """Every planted secret by name."""
    peppers = SETTINGS["BROKER_KEY_PEPPERS"].split(",")
    given = SETTINGS | {"BROKER_KEY_PEPPERS": peppers[1], "the API key": KEY, "a guessed password": GUESS}
    return given | ({"the database's password": database_password} if database_password else {})


def shown(secrets: dict[str, str], texts: dict[str, str]) -> list[tuple[str, str]]:
    """Which secret stands in which text."""
    return [
        (name, where) for name, secret in secrets.items() for where, text in texts.items()
        if secret in text or urllib.parse.quote(secret, safe="") in text
    ]  # fmt: skip


@pytest.fixture(scope="module")
def store(migrated_database: dict[str, Any]) -> Iterator[Database]:
    server = connection_parameters()
    name = f"{migrated_database['dbname']}_planted"
    database = Database(create_database(server, name, migrated_database["dbname"]))
    database.execute(
        "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
        " values ('desk', %s, '', '{}', '{*}', '{*}', '{}')",
        key_digest(KEY, SETTINGS["SECRET_KEY"]),
    )
    yield database
    database.close()
    drop_databases(server, name)


def ask(url: str, form: dict[str, str] | None = None, **headers: str) -> str:
    """What a server answers, with its headers; nothing while it does not listen."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.headers}{error.read().decode()}"
    except OSError:
        return ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_is_in_logs_answers_or_the_list_of_processes(store: Database, log_format: str) -> None:
    environment = SETTINGS | {"BROKER_LOG_FORMAT": log_format}
    blipmq, http = free_ports(2)
    answers: dict[str, str] = {}
    with ExitStack() as stack:
        listeners = stack.enter_context(
            Broker(
                store, "--processes", "2", "--overhop", "off", "--sspq", "off", "--blipmq", f"127.0.0.1:{blipmq}",
                "--status", "127.0.0.1:0", **environment,
            )
        )  # fmt: skip
        daphne = ("-m", "daphne", "-b", "127.0.0.1", "-p", str(http), "brokersite.asgi:application")
        programs = {
            "runwire": listeners,
            "site": Process(sys.executable, *daphne, environment=environment | {"DATABASE_URL": store.url}),
            "runhydra": Process(
                sys.executable, "manage.py", *HYDRA.split(), environment=environment | {"DATABASE_URL": store.url}
            ),
        }
        stack.callback(programs["site"].end)
        stack.callback(programs["runhydra"].end)
        site, status = f"http://127.0.0.1:{http}", "http://{}:{}".format(*listeners.addresses["status"])
        wait_until(lambda: ask(f"{site}/healthz"), lambda: programs["site"].log)
        with Blip(("127.0.0.1", blipmq), key=KEY) as client:
            subscription = client.subscribe(b"orders")
            client.publish(b"orders", b"x")
            assert client.consume(subscription, 1) == [b"x"]
            client.send(codec.encode_auth(9, KEY), b"\xff" * 64)
            client.rest()
        with Blip(("127.0.0.1", blipmq), key="") as stranger:
            stranger.send(codec.encode_hello(1), codec.encode_auth(2, GUESS))
            stranger.rest()
        login = {"username": "root", "password": GUESS}
        for name, url, form, headers in [
            ("log in", f"{site}/admin/login/", login, {}), ("nothing", f"{site}/{KEY[:4]}", None, {}),
            ("host", f"{site}/admin/", None, {"Host": "elsewhere.example"}), ("ready", f"{site}/readyz", None, {}),
            ("metrics", f"{site}/metrics?queues=*", None, {}), ("status", f"{status}/metrics", None, {}),
        ]:  # fmt: skip
            answers[name] = ask(url, form, **headers)
            assert answers[name], name
        store.rows("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                   " and pid <> pg_backend_pid()")  # fmt: skip
        wait_until(lambda: "the database is back" in listeners.log, lambda: listeners.log)
        answers["ready again"] = ask(f"{status}/readyz")
        lines = {
            f"{name} {one.pid}": " ".join(one.cmdline())
            for name, program in programs.items()
            for one in (psutil.Process(program.process.pid), *program.family())
        }
        assert len(lines) >= 5
    logs = {name: "\n".join([*program.lines, program.log]) for name, program in programs.items()}
    secrets = planted(str(store.parameters.get("password") or ""))
    assert shown(secrets, answers | lines | logs) == []
    assert "manage.py" in str(lines)
    assert all(logs.values())


def test_no_secret_is_in_what_commands_print(store: Database) -> None:
    environment = SETTINGS | {"DATABASE_URL": store.url}
    with ExitStack() as stack:
        running = {
            command: Process(sys.executable, "manage.py", *command.split(), environment=environment)
            for command in COMMANDS
        }
        for process in running.values():
            stack.callback(process.end)
        ended = {command: process.finish() for command, process in running.items()}
    texts = {command: "\n".join([*lines, log]) for command, (_, lines, log) in ended.items()}
    assert all(texts.values())
    secrets = planted(str(store.parameters.get("password") or ""))
    texts.pop("diffsettings")  # Django's own, which shows all settings
    assert shown(secrets, texts) == []


@pytest.mark.parametrize(
    "environ",
    [
        {"DATABASE_URL": f"postgresql://me:{GUESS}@localhost"},
        {"DATABASE_URL": f"postgresql:///?password={GUESS}"},
        {"DATABASE_URL": f"mysql://me:{GUESS}@localhost/name"},
        {"DATABASE_URL": f"postgresql://localhost/name?port=none&password={GUESS}&x=1"},
        {"BROKER_KEY_PEPPERS": f"short,{GUESS}"},
        {"PEERBUS_HMAC_SECRET": GUESS * 1000},
        {"BROKER_HYDRA_SECRT": GUESS},
        {"BROKER_HYDRA_IRC_PASWORD": GUESS},
        {"SECRET_KEY": GUESS * 100},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_a_refused_setting_does_not_show_its_secret(environ: dict[str, str]) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        Environment.read({"SECRET_KEY": "x" * 50, **environ})
    assert next(iter(environ)) in str(caught.value)
    assert GUESS not in str(caught.value)


def error_page() -> str:
    """A debug page, whose frames have no secret of this test's."""
    try:
        raise LookupError("an error page")
    except LookupError:
        report = ExceptionReporter(RequestFactory().get("/"), *sys.exc_info())
        return report.get_traceback_html() + report.get_traceback_text()


@pytest.mark.django_db
def test_no_secret_is_on_a_page_of_the_admin_or_an_error_page(settings: Any) -> None:
    for name, value in SETTINGS.items():
        setattr(settings, name, value.split(",") if name == "BROKER_KEY_PEPPERS" else value)
    create_key("desk", KEY)
    one_of_each()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    texts = {"front": client.get("/admin/").content.decode()}
    for model in admin.site._registry:
        label = f"{model._meta.app_label}_{model._meta.model_name}"
        pages: dict[str, tuple[Any, ...]] = {"changelist": ()}
        if (row := model._default_manager.first()) is not None:
            pages |= {"change": (row.pk,), "history": (row.pk,)}
        for page, args in pages.items():
            texts[f"{label}_{page}"] = client.get(reverse(f"admin:{label}_{page}", args=args), follow=True).text
    assert "desk" in texts["queues_apikey_changelist"]
    settings.DEBUG, settings.DATABASE_URL = True, f"postgresql://me:{GUESS}@db.example/name"
    texts["error"] = error_page()
    assert "PEERBUS_HMAC_SECRET" in texts["error"]
    password = str(connection_parameters().get("password") or "")
    assert shown(planted(password), texts) == []
