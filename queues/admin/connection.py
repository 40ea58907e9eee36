"""Connections of clients over every protocol: their rates, the messages that they hold, and an action to end them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queues.admin.audited import object_action, row_action
from queues.admin.charts import format_rate, format_size
from queues.admin.columns import anchor, column, moment, time_ago
from queues.admin.filters import ChoiceFilter
from queues.admin.keyset import KeysetAdmin, KeysetChangeList
from queues.admin.links import page_of
from queues.engine.api import LATEST, MAX_LISTED
from queues.models import Connection
from queues.operations import connections as operations
from queues.permissions.rules import Protocol

#: Orders of the list: its keyset, by the word in the address.
ORDERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "busiest": ("busiest first", ("-rate", "id")),
    "unsettled": ("most unacknowledged first", ("-unacked", "id")),
    "latest": ("latest first", ("-connected_at", "-id")),
    "oldest": ("oldest first", ("connected_at", "id")),
}
QUESTION = (
    "This ends the connections. Nothing is lost: what they have not acknowledged is delivered again. A client may come "
    "back at once, as long as its key allows:"
)


class OrderFilter(ChoiceFilter):
    """The order of the list."""

    title = "order"
    parameter_name = "order"
    words = {word: label for word, (label, _) in ORDERS.items()}


class ConnectionChangeList(KeysetChangeList):
    """In one of `ORDERS`."""

    @property
    def keyset(self) -> Sequence[str]:
        return ORDERS[self.choice(OrderFilter.parameter_name) or "busiest"][1]


@admin.register(Connection)
class ConnectionAdmin(KeysetAdmin):
    list_display = (
        "number", "protocol", "address", "published", "delivered", "unacked", "holds", "key_shown", "name_shown",
        "since", "node_shown",
    )  # fmt: skip
    list_display_links = ("number",)
    list_filter = (OrderFilter, "protocol", "node")
    search_fields = ("address__startswith", "name", "key__name")
    search_help_text = "The beginning of the address, or a part of the name or of the key's name"
    actions = ("disconnect",)
    change_list_template = "admin/queues/connection_change_list.html"
    change_form_template = "admin/queues/connection_change_form.html"
    fields = (
        "number", "protocol", "address", "key_shown", "name_shown", "node_shown", "connected", "published", "delivered",
        "messages_in", "messages_out", "unacked", "holds",
    )  # fmt: skip

    change_list = ConnectionChangeList
    pages = {"disconnect": "<int:id>/disconnect/"}
    related = ("node", "key")
    gone = "The connection has ended, or is not listed any more."

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        operations.watch.renew()
        return super().object_context(request, object_id)

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        operations.watch.renew()
        totals = operations.totals()
        return {
            "totals": [
                (
                    one.protocol, f"{one.connections:,}", f"{one.listed:,}",
                    format_rate(one.in_rate), format_rate(one.out_rate),
                )
                for one in totals
            ],
            "late": any(one.age > operations.LATE for one in totals),
            "cut": any(one.listed < one.connections for one in totals), "most": MAX_LISTED, "latest": LATEST,
            "others": operations.others(), "most_others": operations.MAX_OTHERS,
        }  # fmt: skip

    # Columns.

    number = column("connection", str)

    @admin.display(description="API key")
    def key_shown(self, connection: Connection) -> SafeString:
        if connection.key is None:
            return format_html("{}", "-" if connection.key_id is None else f"deleted ({connection.key_id})")
        return anchor(page_of("apikey", connection.key.pk), connection.key)

    @admin.display(description="worker or peer")
    def name_shown(self, connection: Connection) -> SafeString:
        name = connection.name
        if name and connection.protocol == Protocol.OVERHOP:
            return anchor(page_of("worker", name), name)
        if name and connection.protocol == Protocol.PEERBUS:
            return format_html('<a href="{}?q={}">{}</a>', reverse("admin:queues_mailbox_changelist"), name, name)
        return format_html("{}", name or "-")

    node_shown = column("node", lambda one: anchor(page_of("node", one.node_id), one.node))
    since = column("since", lambda one: time_ago(one.connected_at))
    connected = column("connected", lambda one: moment(one.connected_at))
    published = column("in", lambda one: format_rate(one.in_rate))
    delivered = column("out", lambda one: format_rate(one.out_rate))
    holds = column("in memory", lambda one: format_size(one.held_bytes))

    # Actions.

    def lines_of(self, request: HttpRequest, objects: Sequence[Connection]) -> list[str]:
        return [_line(one) for one in objects]

    disconnect = row_action(
        operations.disconnect, "Disconnect", "disconnect", "Disconnected", "operate", QUESTION, "Yes, disconnect",
        operations.described,
    )  # fmt: skip
    disconnect_view = object_action("disconnect", "operate", to_list=True)


def _line(connection: Connection) -> str:
    key = f", key {connection.key}" if connection.key is not None else ""
    name = f", {connection.name}" if connection.name else ""
    return f"{connection}: {connection.protocol} from {connection.address}{key}{name}"
