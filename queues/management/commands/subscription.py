"""``manage.py subscription``: BlipMQ's subscriptions, which outlive connections and the broker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from queues.engine.api import QueueNotFound
from queues.management.shell import REFUSED, USAGE, SubcommandCommand, number
from queues.models import Subscription
from queues.operations.audit_log import record, record_id, shell_operator
from queues.operations.queues import delete_subscription
from queues.store.counts import many_counts

SHOWN = ("id", "topic", "qos", "ready", "leased", "dead", "owner", "used_at", "ends_at")


class Command(SubcommandCommand):
    """List subscriptions of topics, or delete some."""

    help = (
        "Subscriptions of topics. Each SUBSCRIBE of BlipMQ makes one, which gathers what is published until it is "
        "deleted here or in the admin, or nobody has polled it for BROKER_IDLE_SUBSCRIPTION_DAYS. "
        "Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="list|delete")
        listing = do.add_parser("list", help="show subscriptions, what they hold, when they were last polled")
        listing.add_argument("--json", action="store_true", help="as a JSON list of objects")
        delete = do.add_parser("delete", help="end subscriptions; their messages go with them")
        delete.add_argument("ids", nargs="*", type=number(1), metavar="ID")
        delete.add_argument("--yes", action="store_true", help="do not ask")
        delete.add_argument("--json", action="store_true", help="print what was deleted as a JSON list of objects")
        for one, what in ((listing, "only those"), (delete, "all")):
            one.add_argument("--topic", metavar="TOPIC", help=f"{what} of this topic")

    def do_list(self, options: dict[str, Any]) -> None:
        values = [_values(one) for one in _counted(_of_topic(options["topic"]))]
        self.say_list(options["json"], values, "There are no subscriptions.", SHOWN)

    def do_delete(self, options: dict[str, Any]) -> None:
        ids, topic = options["ids"], options["topic"]
        if bool(ids) == (topic is not None):
            raise CommandError("Name subscriptions by their ids, or a topic by --topic.", returncode=USAGE)
        rows = _of_topic(topic) if topic is not None else Subscription.objects.filter(id__in=ids)
        found = _counted(rows)
        if missing := sorted(set(ids) - {one.pk for one, _ in found}):
            raise CommandError(f"There is no subscription {', '.join(map(str, missing))}.", returncode=REFUSED)
        if not found:
            raise CommandError(f"There is no subscription of {topic!r}.", returncode=REFUSED)
        held = sum(counts.held for _, counts in found)
        what = f"the subscription {found[0][0]}" if len(found) == 1 else f"{len(found):,} subscriptions"
        self.ask(f"Delete {what} with {held:,} messages?", options["yes"])
        deleted = [_delete(one) for one, _ in found]
        if options["json"]:
            self.say_json(deleted)
            return
        for one in deleted:
            self.say(f"deleted {one['id']} of {one['topic']} with {one['messages']:,} messages")


def _of_topic(topic: str | None) -> Any:
    rows = Subscription.objects.all()
    return rows if topic is None else rows.filter(topic=topic.encode())


def _counted(rows: Any) -> list[tuple[Subscription, Any]]:
    """Subscriptions with the counts of their queues, by id."""
    found = list(rows.select_related("queue", "owner").order_by("id"))
    counts = many_counts(one.queue_id for one in found)
    return [(one, counts[one.queue_id]) for one in found]


def _values(counted: tuple[Subscription, Any]) -> dict[str, Any]:
    one, counts = counted
    return {
        "id": one.pk, "topic": one.topic_text, "qos": one.qos, "queue": one.queue.name,
        "owner": None if one.owner is None else one.owner.name, "ready": counts.ready, "leased": counts.leased,
        "delayed": counts.delayed, "dead": counts.dead, "created_at": one.created_at, "used_at": one.used_at,
        "ends_at": one.ends_at,
    }  # fmt: skip


def _delete(one: Subscription) -> dict[str, Any]:
    """Delete a subscription; one that is gone meanwhile held nothing."""
    by, id, name = shell_operator(), one.pk, record_id(one)
    record(by, "delete", name)
    try:
        gone = delete_subscription(id, by=by)
    except QueueNotFound:
        gone = 0
    return {"id": id, "topic": one.topic_text, "messages": gone}
