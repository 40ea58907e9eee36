"""What a stranger's project does with the broker beside its admin: every command, the API, the tasks of the upkeep.

Each function raises when something does not work. To be imported when Django is set up.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management import call_command, get_commands
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from queues import api, tasks
from queues.models import ApiKey, EtlSchedule, Message, PeriodicJob, Queue
from queues.operations.monitor import reader
from queues.store.samples import take_sample, thin_samples

#: The first of all ids that the database gives: with a thousand's separator they are others.
FIRST_ID = 12_345
#: Every command with what it is asked; those that serve until they are stopped have tests of their own.
COMMANDS: dict[str, list[str]] = {
    "queue": [
        "create orders --max-length 5000 --ttl 86400", "create letters", "publish orders hello --ttl 3600 --json",
        "publish orders later --delay 3600", "publish orders again", "list", "list --json", "show orders",
        "show orders --json", "peek orders --json", "peek orders --state delayed",
        "move orders letters --limit 1 --yes", "pause orders", "resume orders", "create empty", "delete empty",
        "purge letters --yes", "create celery --retention none",
    ],
    "route": ["add topic:prices queue:orders", "list", "list --json", "remove topic:prices queue:orders"],
    "apikey": [
        "create desk --publish orders --consume orders", "list", "list --json", "rotate desk --json", "revoke desk",
    ],
    "periodic": [
        "add report *_*_*_*_* orders", "list", "list --json", "disable report", "enable report", "run report",
        "add gone 0_0_*_*_* orders", "remove gone",
    ],
    "messages": [
        "find --queue orders --json", "find --queue orders --since 2020-01-01 --until 2100-01-01T00:00:00+02:00",
        "find --state finished --since 2020-01-01T00:00", "delay --queue orders --state ready --for 60 --yes",
        "operations", "operations --json",
    ],
    "audit": ["show", "show --json", "anchor", "verify", "verify --json", "key"],
    "etl": ["list", "list --json"],
    "connections": ["", "--json"],
    "doctor": ["--ignore disk", "--json --ignore disk"],
    "definitions": ["export", "export FILE", "import FILE --dry-run", "import FILE --json"],
    "subscription": ["list", "list --json"],
    "top": ["--count 1 --json", "--count 1"],
}  # fmt: skip
SERVING = {"runtasks"}


def begin_ids_above_a_thousand() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select format('%I.%I', schemaname, sequencename) from pg_sequences where sequencename like 'queues_%'"
            " and sequencename <> 'queues_message_id' and data_type <> 'smallint'::regtype"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"select setval('{name}', {FIRST_ID})")


def use_every_command(directory: Path) -> list[str]:
    """Returns what fails, and commands that nothing is asked of."""
    own = {name for name, app in get_commands().items() if app == "queues"}
    failed = [f"{name} is not tried" for name in own ^ (COMMANDS.keys() | SERVING)]
    for name, asked in COMMANDS.items():
        for line in asked:
            words = [word.replace("_", " ") if name == "periodic" else word for word in line.split()]
            words = [str(directory / "definitions.json") if word == "FILE" else word for word in words]
            out = io.StringIO()
            try:
                call_command(name, *words, stdout=out, stderr=io.StringIO())
                if "--json" in words:
                    [json.loads(text) for text in _documents(out.getvalue())]
            except SystemExit as ended:
                if name != "doctor":  # which has found something to change in this test's server
                    failed.append(f"{name} {line}: status {ended.code}")
            except Exception as error:
                failed.append(f"{name} {line}: {error!r}")
    return failed


def _documents(text: str) -> Iterator[str]:
    """A document, or one a line."""
    try:
        json.loads(text)
    except ValueError:
        yield from text.splitlines()
    else:
        yield text


def use_the_api() -> None:
    publish = api.publish
    assert publish("orders", b'{"n": 1}', headers={"n": 1234567}, delay=timedelta(seconds=1), ttl=3600, key="k")
    assert publish("topic:nobody", b"x") is None
    with transaction.atomic():
        ids = api.publish_many("queue:orders", [b"1", api.Outgoing(body=b"2", priority=5, max_attempts=3)])
    assert len(set(ids)) == 2


def set_clocks_back() -> None:
    """Both hours that clocks show twice in autumn are kept apart."""
    moments = [datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    jobs = PeriodicJob.objects.bulk_create(
        PeriodicJob(name=f"at {at}", cron="0 0 1 1 *", enabled=False, next_run_at=at) for at in moments
    )
    found = PeriodicJob.objects.filter(pk__in=[job.pk for job in jobs]).order_by("next_run_at")
    # Python calls such a time equal to none of another zone.
    assert [job.next_run_at.timestamp() for job in found] == [at.timestamp() for at in moments]


def keep_it_up() -> None:
    """What the beat does, with something to do: a periodic job that is due runs, and is planned in the future."""
    due = datetime.now(UTC) - timedelta(minutes=1)
    PeriodicJob.objects.filter(name="nightly").update(next_run_at=due)
    EtlSchedule.objects.filter(name="hourly").update(next_run_at=due)
    for name in tasks.__all__:
        if name not in ("run_etl", "cancel_revoked"):
            getattr(tasks, name)()
    job = PeriodicJob.objects.get(name="nightly")
    assert not job.last_error, job.last_error
    assert job.next_run_at > datetime.now(UTC) >= job.last_run_at > due, (job.next_run_at, job.last_run_at)
    assert Message.objects.filter(queue=job.queue, pk=job.last_message_id or 0).exists()
    assert EtlSchedule.objects.get(name="hourly").next_run_at > datetime.now(UTC)
    take_sample()
    thin_samples()
    reader.forget()


def fill_in_forms(user: Any) -> list[str]:
    """Make and change things on the admin's forms; returns what is refused."""
    client, queue = Client(), Queue.objects.get(name="orders")
    client.force_login(user)
    job = {"name": "by hand", "enabled": "on", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "queue": queue.pk,
           "payload": "{}", "priority": "0"}  # fmt: skip
    faults = [*_post(client, "periodicjob_add", (), job)]
    made = PeriodicJob.objects.filter(name="by hand").first()
    if made is not None:
        faults += _post(client, "periodicjob_change", (made.pk,), job | {"cron": "30 3 * * *"})
        faults += _post(client, "periodicjob_changelist", (), {"action": "run_now", "_selected_action": made.pk})
    key = ApiKey.objects.exclude(revoked_at__isnull=False).first()
    assert key is not None
    faults += _post(client, "apikey_rotate", (key.pk,), {"grace": "60"}, status=200)
    return faults


def _post(client: Client, page: str, of: tuple[Any, ...], form: dict[str, Any], status: int = 302) -> Iterator[str]:
    try:
        answer = client.post(reverse(f"admin:queues_{page}", args=of).removeprefix("/broker"), form)
    except Exception as error:
        yield f"POST {page}: {error!r}"
        return
    if answer.status_code != status:
        context = answer.context or {}
        errors = context["adminform"].form.errors if "adminform" in context else answer.content[-2000:].decode()
        yield f"POST {page}: {answer.status_code} {errors}"


def registrations() -> dict[str, str]:
    """Which class shows which model that is not ours."""
    from django.contrib import admin

    reverse("admin:index")
    found = ((model._meta.label, type(shown)) for model, shown in admin.site._registry.items())
    return {label: f"{one.__module__}.{one.__name__}" for label, one in found if not label.startswith("queues.")}
