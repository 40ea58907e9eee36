"""Periodic jobs in the operators' pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.formats.times import local, relative
from queues.models import Message, PeriodicJob
from queues.operations import queues as queue_operations
from queues.operations.periodic import add_periodic, run_now
from tests.queues.store import make_queue

pytestmark = pytest.mark.django_db

NIGHTLY = "0 3 * * *"
LIST = "admin:queues_periodicjob_changelist"


def text_of(response: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def page(job: PeriodicJob) -> str:
    return reverse("admin:queues_periodicjob_change", args=[job.pk])


def act(client: Client, action: str, *jobs: PeriodicJob) -> str:
    data = {"action": action, "_selected_action": [str(job.pk) for job in jobs]}
    return text_of(client.post(reverse(LIST), data, follow=True))


def fields(**changes: object) -> dict[str, object]:
    return {
        "name": "nightly", "cron": NIGHTLY, "timezone": "Europe/Berlin", "enabled": "on", "payload": '{"a": 1}',
        "priority": "0", **changes,
    }  # fmt: skip


def test_a_periodic_job_is_made_and_planned(admin_client: Client) -> None:
    queue = make_queue("reports")
    address = reverse("admin:queues_periodicjob_add")
    assert admin_client.get(address).status_code == 200
    assert admin_client.post(address, fields(queue=queue.pk, unique="on", priority="-7")).status_code == 302
    job = PeriodicJob.objects.get()
    assert (job.name, job.queue, job.payload, job.unique, job.priority) == ("nightly", queue, {"a": 1}, True, -7)
    assert job.next_run_at is not None
    shown = text_of(admin_client.get(page(job)))
    assert local(job.next_run_at, "Europe/Berlin") in shown
    assert "At 03:00" in shown
    assert shown.count("03:00 CE") == 6  # the next run, and five ahead


def test_a_changed_schedule_is_planned_anew_and_a_disabled_job_is_not_planned(admin_client: Client) -> None:
    queue = make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports", timezone="Europe/Berlin")
    first = job.next_run_at
    assert admin_client.post(page(job), fields(queue=queue.pk, cron="30 4 * * *")).status_code == 302
    job.refresh_from_db()
    assert job.next_run_at is not None
    assert (job.next_run_at != first, job.next_run_at.minute) == (True, 30)
    disabled = {name: value for name, value in fields(queue=queue.pk).items() if name != "enabled"}
    assert admin_client.post(page(job), disabled).status_code == 302
    [job] = PeriodicJob.objects.all()
    assert (job.enabled, job.next_run_at) == (False, None)
    assert "it is not enabled" in text_of(admin_client.get(page(job)))


def test_saving_without_a_change_changes_nothing(admin_client: Client) -> None:
    queue = make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports", timezone="Europe/Berlin", payload={"a": 1})
    PeriodicJob.objects.update(last_error="it was full", next_run_at=(due := timezone.now() - timedelta(minutes=1)))
    shown = {"initial-payload": '{"a": 1}', "initial-timezone": "Europe/Berlin"}
    assert admin_client.post(page(job), fields(queue=queue.pk, **shown)).status_code == 302
    job.refresh_from_db()
    assert (job.last_error, job.next_run_at) == ("it was full", due)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cron": "0 25 * * *"}, "The hour '25' cannot be read. It is 0 to 23: a value, a range such as 1-5"),
        ({"cron": "0 3 * *"}, "It has 4 fields and must have five: minute, hour"),
        ({"cron": "0 0 30 2 *"}, "It never comes true"),
        ({"timezone": "Europe/Berln"}, "Is Europe/Berlin meant?"),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"payload": "{"}, "Enter a valid JSON"),
        ({"payload": '["\\u0000"]'}, "NUL character"),
        ({"payload": "NaN"}, "cannot be written as JSON"),
        ({"payload": "[" * 100_000}, "nested too deep"),
        ({"max_attempts": "40000"}, "less than or equal to 32767"),
        ({"queue": ""}, "This field is required"),
    ],
)
def test_an_error_is_shown_at_its_field(admin_client: Client, changes: dict[str, str], reason: str) -> None:
    queue = make_queue("reports")
    address = reverse("admin:queues_periodicjob_add")
    response = admin_client.post(address, {**fields(queue=queue.pk), **changes})
    assert response.status_code == 200
    [errors] = response.context["adminform"].form.errors.values()
    assert reason in " ".join(errors)
    assert not PeriodicJob.objects.exists()


def test_a_payload_left_empty_is_null(admin_client: Client) -> None:
    queue = make_queue("reports")
    data = fields(queue=queue.pk, payload="")
    assert admin_client.post(reverse("admin:queues_periodicjob_add"), data).status_code == 302
    assert run_now(PeriodicJob.objects.get())
    assert bytes(Message.objects.get().payload) == b"null"


@pytest.mark.parametrize("name", ["_system", "_subscription/prices"])
def test_queues_of_the_system_are_no_choice(admin_client: Client, name: str) -> None:
    queue = make_queue(name)
    response = admin_client.post(reverse("admin:queues_periodicjob_add"), fields(queue=queue.pk))
    assert list(response.context["adminform"].form.errors) == ["queue"]


@pytest.mark.parametrize("rows", [1, 5])
def test_the_list_takes_as_many_queries_for_many_rows_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
) -> None:
    for n in range(rows):
        make_queue(f"queue {n}")
        run_now(add_periodic(f"job {n}", NIGHTLY, f"queue {n}"))
    PeriodicJob.objects.update(last_run_at=timezone.now() - timedelta(minutes=3, seconds=9))
    with django_assert_num_queries(2 + 3):  # session and user; the number, the page, where the last jobs are
        response = admin_client.get(reverse(LIST))
    assert text_of(response).count("3 minutes ago") == rows


def test_the_list_shows_the_next_run_by_the_jobs_own_clock_and_how_far_it_is(admin_client: Client) -> None:
    make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports", timezone="Asia/Tokyo")
    soon = timezone.now() + timedelta(minutes=4, seconds=30)
    PeriodicJob.objects.update(next_run_at=soon)
    shown = text_of(admin_client.get(reverse(LIST)))
    assert f"{local(soon, 'Asia/Tokyo')}, in 4 minutes" in shown
    assert "JST" in shown
    PeriodicJob.objects.update(enabled=False)
    assert "JST" not in text_of(admin_client.get(reverse(LIST)))
    PeriodicJob.objects.filter(pk=job.pk).update(enabled=True, next_run_at=None)
    assert "not planned" in text_of(admin_client.get(reverse(LIST)))


def test_the_last_run_leads_to_its_message_as_long_as_there_is_one(admin_client: Client) -> None:
    make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports")
    first = run_now(job)
    assert first is not None
    Message.objects.update(id=first + 1, origin_id=first)  # it went to the tail
    link = f'href="{reverse("admin:queues_message_change", args=[first + 1])}"'
    assert link in admin_client.get(reverse(LIST)).content.decode()
    assert link in admin_client.get(page(job)).content.decode()
    Message.objects.all().delete()
    for address in (reverse(LIST), page(job)):
        shown = admin_client.get(address)
        assert "queues/message/" not in shown.content.decode().partition('<div id="content"')[2]
        assert re.search(r"UTC, (now|\d+ seconds? ago)", text_of(shown))


def test_run_now_publishes_without_touching_the_schedule(admin_client: Client) -> None:
    make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports")
    planned = job.next_run_at
    shown = act(admin_client, "run_now", job)
    message = Message.objects.get()
    assert f"Published nightly as message {message.pk}." in shown
    job.refresh_from_db()
    assert (job.next_run_at, job.last_message_id) == (planned, message.pk)


def test_run_now_tells_what_prevents_it_and_runs_the_others(admin_client: Client) -> None:
    make_queue("reports"), make_queue("gone"), make_queue("small", max_length=1)
    jobs = [add_periodic(name, NIGHTLY, name) for name in ("gone", "reports", "small")]
    queue_operations.delete_queue("gone")
    run_now(jobs[2])
    shown = act(admin_client, "run_now", *jobs)
    assert "Could not run gone: Its queue was deleted; choose another one." in shown
    assert "Could not run small: The queue is full" in shown
    assert sorted(Message.objects.values_list("queue__name", flat=True)) == ["reports", "small"]


def test_jobs_are_enabled_and_disabled_from_the_list(admin_client: Client) -> None:
    make_queue("reports")
    jobs = [add_periodic(f"job {n}", NIGHTLY, "reports") for n in range(2)]
    assert "Disabled job 0." in act(admin_client, "disable", *jobs)
    assert list(PeriodicJob.objects.values_list("enabled", "next_run_at")) == [(False, None)] * 2
    assert "Enabled job 0." in act(admin_client, "enable", jobs[0])
    assert [job.next_run_at is not None for job in PeriodicJob.objects.all()] == [True, False]
    PeriodicJob.objects.filter(name="job 1").update(cron="nonsense")
    assert "cannot be planned" in act(admin_client, "enable", jobs[1])


def test_a_deleted_queue_and_an_unreadable_schedule_show_on_every_page(admin_client: Client) -> None:
    make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports")
    queue_operations.delete_queue("reports")
    PeriodicJob.objects.update(cron="nonsense", timezone="Nowhere", last_run_at=timezone.now(), last_error="so it is")
    for address in (reverse(LIST), page(job)):
        shown = text_of(admin_client.get(address))
        assert "so it is" in shown
    assert "deleted" in text_of(admin_client.get(reverse(LIST)))
    assert "It has 1 field " in text_of(admin_client.get(page(job)))


@pytest.mark.parametrize("permission", ["view", "change"])
def test_actions_need_change_permission(client: Client, permission: str) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    client.force_login(user)
    assert client.get(reverse(LIST)).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename=f"{permission}_periodicjob"))
    make_queue("reports")
    job = add_periodic("nightly", NIGHTLY, "reports")
    assert client.get(reverse(LIST)).status_code == 200
    assert client.get(page(job)).status_code == 200
    act(client, "run_now", job), act(client, "disable", job)
    job.refresh_from_db()
    assert (Message.objects.exists(), job.enabled) == ((True, False) if permission == "change" else (False, True))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "now"), (-0.4, "now"), (1, "in 1 second"), (59.9, "in 59 seconds"), (60, "in 1 minute"),
        (240, "in 4 minutes"), (-7200, "2 hours ago"), (86_400 * 2000, "in 2,000 days"), (-3599, "59 minutes ago"),
    ],
)  # fmt: skip
def test_how_far_away_a_moment_is(seconds: float, words: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert relative(now + timedelta(seconds=seconds), now) == words
