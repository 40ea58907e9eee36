"""``manage.py messages``: find messages and operate on all that a search finds, from the shell."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from typing import Any

from django.core.management.base import CommandError, CommandParser

from queues.management.shell import REFUSED, SubcommandCommand, listed, moment, number, progress, seconds
from queues.models import BulkAction, BulkOperation, BulkState, Message
from queues.operations import bulk
from queues.operations.audit_log import shell_operator
from queues.operations.bulk import NEED_TARGET, BulkPlan
from queues.operations.keys import PROTOCOLS
from queues.operations.search import FINISHED, STATES, Criteria, Look, Search

#: The verbs of the shell for what is done to messages.
VERBS = {
    "copy": BulkAction.COPY, "move": BulkAction.MOVE, "put-back": BulkAction.PUT_BACK, "delay": BulkAction.DELAY,
    "deliver-now": BulkAction.DELIVER_NOW, "delete": BulkAction.DELETE,
}  # fmt: skip
#: Operations that `operations` lists.
MAX_LISTED = 50


class Command(SubcommandCommand):
    """Find messages, and operate on them in bulk."""

    help = (
        "Messages: find them, and copy, move, put back, delay, deliver now or delete all that are found. "
        "Exit status: 0 done, 1 refused, failed or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="|".join(("find", *VERBS, "operations", "cancel")))
        find = do.add_parser("find", help="show messages that fit; all that is given has to fit")
        _add_criteria(find)
        find.add_argument("--limit", type=number(1), default=50, metavar="N", help="default: %(default)s")
        find.add_argument("--after", default="", metavar="CURSOR", help="continue an earlier search")
        for verb, action in VERBS.items():
            one = do.add_parser(verb, help=str(action.label))
            one.set_defaults(do="operate", verb=verb)
            _add_criteria(one)
            if action in NEED_TARGET:
                one.add_argument("--to", required=True, metavar="QUEUE", help="the queue to which they go")
            if action == BulkAction.DELAY:
                one.add_argument("--for", dest="delay", type=seconds, required=True, metavar="SECONDS", help="delay")
            one.add_argument("--most", type=number(1), default=0, metavar="N", help="the first N messages only")
            one.add_argument("--yes", action="store_true", help="do not ask")
        operations = do.add_parser("operations", help="the newest bulk operations")
        cancel = do.add_parser("cancel", help="end a bulk operation; changes made so far stay")
        cancel.add_argument("id", type=number(1), metavar="ID")
        for parsed in (find, operations):
            parsed.add_argument("--json", action="store_true", help="print JSON")

    def do_find(self, options: dict[str, Any]) -> None:
        search = Search(_criteria(options))
        look = search.find(options["after"], options["limit"])
        rows = _archived(look) if search.is_archive else _live(look.ids)
        if options["json"]:
            self.say_json({"messages": rows, "looked": look.looked, "after": look.cursor or None})
            return
        if rows:
            self.say(listed(rows))
        further = f"; --after {look.cursor} goes on" if look.cursor else ", which is all"
        self.stderr.write(f"Looked at {look.looked:,} messages{further}.")

    def do_operate(self, options: dict[str, Any]) -> None:
        """One of VERBS."""
        action = VERBS[options["verb"]]
        plan = BulkPlan(
            action=action, criteria=_criteria(options), target=options.get("to", ""), delay=options.get("delay")
        )
        found = bulk.preview(plan)
        count = f"{'' if found.complete else 'at least '}{found.count:,}"
        self.ask(f"{action.label.capitalize()}: {count} messages ({plan.criteria})?", options["yes"])
        operation = bulk.start(plan, shell_operator(), found.count if found.complete else None)
        with progress(self.stderr, "done") as show:
            while operation.state == BulkState.RUNNING:
                more = bulk.step(operation.pk)
                operation.refresh_from_db()
                show(operation.done)
                if not more and operation.state == BulkState.RUNNING:  # a node is at it
                    time.sleep(bulk.BUSY)
        text = f"{operation.done:,} done, {operation.skipped:,} left alone"
        if operation.state != BulkState.DONE:
            raise CommandError(f"{operation.state}: {operation.error or 'by an operator'} ({text})", returncode=REFUSED)
        self.say(text)

    def do_operations(self, options: dict[str, Any]) -> None:
        rows = [
            {
                "id": one.pk, "action": one.action, "what": bulk.described(one), "by": one.by, "state": one.state,
                "done": one.done, "skipped": one.skipped, "created_at": one.created_at, "ended_at": one.ended_at,
            }
            for one in BulkOperation.objects.all()[:MAX_LISTED]
        ]  # fmt: skip
        self.say_list(options["json"], rows, "There are no bulk operations.")

    def do_cancel(self, options: dict[str, Any]) -> None:
        if not bulk.cancel(options["id"], shell_operator()):
            raise CommandError(f"No operation {options['id']} is running.", returncode=REFUSED)
        self.say(f"cancelled {options['id']}")


def _add_criteria(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue", default="", metavar="NAME")
    parser.add_argument("--state", default="", choices=[*STATES, FINISHED], help="finished: those in the archive")
    parser.add_argument("--since", type=moment, metavar="TIME", help="ISO 8601, UTC unless it says another zone")
    parser.add_argument("--until", type=moment, metavar="TIME")
    parser.add_argument("--key", default="", metavar="KEY")
    parser.add_argument("--header", default="", metavar="NAME")
    parser.add_argument("--value", default="", metavar="TEXT", help="of the header")
    parser.add_argument("--producer", default="", metavar="APIKEY", help="the name of the API key")
    parser.add_argument("--protocol", default="", choices=sorted({*PROTOCOLS, "celery"} - {"http"}))
    parser.add_argument("--text", default="", metavar="TEXT", help="in the first 64 KiB of the body")
    parser.add_argument("--reason", default="", metavar="TEXT", help="of a dead letter; numbers and ids may differ")
    parser.add_argument("--id", dest="ids", type=int, action="append", default=[], metavar="ID", help="may be repeated")


def _criteria(options: dict[str, Any]) -> Criteria:
    given = {field.name: options[field.name] for field in fields(Criteria) if options.get(field.name)}
    return Criteria(**given | {"ids": tuple(options["ids"])})


def _live(ids: list[int]) -> list[dict[str, Any]]:
    rows = Message.objects.select_related("queue").defer("payload").in_bulk(ids)
    return [
        {
            "id": row.origin_id or row.pk, "queue": row.queue.name, "state": row.get_state_display(),
            "attempts": row.attempts, "published_at": row.published_at, "key": row.key,
        }
        for row in (rows[id] for id in ids if id in rows)
    ]  # fmt: skip


def _archived(look: Look) -> list[dict[str, Any]]:
    return [
        {
            "id": row.pk, "queue": row.queue_id, "outcome": row.get_outcome_display(), "attempts": row.attempts,
            "published_at": row.published_at, "finished_at": row.finished_at, "key": row.key,
        }
        for row in look.archived().defer("payload", "result").order_by("-finished_at", "-id")
    ]  # fmt: skip
