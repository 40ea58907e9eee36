"""``manage.py route``: messages published to one address are copied to another."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from queues.management.shell import SubcommandCommand
from queues.operations import routes
from queues.operations.audit_log import record, record_id, shell_operator
from queues.operations.route_traffic import RouteTraffic, read_traffic


class Command(SubcommandCommand):
    """Add, list and remove routes."""

    help = (
        "Routes copy messages published to one address to another, in the same transaction. An address is "
        "queue:NAME or topic:NAME, for TARGET also peer:NAME; a bare NAME is a queue's. "
        "Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="add|list|remove")
        add = do.add_parser("add", help="copy messages published to SOURCE to TARGET; a loop is refused")
        remove = do.add_parser("remove", help="copy no longer")
        for one in (add, remove):
            one.add_argument("source", metavar="SOURCE", help="for example topic:prices")
            one.add_argument("target", metavar="TARGET", help="for example queue:orders")
        listing = do.add_parser("list", help="show all routes, and what they have carried")
        listing.add_argument("--json", action="store_true", help="as a JSON list of objects")

    def do_add(self, options: dict[str, Any]) -> None:
        with transaction.atomic():
            route = routes.add_route(options["source"], options["target"])
            record(shell_operator(), "add", record_id(route))
        self.say(f"{route.source} is routed to {route.target}")
        for name in routes.missing_queues(route):
            self.stderr.write(f"There is no queue {name!r} yet: manage.py queue create {name}")

    def do_remove(self, options: dict[str, Any]) -> None:
        with transaction.atomic():
            route = routes.remove_route(options["source"], options["target"])
            record(shell_operator(), "delete", record_id(route))
        self.say("removed")

    def do_list(self, options: dict[str, Any]) -> None:
        found, traffic = routes.list_routes(), read_traffic()
        rows = [(route, traffic.get(route.pk, RouteTraffic())) for route in found]
        values = [
            {
                "source": route.source, "target": route.target, "created_at": route.created_at,
                "carried": went.carried, "rate": round(went.rate, 1),
            }
            for route, went in rows
        ]  # fmt: skip
        self.say_list(options["json"], values, "There are no routes.", ("source", "target", "carried", "rate"))
