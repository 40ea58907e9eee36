"""`manage.py periodic`."""

from __future__ import annotations

import json

import pytest

from queues.models import Message, PeriodicJob
from tests.queues.shell import Shell
from tests.queues.store import make_queue

pytestmark = pytest.mark.django_db


def test_a_periodic_job_is_added_listed_and_removed(shell: Shell) -> None:
    make_queue("reports")
    added = shell(
        "periodic", "add", "nightly", "0 3 * * *", "reports", "--timezone", "Europe/Berlin", "--payload", '{"a": [1]}',
        "--priority", "-5", "--max-attempts", "2", "--unique",
    )  # fmt: skip
    assert (added.status, added.err) == (0, "")
    assert "added nightly, next run" in added.out
    [shown] = shell("periodic", "list", "--json").json
    assert shown["next_run_at"] is not None
    del shown["next_run_at"], shown["created_at"]
    assert shown == {
        "name": "nightly", "queue": "reports", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "payload": {"a": [1]},
        "enabled": True, "priority": -5, "max_attempts": 2, "unique": True, "last_run_at": None,
        "last_message_id": None, "last_error": "",
    }  # fmt: skip
    [heads, line] = shell("periodic", "list").out.splitlines()
    assert heads.split()[0] == "NAME"
    assert "03:00 CE" in line
    assert shell("periodic", "remove", "nightly").status == 0
    assert shell("periodic", "list", "--json").json == []
    assert "no periodic jobs" in shell("periodic", "list").err


def test_a_job_without_options_runs_in_the_sites_time_zone_with_an_empty_object(shell: Shell) -> None:
    make_queue("reports")
    assert shell("periodic", "add", "nightly", "0 3 * * *", "reports").status == 0
    job = PeriodicJob.objects.get()
    assert (job.timezone, job.payload, job.priority, job.max_attempts, job.unique) == ("UTC", {}, 0, None, False)


def test_run_publishes_once(shell: Shell) -> None:
    make_queue("reports")
    shell("periodic", "add", "nightly", "0 3 * * *", "reports", "--payload", "[1, 2]")
    ran = shell("periodic", "run", "nightly")
    message = Message.objects.get()
    assert (ran.status, ran.out) == (0, f"published message {message.pk}\n")
    assert json.loads(bytes(message.payload)) == [1, 2]


def test_disabled_jobs_have_no_next_run_until_they_are_enabled(shell: Shell) -> None:
    make_queue("reports")
    assert "not enabled" in shell("periodic", "add", "nightly", "0 3 * * *", "reports", "--disabled").out
    assert "disabled" in shell("periodic", "list").out
    assert "next run" in shell("periodic", "enable", "nightly").out
    assert shell("periodic", "list", "--json").json[0]["next_run_at"] is not None
    assert shell("periodic", "disable", "nightly").out == "nightly is disabled\n"
    assert shell("periodic", "list", "--json").json[0]["next_run_at"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("add", "nightly", "0 3 * * *", "reports"), 1, "already"),
        (("add", "b", "0 25 * * *", "reports"), 1, "The hour '25' cannot be read"),
        (("add", "b", "0 3 * * *", "nowhere"), 1, "no such queue: 'nowhere'"),
        (("add", "b", "0 3 * * *", "reports", "--timezone", "Europe/Berln"), 1, "Is Europe/Berlin meant?"),
        (("add", "b", "0 3 * * *", "reports", "--priority", "101"), 1, "priority"),
        (("add", "b", "0 3 * * *", "reports", "--payload", "{"), 2, "'{' is not JSON"),
        (("add", "b", "0 3 * * *", "reports", "--payload", "[" * 100_000), 2, "is not JSON"),
        (("add", "b", "0 3 * * *", "reports", "--payload", "NaN"), 1, "cannot be written as JSON"),
        (("add", "b", "0 3 * * *", "reports", "--max-attempts", "-1"), 2, "0 or more"),
        (("add", "b", "0", "3", "*", "*", "*", "reports"), 2, "unrecognized arguments"),
        (("add", "b"), 2, "SCHEDULE"),
        (("remove", "b"), 1, "no periodic job 'b'"),
        (("run", "b"), 1, "no periodic job 'b'"),
        (("enable", "b"), 1, "no periodic job 'b'"),
        (("disable", "b"), 1, "no periodic job 'b'"),
        ((), 2, "list|add|remove|run|enable|disable"),
    ],
)
def test_refusals_have_a_reason_and_a_status(
    shell: Shell, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    make_queue("reports")
    assert shell("periodic", "add", "nightly", "0 3 * * *", "reports").status == 0
    outcome = shell("periodic", *arguments)
    assert outcome.status == status
    assert reason in outcome.err
    assert PeriodicJob.objects.count() == 1


def test_a_run_that_cannot_be_published_says_why(shell: Shell) -> None:
    make_queue("reports", max_length=1)
    shell("periodic", "add", "nightly", "0 3 * * *", "reports")
    assert shell("periodic", "run", "nightly").status == 0
    refused = shell("periodic", "run", "nightly")
    assert (refused.status, "full" in refused.err) == (1, True)


def test_a_deleted_queue_shows_in_the_list(shell: Shell) -> None:
    make_queue("reports")
    shell("periodic", "add", "nightly", "0 3 * * *", "reports")
    assert shell("queue", "delete", "reports", "--yes").status == 0
    assert "deleted" in shell("periodic", "list").out
    assert shell("periodic", "list", "--json").json[0]["queue"] is None


def test_help_shows_a_stranger_an_example(shell: Shell) -> None:
    assert 'add nightly "0 3 * * MON-SAT" reports' in " ".join(shell("periodic", "add", "--help").out.split())
