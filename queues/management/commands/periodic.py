"""``manage.py periodic``: jobs that are published at the times of a cron expression."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from queues.formats.times import local, relative
from queues.management.shell import SubcommandCommand, number
from queues.models import PeriodicJob
from queues.models.cron_schedule import default_timezone
from queues.operations import periodic as operations
from queues.schedules.planning import set_enabled

SHOWN = (
    "name", "cron", "timezone", "payload", "enabled", "priority", "max_attempts", "unique", "next_run_at",
    "last_run_at", "last_message_id", "last_error", "created_at",
)  # fmt: skip


class Command(SubcommandCommand):
    """Add, list, remove, run, enable and disable periodic jobs."""

    help = (
        "Periodic jobs: at the times of a cron expression a job is published to a queue, once, by the first "
        "listener process (runwire) or Celery worker that looks. Runs missed while none was running are made up for "
        "by a single one. Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="list|add|remove|run|enable|disable")
        listing = do.add_parser("list", help="all periodic jobs, with their last and next runs")
        listing.add_argument("--json", action="store_true", help="print a JSON list of objects")
        _add_add(
            do.add_parser(
                "add",
                help="publish a job to a queue at certain times",
                description="Publish a job to a queue at certain times, for example at three every night but Sunday's: "
                'periodic add nightly "0 3 * * MON-SAT" reports --timezone Europe/Berlin '
                """--payload '{"kind": "full"}'""",
            )
        )
        remove = do.add_parser("remove", help="forget a periodic job; jobs already published stay")
        run = do.add_parser("run", help="publish the job once, now; its schedule stays as it is")
        enable = do.add_parser("enable", help="follow the schedule again, from its next time on")
        disable = do.add_parser("disable", help="do not follow the schedule")
        for one in (remove, run, enable, disable):
            one.add_argument("name", metavar="NAME")

    def do_list(self, options: dict[str, Any]) -> None:
        tell = _shown if options["json"] else _line
        values = [tell(job) for job in operations.list_periodic()]
        self.say_list(options["json"], values, "There are no periodic jobs.")

    def do_add(self, options: dict[str, Any]) -> None:
        fields = ("timezone", "payload", "priority", "max_attempts", "unique")
        job = operations.add_periodic(
            options["name"],
            options["cron"],
            options["queue"],
            enabled=not options["disabled"],
            **{field: options[field] for field in fields},
        )
        when = f"next run {_when(job)}" if job.enabled else "not enabled"
        self.say(f"added {job.name}, {when}")

    def do_remove(self, options: dict[str, Any]) -> None:
        operations.remove_periodic(options["name"])
        self.say(f"removed {options['name']}")

    def do_run(self, options: dict[str, Any]) -> None:
        self.say(f"published message {operations.run_now(operations.get_periodic(options['name']))}")

    def do_enable(self, options: dict[str, Any]) -> None:
        job = operations.get_periodic(options["name"])
        set_enabled(job, options["do"] == "enable")
        self.say(f"{job.name} is enabled, next run {_when(job)}" if job.enabled else f"{job.name} is disabled")

    do_disable = do_enable


def _add_add(add: CommandParser) -> None:
    add.add_argument("name", metavar="NAME", help="its name; unique")
    add.add_argument(
        "cron", metavar="SCHEDULE",
        help='five fields in quotes, "minute hour day-of-month month day-of-week", such as "*/15 * * * *"',
    )  # fmt: skip
    add.add_argument("queue", metavar="QUEUE", help="the queue for the jobs; it must exist")
    add.add_argument(
        "--timezone", default=default_timezone(), metavar="ZONE",
        help="the time zone of the schedule, such as Europe/Berlin (default: %(default)s)",
    )  # fmt: skip
    add.add_argument("--payload", type=_payload, default={}, metavar="JSON", help="the job's payload (default: {})")
    add.add_argument("--priority", type=int, default=0, metavar="N", help="-100 to 100, higher first (default: 0)")
    add.add_argument(
        "--max-attempts", type=number(0), metavar="N",
        help="deliveries before it is a dead letter; 0: no limit (default: the queue's)",
    )  # fmt: skip
    add.add_argument("--unique", action="store_true", help="skip a run while the job of the last one is unfinished")
    add.add_argument("--disabled", action="store_true", help="add it without following its schedule")


def _payload(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not JSON: {error}") from error


def _shown(job: PeriodicJob) -> dict[str, Any]:
    shown = {field: getattr(job, field) for field in SHOWN}
    return {"name": job.name, "queue": job.queue.name if job.queue else None, **shown}


def _when(job: PeriodicJob) -> str:
    if job.next_run_at is None:
        return "not planned" if job.enabled else "disabled"
    return f"{local(job.next_run_at, job.timezone)}, {relative(job.next_run_at, datetime.now(UTC))}"


def _line(job: PeriodicJob) -> dict[str, Any]:
    """Of the table: times by the schedule's clock."""
    last = local(job.last_run_at, job.timezone) if job.last_run_at else None
    return {
        "name": job.name, "queue": job.queue.name if job.queue else "deleted", "schedule": job.cron,
        "time zone": job.timezone, "next run": _when(job), "last run": last, "problem": job.last_error,
    }  # fmt: skip
