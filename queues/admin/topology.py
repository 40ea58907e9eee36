"""Subscriptions of topics, and routes."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from queues.admin import flows
from queues.admin.audited import AuditedAdmin, FixedAdmin
from queues.admin.charts import format_number, format_rate
from queues.admin.columns import anchor, column
from queues.admin.counted import CountedRows
from queues.admin.generic import ModelForm
from queues.admin.links import page_of
from queues.models import Route, Subscription
from queues.operations import queues as queue_operations
from queues.operations import routes
from queues.operations.route_traffic import RouteTraffic, read_traffic
from queues.permissions.addresses import InvalidAddress


@admin.register(Subscription)
class SubscriptionAdmin(CountedRows, FixedAdmin):
    list_display = (
        "id", "topic_text", "qos", "queue_link", "ready", "leased", "dead", "carried", "owner", "created_at", "used_at",
        "ends_at",
    )  # fmt: skip
    list_filter = (("ends_at", admin.EmptyFieldListFilter),)
    related = ("owner", "queue")
    pages = {"topics": "topics/"}
    topics_view = flows.topics_view
    change_list_template = "admin/queues/subscription_change_list.html"
    search_fields = ("topic",)
    search_help_text = "The exact topic"
    fields = ("id", "topic_text", "qos", "queue", "owner", "created_at", "used_at", "ends_at")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Subscription], search_term: str
    ) -> tuple[QuerySet[Subscription], bool]:
        if search_term:
            queryset = queryset.filter(topic=search_term.encode("utf-8", "replace"))
        return queryset, False

    topic_text = column("topic", lambda subscription: subscription.topic_text)
    queue_link = column("queue", lambda one: anchor(page_of("queue", one.queue_id), one.queue))

    @admin.display(description="ever stored")
    def carried(self, subscription: Any) -> str:
        return f"{self.counts(subscription).published:,}"

    def delete_all_of(self, row: Subscription, by: str) -> int:
        return queue_operations.delete_subscription(row.pk, by=by)


class RouteForm(ModelForm):
    """A route that leads to no loop."""

    class Meta:
        model = Route
        fields = ("source", "target")

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        if "source" in data and "target" in data:
            try:
                data["source"], data["target"] = routes.check_route(data["source"], data["target"])
            except (routes.RouteError, InvalidAddress) as error:
                raise ValidationError(str(error)) from error
        return data


@admin.register(Route)
class RouteAdmin(AuditedAdmin):
    form = RouteForm
    list_display = ("source", "target", "carried", "rate", "created_at")
    search_fields = ("source", "target")
    change_list_template = "admin/queues/route_change_list.html"

    pages = {"picture": "picture/"}
    picture_view = flows.flows_view

    def prepare_rows(self, rows: list[Any]) -> None:
        traffic = read_traffic(row.pk for row in rows)
        for row in rows:
            row.traffic = traffic.get(row.pk, RouteTraffic())

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("source", "target") if obj is None else ("source", "target", "carried", "rate", "created_at")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        route: Any = super().get_object(request, object_id, from_field)
        if route is not None:
            self.prepare_rows([route])
        return route

    carried = column("messages carried", lambda route: format_number(route.traffic.carried))
    rate = column("in the last minute", lambda route: format_rate(route.traffic.rate))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Route, form: Any, change: bool) -> None:
        obj.pk = routes.add_route(obj.source, obj.target).pk
        for name in routes.missing_queues(obj):
            self.message_user(request, f"There is no queue {name} yet.", messages.WARNING)
