"""Filters of large tables, each of which leads to an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from queues.admin.columns import state_name
from queues.models import AuditChain, Queue, State

#: Queues offered for a choice; with more, one comes here from the list of queues.
MAX_OFFERED = 50


class OfferedFilter(admin.SimpleListFilter):
    """Objects by their names; where there are too many to be offered, only the chosen one."""

    model: type[Queue | AuditChain]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows, chosen = self.model.objects.values_list("pk", "name"), self.value()
        found = list(rows[: MAX_OFFERED + 1])
        if len(found) > MAX_OFFERED:
            found = list(rows.filter(pk=number(chosen))) if chosen else []
        return [(str(pk), name) for pk, name in found]

    def has_output(self) -> bool:
        return True


class QueueFilter(OfferedFilter):
    """Messages of one queue."""

    title = "queue"
    parameter_name = "queue"
    model = Queue

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(queue_id=number(self.value())) if self.value() else queryset


class StateFilter(admin.SimpleListFilter):
    """Messages in one state. Of one queue those that are ready, unless another is asked for: each has its index."""

    title = "state"
    parameter_name = "state"

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        self.default = str(int(State.READY)) if request.GET.get(QueueFilter.parameter_name) else None
        super().__init__(request, *args)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(value), state_name(str(label))) for value, label in State.choices]

    def value(self) -> str | None:
        return super().value() or self.default

    def choices(self, changelist: Any) -> Iterator[Any]:
        every, *states = super().choices(changelist)
        if self.default is None:
            yield every
        yield from states

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(state=number(self.value())) if self.value() else queryset


class ChoiceFilter(admin.SimpleListFilter):
    """A filter of which one choice always counts: the first one, unless another is asked for."""

    words: Mapping[str, str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(self.words.items())

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen and chosen in self.words else next(iter(self.words))

    def choices(self, changelist: Any) -> Iterator[Any]:
        _, *words = super().choices(changelist)
        yield from words

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class FinishedFilter(ChoiceFilter):
    """The archive of a recent time; without a choice of the last hour, since the whole may be very long."""

    title = "finished in"
    parameter_name = "within"
    words = {"1": "the last hour", "24": "the last day", "168": "the last week", "all": "all that is kept"}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        low = since(self.value())
        return queryset if low is None else queryset.filter(finished_at__gte=low)


def since(window: str) -> datetime | None:
    """The beginning of a window of `FinishedFilter`; None: there is none."""
    return None if window == "all" else datetime.now(UTC) - timedelta(hours=int(window))


def number(text: str | None, digits: int = 9) -> int:
    """A number from an address line; one that no row has if it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else -1
