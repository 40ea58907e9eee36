"""``manage.py connections``: the connections of clients to all nodes, from the shell."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queues.management.shell import SubcommandCommand, number
from queues.models import Connection
from queues.operations import connections
from queues.operations.audit_log import shell_operator

FIGURES = ("in_rate", "out_rate", "unacked", "held_bytes")
SHOWN = ("id", "protocol", "address", "key", "name", "connected_at", *FIGURES)


class Command(SubcommandCommand):
    """List the connections of clients, or end some."""

    help = (
        "The connections of clients to all nodes, the busiest first; of a node with very many the busiest and the "
        "latest are listed, and the totals are of all. Figures are of the last seconds. "
        "Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.set_defaults(do="list")
        parser.add_argument("--limit", type=number(1), default=1000, metavar="N", help="default: %(default)s")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("--disconnect", nargs="+", default=[], metavar="ID", help="end these connections")

    def do_list(self, options: dict[str, Any]) -> None:
        """List them, or end those that are named."""
        if options["disconnect"]:
            for id in options["disconnect"]:
                connections.disconnect_id(id, shell_operator())
                self.say(f"Disconnected {id}.")
            return
        connections.watch.wait()
        rows = [_values(one) for one in Connection.objects.select_related("node", "key").order_by("-rate", "id")[
            : options["limit"]
        ]]  # fmt: skip
        rows += [_other_values(one) for one in connections.others()]
        totals = connections.totals()
        if options["json"]:
            self.say_json({
                "totals": {
                    one.protocol: {
                        "connections": one.connections, "listed": one.listed, "in_rate": round(one.in_rate, 1),
                        "out_rate": round(one.out_rate, 1),
                    }
                    for one in totals
                },
                "connections": rows,
            })  # fmt: skip
            return
        self.say_list(False, rows, "There are no connections.", SHOWN)
        for one in totals:
            if one.listed < one.connections:
                self.stderr.write(f"{one.listed:,} of {one.connections:,} connections over {one.protocol} are listed.")


def _values(one: Connection) -> dict[str, Any]:
    shown = {
        "id": str(one), "protocol": one.protocol, "address": one.address, "name": one.name,
        "key": None if one.key is None else one.key.name, "node": str(one.node), "connected_at": one.connected_at,
    }  # fmt: skip
    return shown | {name: getattr(one, name) for name in ("messages_in", "messages_out", *FIGURES)}


def _other_values(one: connections.OtherConnection) -> dict[str, Any]:
    return {
        "id": one.id, "protocol": one.protocol, "address": one.address, "name": one.name, "key": None,
        "node": one.node, "connected_at": one.connected_at,
    }  # fmt: skip
