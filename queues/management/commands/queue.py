"""``manage.py queue``: queues and their messages from the shell."""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import models, transaction

from queues.api import publish
from queues.management.shell import REFUSED, USAGE, SubcommandCommand, number, progress, seconds
from queues.models import Message, Queue, Route, State
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.operations.audit_log import record, recorded, shell_operator
from queues.operations.route_traffic import read_dead_letter_traffic
from queues.permissions.addresses import parse_address
from queues.store.counts import QueueCounts, many_counts, queue_counts

STATES = {"ready": State.READY, "delayed": State.DELAYED, "dead": State.DEAD, "leased": State.LEASED}
COUNTS = ("ready", "leased", "delayed", "dead", "published", "settled")


class Command(SubcommandCommand):
    """Manage queues and look at what they hold."""

    help = (
        "Queues and their messages. Times are seconds, fractions allowed. "
        "Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(
            dest="do", required=True, metavar="create|list|show|pause|resume|purge|move|publish|peek|delete"
        )
        _add_create(do.add_parser("create", help="make a queue; --ack-timeout 0 is no limit"))
        listing = do.add_parser("list", help="all queues with their counts, those of subscriptions too")
        show = do.add_parser("show", help="one queue: policy, counts, dead letters that went elsewhere, routes")
        pause = do.add_parser("pause", help="deliver nothing more; the queue still takes messages")
        resume = do.add_parser("resume", help="deliver again")
        purge = do.add_parser("purge", help="remove the messages that wait for delivery")
        _add_state(purge, ("ready", "delayed", "dead"), "several; default: ready and delayed")
        move = do.add_parser("move", help="move messages to the tail of another queue")
        peek = do.add_parser("peek", help="show the oldest messages, leaving them as they are")
        peek.add_argument("--state", choices=STATES, default="ready", help="default: %(default)s")
        peek.add_argument("--limit", type=number(1), default=10, metavar="N", help="default: %(default)s")
        delete = do.add_parser("delete", help="delete an empty queue")
        delete.add_argument("--force", action="store_true", help="delete it with every message it holds")
        for one in (show, pause, resume, purge, peek, delete):
            one.add_argument("name", metavar="NAME")
        move.add_argument("source", metavar="SOURCE")
        move.add_argument("target", metavar="TARGET")
        move.add_argument("--limit", type=number(1), metavar="N", help="at most so many, the oldest")
        _add_state(move, ("ready", "delayed", "dead"), "several; default: ready and delayed")
        _add_publish(do.add_parser("publish", help="publish one message"))
        for one in (listing, show, peek):
            one.add_argument("--json", action="store_true", help="print JSON")
        for one in (purge, move, delete):
            one.add_argument("--yes", action="store_true", help="do not ask")

    def do_create(self, options: dict[str, Any]) -> None:
        policy = {field: options[field] for field in queue_operations.POLICY if options[field] is not None}
        if policy.get("ack_timeout") == 0:
            policy["ack_timeout"] = None
        if target := policy.get("dead_letter_queue"):
            policy["dead_letter_queue"] = message_operations.get_queue(target)
        by, name = shell_operator(), options["name"]
        with transaction.atomic():
            queue_operations.create_queue(name, by=by, **policy)
            record(by, "add", f"queue:{name}")
        self.say(f"created {options['name']}")

    def do_list(self, options: dict[str, Any]) -> None:
        counts = many_counts()
        queues = [(queue, counts.get(queue.pk, QueueCounts())) for queue in Queue.objects.all()]
        values = [{"name": q.name, "kind": q.kind, "paused": q.paused, **_counted(c)} for q, c in queues]
        self.say_list(options["json"], values, "There are no queues.", ("name", *COUNTS, "paused"))

    def do_show(self, options: dict[str, Any]) -> None:
        queue = message_operations.get_queue(options["name"])
        fields = ("name", "uuid", "kind", *queue_operations.POLICY, "created_at")
        values: dict[str, Any] = {field: getattr(queue, field) for field in fields}
        values["dead_letter_queue"] = queue.dead_letter_queue.name if queue.dead_letter_queue else None
        values |= _counted(queue_counts(queue.pk))
        values["dead_letters_moved"] = sum(way.carried for way in read_dead_letter_traffic([queue.pk]).values())
        address = f"queue:{queue.name}"
        values["routes_from"] = list(Route.objects.filter(target=address).values_list("source", flat=True))
        values["routes_to"] = list(Route.objects.filter(source=address).values_list("target", flat=True))
        self.say_values(options["json"], values)

    def do_pause(self, options: dict[str, Any]) -> None:
        name, paused = options["name"], options["do"] == "pause"
        with transaction.atomic():
            queue_operations.set_paused(name, paused)
            record(shell_operator(), options["do"], f"queue:{name}")
        self.say(f"{name} {'is paused' if paused else 'delivers'}")

    do_resume = do_pause

    def do_purge(self, options: dict[str, Any]) -> None:
        queue = message_operations.get_queue(options["name"])
        states, counts = _states(options), queue_counts(queue.pk)
        what = " and ".join(f"{getattr(counts, state.label):,} {state.label}" for state in states)
        self.ask(f"Remove {what} messages from {queue.name!r}?", options["yes"])
        with recorded("purge", f"queue:{queue.name}", what) as by, progress(self.stderr, "removed") as show:
            gone = message_operations.purge(queue.name, states, show, by=by)
        self.say(f"removed {gone:,} messages")

    def do_move(self, options: dict[str, Any]) -> None:
        source, target = options["source"], options["target"]
        states, counts = _states(options), queue_counts(message_operations.get_queue(source).pk)
        message_operations.get_queue(target)
        there = sum(getattr(counts, state.label) for state in states)
        most = min(there, options["limit"]) if options["limit"] else there
        self.ask(f"Move {most:,} messages from {source!r} to {target!r}?", options["yes"])
        detail = f"{most:,} to queue:{target}"
        with recorded("move", f"queue:{source}", detail) as by, progress(self.stderr, "moved") as show:
            moved = message_operations.move(source, target, states, options["limit"], show, by=by)
        self.say(f"moved {moved:,} messages")

    def do_delete(self, options: dict[str, Any]) -> None:
        queue = message_operations.get_queue(options["name"])
        held = queue_counts(queue.pk).held
        if held and not options["force"]:
            raise CommandError(
                f"{queue.name!r} holds {held:,} messages. --force deletes it with them.", returncode=REFUSED
            )
        self.ask(f"Delete {queue.name!r} with {held:,} messages?", options["yes"] or not held)
        detail = f"{held:,} messages"
        with recorded("delete", f"queue:{queue.name}", detail) as by, progress(self.stderr, "removed") as show:
            gone = queue_operations.delete_queue(queue.name, options["force"], show, by=by)
        self.say(f"deleted {queue.name} with {gone:,} messages")

    def do_publish(self, options: dict[str, Any]) -> None:
        id = publish(
            options["address"], _body(options), headers=dict(options["header"]) or None, delay=options["delay"],
            ttl=options["ttl"], key=options["key"],
        )  # fmt: skip
        record(shell_operator(), "publish", f"message:{id or 'dropped'}", options["address"])
        if options["json"]:
            self.say_json({"id": id})
        elif id is None:
            self.stderr.write("It has no subscription: the message was dropped.")
        else:
            self.say(str(id))

    def do_peek(self, options: dict[str, Any]) -> None:
        messages = message_operations.peek(options["name"], STATES[options["state"]], options["limit"])
        values = [_message(message) for message in messages]
        for value in [] if options["json"] else values:
            text = base64.b64decode(value["payload_base64"])[:60].decode("utf-8", "replace")
            more = f"… ({value['size']:,} bytes)" if value["size"] > 60 else ""
            value["payload"] = "".join(c if c.isprintable() else "·" for c in text) + more
        names = ("id", "attempts", "published_at", "key", "payload")
        self.say_list(options["json"], values, f"There is no {options['state']} message.", names)


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="1 to 255 characters, not beginning with _")
    for name in queue_operations.POLICY:
        field: Any = Queue._meta.get_field(name)
        given: dict[str, Any]
        if isinstance(field, models.BooleanField):
            given = {"action": argparse.BooleanOptionalAction}
        elif isinstance(field, models.DurationField):
            given = {"type": seconds, "metavar": "SECONDS"}
        elif isinstance(field, models.PositiveIntegerField | models.PositiveSmallIntegerField):
            given = {"type": number(1 if field.null else 0), "metavar": "N"}
        else:
            given = {"choices": field.choices and [value for value, _ in field.choices]}
        option = f"--{name.removeprefix('message_').replace('_', '-')}"
        parser.add_argument(option, dest=name, help=str(field.help_text or field.verbose_name), **given)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="NAME", help="a queue, or topic:NAME")
    parser.add_argument("body", nargs="?", metavar="BODY", help="the payload as text; - or nothing: standard input")
    parser.add_argument("--file", type=Path, metavar="F", help="the file that is the payload; -: standard input")
    parser.add_argument(
        "--header", type=_header, action="append", default=[], metavar="K=V", help="a header; may be repeated"
    )
    parser.add_argument("--delay", type=seconds, metavar="SECONDS", help="deliver it no earlier than then")
    parser.add_argument("--ttl", type=seconds, metavar="SECONDS", help="time before a waiting message expires")
    parser.add_argument("--key", metavar="KEY", help="publish only if no message in the queue has this key")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_state(parser: argparse.ArgumentParser, states: tuple[str, ...], help: str) -> None:
    parser.add_argument(
        "--state", action="append", choices=states, metavar="|".join(states), help=f"which messages; {help}"
    )


def _states(options: dict[str, Any]) -> tuple[State, ...]:
    return tuple(STATES[name] for name in dict.fromkeys(options["state"] or ("delayed", "ready")))


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V")
    return name, value


def _body(options: dict[str, Any]) -> bytes:
    text, file = options["body"], options["file"]
    parse_address(options["address"])  # before standard input is read
    if text is not None and file is not None:
        raise CommandError("Give either BODY or --file.", returncode=USAGE)
    if text is not None and text != "-":
        return str(text).encode("utf-8", "surrogateescape")
    if file is None or str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return bytes(file.read_bytes())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.", returncode=USAGE) from error


def _counted(counts: QueueCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in COUNTS}


def _message(message: Message) -> dict[str, Any]:
    payload = bytes(message.payload)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "id": message.origin_id or message.pk, "state": message.get_state_display(), "attempts": message.attempts,
        "published_at": message.published_at, "due_at": message.due_at, "expires_at": message.expires_at,
        "key": message.key, "headers": message.headers, "error": message.error, "size": len(payload), "payload": text,
        "payload_base64": base64.b64encode(payload).decode(),
    }  # fmt: skip
