"""Hydra's nodes: roles, votes and links. Read only, except for commands to nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from hydra import operations
from hydra.admin.requests import FORGET, REQUESTS
from hydra.admin.timeline import timeline_context
from hydra.admin.view import EMPTY, JOINED, NodeView, electorate_of, moment, vote_of
from hydra.models import Link, Node
from hydra.notifications import CommandAction
from queues.admin.audited import FixedAdmin, confirm_page, confirmed, object_action, object_page, operator, row_action
from queues.formats.times import relative
from queues.operations import audit_log


def _field_of(part: Callable[[NodeView], SafeString], description: str) -> Callable[[Any, Any], SafeString]:
    """A field of the page that shows a part of the node's view."""

    @admin.display(description=description)
    def field(shown_by: Any, node: Any) -> SafeString:
        return part(node.view)

    return field


@admin.register(Node)
class HydraNodeAdmin(FixedAdmin):
    list_display = (
        "name", "state", "term", "leader_shown", "current_id", "votes", "links", "irc_shown", "lease", "seen",
    )  # fmt: skip
    search_fields = ("name",)
    gone = "There is no such Hydra node any more."
    actions = ("forget_selected",)
    change_list_template = "admin/hydra/node_change_list.html"
    change_form_template = "admin/hydra/node_change_form.html"
    fieldsets = (
        (None, {"fields": ("name", "state", "term", "leader_shown", "current_id", "votes", "irc_shown", "lease")}),
        ("Network", {"fields": ("network", "members_table", "links_table")}),
        ("Events", {"fields": ("events_table",)}),
        ("Promises", {"fields": ("voter", "pledge_shown", "electorate_shown", "votes_table")}),
        ("Process", {"fields": ("process", "listens_on", "started", "seen", "position")}),
    )

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.request_view)
        own = [
            path("<int:id>/resign/", view, {"name": "resign"}, name="hydra_node_resign"),
            path("<int:id>/drop/<int:number>/", view, {"name": "drop"}, name="hydra_node_drop"),
            path(
                "<int:id>/close-link/<int:number>/", view, {"name": "disconnect_link"},
                name="hydra_node_disconnect_link",
            ),
        ]  # fmt: skip
        return [*own, *super().get_urls()]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Without Django's deletion: it would list every event of a node, and ask for no name.

        Django names the location from 6.1 on.
        """
        location = {} if action_location is None else {"action_location": action_location}
        actions = super().get_actions(request, **location)
        return {name: action for name, action in actions.items() if name != "delete_selected"}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        links = Link.objects.filter(node=OuterRef("pk"), state=JOINED).values("node")
        count = Subquery(links.annotate(count=Count("pk")).values("count"))
        return Node.objects.with_running().annotate(link_count=Coalesce(count, 0))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        node = super().get_object(request, object_id, from_field)
        if node is not None:
            node.view = NodeView(node, node.running, self.has_operate_permission(request))
        return node

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        context = timeline_context(request)
        query = request.GET.copy()
        query.pop("span", None)  # else it is a filter that the list does not know
        request.GET = query  # type: ignore[assignment]
        return context

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        # The page has its own button "Forget": Django's would be offered for running nodes, too.
        context = {**super().object_context(request, object_id), "show_delete": False}
        node = self.get_object(request, object_id)
        if node is not None:
            context["may_resign"] = node.view.operable and node.view.leads
            context["may_forget"] = not node.running and self.has_delete_permission(request, node)
        return context

    def record_action(self, request: HttpRequest, event: str, obj: Any, detail: str = "") -> None:
        audit_log.record(operator(request), event, f"hydra:{obj}", detail)

    # Columns and fields.

    @admin.display(description="state", ordering="role")
    def state(self, node: Any) -> str:
        return node.get_role_display() if node.running else "not running"

    @admin.display(description="leader", ordering="leader_name")
    def leader_shown(self, node: Any) -> str:
        return str(node.leader_name or node.leader or EMPTY) if node.running else EMPTY

    @admin.display(description="vote")
    def votes(self, node: Node) -> str:
        return vote_of(node)

    @admin.display(description="links", ordering="link_count")
    def links(self, node: Any) -> str:
        return f"{node.link_count:,}" if node.running else EMPTY

    @admin.display(description="IRC", ordering="irc")
    def irc_shown(self, node: Any) -> str:
        return node.get_irc_display() if node.running else "off"

    @admin.display(description="lease", ordering="lease_until")
    def lease(self, node: Any) -> str:
        if not node.running or node.lease_until is None:
            return EMPTY
        return f"ends {relative(node.lease_until, datetime.now(UTC))}, unless renewed"

    @admin.display(description="last seen", ordering="seen_at")
    def seen(self, node: Node) -> str:
        return "never" if node.seen_at is None else relative(node.seen_at, datetime.now(UTC))

    network = _field_of(NodeView.picture, "picture")
    links_table = _field_of(NodeView.links_table, "links")
    members_table = _field_of(NodeView.members_table, "nodes")
    votes_table = _field_of(NodeView.votes_table, "votes on record")
    events_table = _field_of(NodeView.events_table, "events, newest first")

    def process(self, node: Node) -> str:
        return EMPTY if node.pid is None else f"{node.pid} on {node.host}"

    def started(self, node: Node) -> str:
        return moment(node.started_at)

    def listens_on(self, node: Node) -> str:
        return ", ".join(node.listen) or EMPTY

    @admin.display(description="last line stored")
    def position(self, node: Node) -> str:
        return "none" if node.position_term is None else f"{node.position_idx} of term {node.position_term}"

    @admin.display(description="pledge")
    def pledge_shown(self, node: Node) -> str:
        return f"none in term {node.term}" if node.pledge is None else f"to {node.pledge} in term {node.term}"

    @admin.display(description="electorate")
    def electorate_shown(self, node: Node) -> str:
        electorate = electorate_of(node)
        if electorate is None:
            return "not known"
        voters = f"{len(electorate.voters):,} voters, {electorate.quorum:,} are a majority"
        return f"{voters}: version {electorate.version} of term {electorate.term}"

    # Commands.

    @object_page("operate")
    def request_view(self, request: HttpRequest, node: Any, name: str, number: int | None = None) -> HttpResponse:
        """One of REQUESTS, for one node."""
        asked = REQUESTS[action := CommandAction(name)]
        words = {"node": node, "number": number, "name": node.view.name_of_id(number)}
        if not confirmed(request):
            return confirm_page(self, request, asked.question, [asked.line.format(**words)], asked.button)
        with self.attempt(request) as done:
            operations.ask(node, action, operator(request), number)
            done.append(asked.done.format(**words))
            self.log_done(request, node, name, done[0], "" if number is None else asked.line.format(**words))
        return HttpResponseRedirect(reverse("admin:hydra_node_change", args=[node.pk]))

    def lines_of(self, request: HttpRequest, objects: Sequence[Any]) -> list[str]:
        return [f"{node}: {self.state(node)}, vote {vote_of(node)}, last seen {self.seen(node)}" for node in objects]

    forget_selected = row_action(
        operations.forget_node, "Forget", "forget", "Forgot", "delete", FORGET, "Yes, forget",
        lambda node: f"voter {node.voter}, term {node.term}",
    )  # fmt: skip
    deletion_page = object_action("forget_selected", "delete", to_list=True)
