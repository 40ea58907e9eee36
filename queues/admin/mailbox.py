"""Peers: the owners of their names, their connections, and the letters that wait for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queues.admin.audit_links import rows_address, rows_of_peer
from queues.admin.audited import FixedAdmin, object_action, row_action
from queues.admin.columns import anchor, column
from queues.admin.counted import CountedRows
from queues.admin.links import page_of
from queues.admin.worker import html_table
from queues.formats.times import clock, relative
from queues.models import Mailbox
from queues.operations import mailboxes


class ConnectedFilter(admin.SimpleListFilter):
    """Peers that are connected, or those that are away."""

    title = "connection"
    parameter_name = "connected"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "connected"), ("no", "away")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(node__isnull=self.value() == "no") if self.value() in ("yes", "no") else queryset


@admin.register(Mailbox)
class MailboxAdmin(CountedRows, FixedAdmin):
    pages = {"disconnect": "<int:id>/disconnect/", "free_name": "<int:id>/free-name/"}
    related = ("queue", "owner", "node")
    gone = "There is no such peer any more."
    list_display = ("name", "owner", "connected", "connection_shown", "node_shown", "ready", "leased", "dead")
    list_filter = (ConnectedFilter,)
    search_fields = ("name",)
    actions = ("disconnect", "free_name", "delete_selected")
    change_form_template = "admin/queues/peer_change_form.html"
    fields = (
        "name", "owner_shown", "connection_shown", "node_shown", "connected_at", "left_at", "created_at", "ready",
        "leased", "dead", "audit",
    )  # fmt: skip

    # Columns.

    connected = column("connected", lambda mailbox: mailbox.node_id is not None, boolean=True)

    @admin.display(description="owner")
    def owner_shown(self, mailbox: Mailbox) -> SafeString:
        if mailbox.owner is None:
            return anchor(None, "none: the next API key to register may have the name")
        return anchor(page_of("apikey", mailbox.owner.pk), mailbox.owner)

    @admin.display(description="connection")
    def connection_shown(self, mailbox: Mailbox) -> str:
        now = datetime.now(UTC)
        if mailbox.node_id is not None and mailbox.connected_at is not None:
            return f"connected {relative(mailbox.connected_at, now)}"
        return f"left {relative(mailbox.left_at, now)}" if mailbox.left_at is not None else "never connected"

    @admin.display(description="node")
    def node_shown(self, mailbox: Mailbox) -> SafeString:
        address = None if mailbox.node is None else page_of("node", mailbox.node.pk)
        return anchor(address, mailboxes.node_of(mailbox) or "-")

    @admin.display(description="newest audit rows")
    def audit(self, mailbox: Mailbox) -> SafeString:
        chain, rows = rows_of_peer(mailbox)
        if chain is None:
            return format_html("{}", "none")
        lines = (
            (
                f"{row.seq:,}", clock(row.at), row.event,
                anchor(rows_address(chain, f"id:{row.record_id}"), row.record_id),
                row.sender, row.recipient,
            )
            for row in rows
        )  # fmt: skip
        return html_table(("Seq", "When", "Event", "Id", "From", "To"), lines)

    # Actions.

    disconnect = row_action(
        lambda peer: mailboxes.disconnect(peer.name), "Disconnect", "disconnect", "Disconnected", "operate",
        "This ends the connections. Nothing is lost; a peer may come back at once, as long as its key allows:",
        "Yes, disconnect",
    )  # fmt: skip
    free_name = row_action(
        lambda peer: mailboxes.free_name(peer.name), "Free the name for another API key", "free", "Freed the name",
        "operate", "The next API key that comes has the name, and is given every letter that waits. Who is connected "
        "now is disconnected:", "Yes, free the name",
    )  # fmt: skip
    disconnect_view = object_action("disconnect", "operate")
    free_name_view = object_action("free_name", "operate")

    def delete_all_of(self, row: Mailbox, by: str) -> int:
        return mailboxes.delete_mailbox(row.name, force=True)

    def held_by(self, row: Mailbox) -> str:
        counts = self.counts(row)
        held = f"{counts.ready:,} ready, {counts.leased:,} unacknowledged, {counts.dead:,} dead"
        return f"{self.connection_shown(row)}, {held}"
