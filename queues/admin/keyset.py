"""Pages of a large table: each begins after the last row of the one before, and nothing is counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from queues.admin.audited import ReadOnlyAdmin

AFTER = "after"


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that never counts: the change list pages by itself."""

    @cached_property
    def count(self) -> int:
        return 0


class KeysetChangeList(ChangeList):
    """Shows `list_per_page` rows after those that `?after=` names: the values of the admin's `keyset` fields."""

    model_admin: KeysetAdmin
    after: str = ""
    next_page: str = ""
    first_page: str = ""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        self.after = str(request.GET.get(AFTER, ""))
        self.params.pop(AFTER, None)
        self.filter_params.pop(AFTER, None)
        return super().get_queryset(request, *args, **kwargs)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return list(self.keyset)

    def choice(self, parameter: str) -> str | None:
        """The choice in the filter of this name."""
        filters = (spec for spec in self.filter_specs if isinstance(spec, admin.SimpleListFilter))
        return next((spec.value() for spec in filters if spec.parameter_name == parameter), None)

    @property
    def keyset(self) -> Sequence[str]:
        """The fields that order the list."""
        return self.model_admin.keyset

    def get_results(self, request: HttpRequest) -> None:
        rows = self.queryset
        if self.after:
            rows = rows.filter(self._beyond(self.after.split(",")))
        most = self.list_per_page + 1
        found = list(self.model_admin.within_reach(rows, self, most)[:most])
        more, found = len(found) > self.list_per_page, found[: self.list_per_page]
        self.model_admin.prepare_rows(found)
        self.result_list = found
        self.result_count = len(found)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = self.multi_page = False
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        if more:
            self.next_page = self.get_query_string({AFTER: self._position(found[-1])})
        if self.after:
            self.first_page = self.get_query_string()

    def _position(self, row: Model) -> str:
        values = [getattr(row, field.lstrip("-")) for field in self.keyset]
        return ",".join(value.isoformat() if isinstance(value, datetime) else str(value) for value in values)

    def _beyond(self, values: list[str]) -> Q:
        """The rows after a position, which has one value for each field of the keyset."""
        keyset = self.keyset
        if len(values) != len(keyset):
            raise IncorrectLookupParameters(self.after)
        try:
            fields = [self.model._meta.get_field(field.lstrip("-")) for field in keyset]
            parsed = [field.to_python(value) for field, value in zip(fields, values, strict=True)]  # type: ignore[union-attr]
        except Exception as error:
            raise IncorrectLookupParameters(self.after) from error
        beyond, equal = Q(), Q()
        for field, value in zip(keyset, parsed, strict=True):
            name, way = (field[1:], "lt") if field.startswith("-") else (field, "gt")
            beyond |= equal & Q((f"{name}__{way}", value))
            equal &= Q((name, value))
        first, way = (keyset[0][1:], "lte") if keyset[0].startswith("-") else (keyset[0], "gte")
        return Q((f"{first}__{way}", parsed[0])) & beyond  # the first condition is one that an index can use


class KeysetAdmin(ReadOnlyAdmin):
    """A read-only admin of a large table. `keyset` orders it: fields that together are unique."""

    keyset: tuple[str, ...] = ("id",)
    paginator = UncountedPaginator
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    change_list_template = "admin/queues/keyset_change_list.html"

    change_list = KeysetChangeList

    def within_reach(self, rows: QuerySet[Any], page: KeysetChangeList, most: int) -> QuerySet[Any]:
        """The rows among which the first `most` surely are: fewer than all, if that can be said."""
        return rows
