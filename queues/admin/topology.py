"""Subscriptions of topics, and routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html

from queues.admin.charts import format_number, format_rate
from queues.admin.confirm import ConfirmedDeletion
from queues.admin.flows import flows_view, topics_view
from queues.admin.queue import CountedChangeList, messages_link
from queues.admin.recorded import FixedAdmin, RecordedAdmin
from queues.counts import QueueCounts, many_counts
from queues.models import Route, Subscription
from queues.operations import queues as queue_operations
from queues.operations import routes
from queues.operations.route_traffic import RouteTraffic, read_traffic

if TYPE_CHECKING:
    RouteModelForm = forms.ModelForm[Route]
else:
    RouteModelForm = forms.ModelForm


class SubscriptionChangeList(CountedChangeList):
    """Adds the counts of the subscriptions' queues."""

    queue_of = staticmethod(lambda row: row.queue_id)


@admin.register(Subscription)
class SubscriptionAdmin(FixedAdmin, ConfirmedDeletion):
    list_display = (
        "id", "topic_text", "qos", "queue_link", "ready", "leased", "dead", "carried", "owner", "created_at", "used_at",
    )  # fmt: skip
    list_select_related = ("owner", "queue")
    change_list_template = "admin/queues/subscription_change_list.html"
    search_fields = ("topic",)
    search_help_text = "The exact topic"
    show_full_result_count = False
    fields = ("id", "topic_text", "qos", "queue", "owner", "created_at", "used_at")
    readonly_fields = ("id", "topic_text")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CountedChangeList]:
        return SubscriptionChangeList

    def get_urls(self) -> list[URLPattern]:
        own = path("topics/", self.admin_site.admin_view(topics_view), name="queues_subscription_topics")
        return [own, *super().get_urls()]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Subscription], search_term: str
    ) -> tuple[QuerySet[Subscription], bool]:
        if search_term:
            queryset = queryset.filter(topic=search_term.encode("utf-8", "replace"))
        return queryset, False

    @admin.display(description="topic")
    def topic_text(self, subscription: Subscription) -> str:
        return subscription.topic_text

    @admin.display(description="queue")
    def queue_link(self, subscription: Subscription) -> str:
        page = reverse("admin:queues_queue_change", args=[subscription.queue_id])
        return format_html('<a href="{}">{}</a>', page, subscription.queue)

    @admin.display(description="ever stored")
    def carried(self, subscription: Any) -> str:
        return f"{subscription.counts.published:,}"

    @admin.display
    def ready(self, subscription: Any) -> str:
        return messages_link(subscription.queue_id, subscription.counts.ready, 0)

    @admin.display
    def leased(self, subscription: Any) -> int:
        return int(subscription.counts.leased)

    @admin.display
    def dead(self, subscription: Any) -> str:
        return messages_link(subscription.queue_id, subscription.counts.dead, 3)

    def delete_by(self, obj: Subscription, by: str) -> int:
        return queue_operations.delete_subscription(obj.pk, by=by)

    def deletion_lines(self, objects: Sequence[Subscription]) -> list[str]:
        counts = many_counts(subscription.queue_id for subscription in objects)
        return [f"{one}: {counts.get(one.queue_id, QueueCounts()).held:,} messages" for one in objects]


class RouteForm(RouteModelForm):
    """A route that leads to no loop."""

    class Meta:
        model = Route
        fields = ("source", "target")

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        if "source" in data and "target" in data:
            try:
                data["source"], data["target"] = routes.check_route(data["source"], data["target"])
            except (routes.RouteError, routes.InvalidAddress) as error:
                raise ValidationError(str(error)) from error
        return data


class RouteChangeList(ChangeList):
    """Adds the traffic of the routes on the page, in one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        traffic = read_traffic(row.pk for row in rows)
        for row in rows:
            row.traffic = traffic.get(row.pk, RouteTraffic())
        self.result_list = rows


@admin.register(Route)
class RouteAdmin(RecordedAdmin):
    form = RouteForm
    list_display = ("source", "target", "carried", "rate", "created_at")
    search_fields = ("source", "target")
    show_full_result_count = False
    change_list_template = "admin/queues/route_change_list.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RouteChangeList

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("source", "target") if obj is None else ("source", "target", "carried", "rate", "created_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("carried", "rate", "created_at")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        route: Any = super().get_object(request, object_id, from_field)
        if route is not None:
            route.traffic = read_traffic([route.pk]).get(route.pk, RouteTraffic())
        return route

    @admin.display(description="messages carried")
    def carried(self, route: Any) -> str:
        return format_number(route.traffic.carried)

    @admin.display(description="in the last minute")
    def rate(self, route: Any) -> str:
        return format_rate(route.traffic.rate)

    def get_urls(self) -> list[URLPattern]:
        own = path("picture/", self.admin_site.admin_view(flows_view), name="queues_route_picture")
        return [own, *super().get_urls()]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Route, form: Any, change: bool) -> None:
        obj.pk = routes.add_route(obj.source, obj.target).pk
        for name in routes.missing_queues(obj):
            self.message_user(request, f"There is no queue {name} yet.", messages.WARNING)
